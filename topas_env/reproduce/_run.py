"""Runs of the reproduction on several processes, resumable, within a limit of time."""

import concurrent.futures
import hashlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_env.compare import Record, ResultFile
from topas_env.compare._config import _code_key, _source_key
from topas_env.compare._pool import obey_parent
from topas_env.reproduce._cases import Case
from topas_env.reproduce._settings import believed_of, engine_of, workload_of

__all__ = ["execute", "key_of", "run_cases"]

Progress = Callable[[int, int], None]
_KEPT = (
    "duration", "request_throughput", "task_throughput", "mean_batch", "prefix_moves", "loads", "computes",
    "preemptions",    "retractions", "forced_admissions", "decisions", "decision_ms", "cache_hit_rate_pct",
)  # fmt: skip


def run_cases(
    cases: Sequence[Case],
    path: Path,
    *,
    jobs: int | None = None,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Makes the runs that the file does not hold yet; returns the records of all that are there, in the given order.

    Args:
        cases: The runs, the important ones first.
        path: File of results; it is made, or gone on with.
        jobs: Processes; as many as this process may use cores if None.
        minutes: Nothing is begun after so much time; the runs that are missing then are left out.
        progress: Called as (finished, all) at the start and after each batch of runs.
    """
    keys = [key_of(case) for case in cases]
    report = progress or (lambda _done, _total: None)
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with ResultFile(path) as results:
        found = {key: results.known[key] for key in keys if key in results.known}
        missing = [(key, case) for key, case in zip(keys, cases, strict=True) if key not in found]
        report(len(found), len(cases))
        for batch in _batches(missing, jobs, end):
            for key, record in batch:
                found[key] = {"key": key, **record}
                results.append(found[key])
            report(len(found), len(cases))
    return [found[key] for key in keys if key in found]


def execute(case: Case) -> Record:
    """Makes one run and returns its record, without the key."""
    from topas_env._simulate import simulate
    from topas_policies import make_policy

    setting = case.setting
    workload = workload_of(setting, case.seed)
    start = time.perf_counter()
    result = simulate(
        workload,
        make_policy(case.policy, **case.options),
        profile=engine_of(setting),
        seed=case.seed,
        believed=believed_of(setting),
        decision_time_s=setting.decision_time,  # type: ignore[arg-type]
    )
    figures = result.summary()
    finished = workload.trace.arrival + result.jct_s
    return {
        "policy": case.policy,
        "options": dict(case.options),
        "workload": setting.workload,
        "seed": case.seed,
        "point": msgspec.to_builtins(setting),
        "mean_jct_s": result.mean_jct_s,
        "p99_jct_s": result.p99_jct_s,
        "first_task_s": float(finished.min() - workload.trace.arrival[0]),
        "requests": workload.num_requests,
        **{name: figures[name] for name in _KEPT},
        "decision_share_pct": 100.0 * float(result.decision_wall_s.sum()) / figures["duration"],
        "wall_s": time.perf_counter() - start,
        "jct_s": np.round(result.jct_s, 3).tolist(),
    }


def key_of(case: Case) -> str:
    """Returns the key of a run: the hash of what it is and of the code that decides its outcome."""
    digest = hashlib.sha256(msgspec.json.encode(case, order="sorted"))
    digest.update(_all_code(case.policy).encode())
    return digest.hexdigest()[:20]


_codes: dict[str, str] = {}


def _all_code(policy: str) -> str:
    if policy not in _codes:
        from topas_policies import make_policy

        kind: type | None = type(make_policy(policy))
        assert kind is not None
        own = Path(__file__).with_name("_settings.py").read_bytes()
        _codes[policy] = f"{_code_key()} {_source_key(kind)} {hashlib.sha256(own).hexdigest()}"
    return _codes[policy]


def _batches(runs: list[tuple[str, Case]], jobs: int | None, end: float) -> Iterator[list[tuple[str, Record]]]:
    """Yields finished runs, in batches of neighbours that share a setting and a seed."""
    groups = itertools.groupby(runs, lambda run: (msgspec.json.encode(run[1].setting, order="sorted"), run[1].seed))
    waiting = [list(group) for _, group in groups]
    workers = min(jobs or len(os.sched_getaffinity(0)), len(waiting))
    if workers <= 1:
        for batch in waiting:
            if time.monotonic() >= end:
                return
            yield _execute_batch(batch)
        return
    yield _execute_batch(waiting[0])  # compiles where that is to be done; the others find the kernels in the cache
    before = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=obey_parent
    )
    try:
        yield from _through(pool, waiting[1:], workers, end)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


def _through(pool: Any, waiting: list[list[tuple[str, Case]]], workers: int, end: float) -> Iterator[list[Any]]:
    """Keeps a few batches in the pool at a time, so that the limit of time stops it soon."""
    queue = iter(waiting)
    pending = {pool.submit(_execute_batch, batch) for batch in itertools.islice(queue, 2 * workers)}
    while pending:
        done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            if time.monotonic() < end and (batch := next(queue, None)) is not None:
                pending.add(pool.submit(_execute_batch, batch))
            yield future.result()


def _execute_batch(batch: list[tuple[str, Case]]) -> list[tuple[str, Record]]:
    return [(key, execute(case)) for key, case in batch]
