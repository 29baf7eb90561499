"""Runs of a comparison on several processes; what is finished is on disk, whatever happens next."""

import concurrent.futures
import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from topas_env.compare._config import RunConfig
from topas_env.compare._execute import execute, key_of
from topas_env.compare._store import Record, ResultFile

__all__ = ["obey_parent", "run_all"]

Progress = Callable[[int, int, RunConfig | None], None]


def run_all(
    configs: Sequence[RunConfig],
    path: Path,
    *,
    jobs: int | None = None,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Makes every run that the file does not hold yet, and returns the records of all, in the given order.

    Args:
        configs: the runs.
        path: file of results; it is made, or gone on with.
        jobs: processes; as many as this process may use cores if None.
        minutes: after so much time it stops, and returns the records that there are.
        progress: called as (runs finished, all runs, the run that ended) at the start and after each.

    Raises:
        InputError: for a bad workload, profile, policy or option.
        KeyboardInterrupt: as it comes; finished runs are in the file.
    """
    keys = [key_of(config) for config in configs]
    end = math.inf if minutes is None else time.monotonic() + 60.0 * minutes
    report = progress or (lambda _done, _total, _config: None)
    with ResultFile(path) as results:
        found = {key: results.known[key] for key in keys if key in results.known}
        missing = [(key, config) for key, config in zip(keys, configs, strict=True) if key not in found]
        report(len(configs) - len(missing), len(configs), None)
        # Closed at once, also where an interrupt comes between two records: closing it ends the workers.
        with contextlib.closing(_records(missing if minutes != 0.0 else [], jobs)) as made:
            for done, (key, config, record) in enumerate(made, len(configs) - len(missing) + 1):
                found[key] = {"key": key, **record}
                results.append(found[key])
                report(done, len(configs), config)
                if time.monotonic() >= end:
                    break
    return [found[key] for key in keys if key in found]


def _records(
    runs: Sequence[tuple[str, RunConfig]], jobs: int | None
) -> Generator[tuple[str, RunConfig, Record], None, None]:
    workers = min(jobs or len(os.sched_getaffinity(0)), len(runs))
    if workers <= 1:
        for key, config in runs:
            yield key, config, execute(config)
        return
    # The first run compiles, where it is the first after installation; the others then find the kernels in the cache.
    key, config = runs[0]
    yield key, config, execute(config)
    before = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=obey_parent
    )
    try:
        pending = {pool.submit(execute, config): (key, config) for key, config in runs[1:]}
        for future in concurrent.futures.as_completed(pending):
            key, config = pending[future]
            yield key, config, future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


def obey_parent() -> None:
    """Leaves an interrupt to the parent, which ends its workers; a worker ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
