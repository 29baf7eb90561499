"""An engine profile from the log of a server of our own: what its batches took under a mixed load."""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_bridge._calibrate import RESERVATION_SOURCE, engine_facts, reservation
from topas_bridge._engine_time import iterations
from topas_bridge._steps import VARIABLE, EngineLog, read_log
from topas_bridge.testing import start_server
from topas_env import EngineProfile
from topas_env._errors import InputError

__all__ = ["Fit", "calibrate_logged", "fit_log"]

_CONCURRENCY = (1, 2, 4, 8, 12, 16)
_PREFIXES = 6
_LEAST = 20  # batches of each kind


class Fit(NamedTuple):
    """A profile and how well it describes what was measured.

    Attributes:
        profile: The profile.
        prefill_error: Mean absolute error of a prefill batch's time, as a share of the mean time.
        step_error: The same of a decode step.
        prefills: Prefill batches measured.
        steps: Decode steps measured.
    """

    profile: EngineProfile
    prefill_error: float
    step_error: float
    prefills: int
    steps: int


def calibrate_logged(
    flags: Sequence[str],
    *,
    name: str,
    environment: dict[str, str] | None = None,
    engine_core: int | None = None,
    seconds: float = 36.0,
    context: int | None = None,
    output: int = 60,
    seed: int = 0,
) -> Fit:
    """Starts a server, loads it with requests of all sizes at several depths, and fits a profile to its log.

    Args:
        flags: SGLang's flags.
        name: Name of the profile.
        environment: Variables for SGLang.
        engine_core: See `start_server`.
        seconds: Length of the load.
        context: Longest prompt, tokens; None for a quarter of the KV pool.
        output: Mean output, tokens.
        seed: Seed of the load.
    """
    with tempfile.TemporaryDirectory(prefix="topas-steps-") as folder:
        path = Path(folder) / "steps.jsonl"
        variables = {**(environment or {}), VARIABLE: str(path)}
        with start_server(list(flags), None, environment=variables, engine_core=engine_core) as server:
            facts, calls = asyncio.run(_load(server.url, seconds, context, output, random.Random(seed)))  # noqa: S311
        return fit_log(name, read_log(path), calls, facts)


def fit_log(name: str, log: EngineLog, calls: dict[str, tuple[float, float]], facts: dict[str, Any]) -> Fit:
    """Fits a profile: straight lines by least squares, none of their coefficients below zero.

    Args:
        name: Name of the profile.
        log: The engine's log.
        calls: By id of each request, when the client sent it and had its answer, monotonic seconds.
        facts: SGLang's own facts (`engine_facts`).

    Raises:
        InputError: If the log is too short.
    """
    ran = iterations(log)
    fill, decode = ran.prefill, ~ran.prefill
    if fill.sum() < _LEAST or decode.sum() < _LEAST:
        raise InputError(f"topas calibrate: the log has {fill.sum()} prefills and {decode.sum()} steps, too few to fit")
    fitted, prefill_error = _line(ran.seconds[fill], ran.tokens[fill], ran.context[fill])
    steps, step_error = _line(ran.seconds[decode], ran.requests[decode], ran.context[decode])
    typical = float(np.median(ran.seconds[decode]))
    token = max(float(fitted[1]), 1e-9)
    measured = f"measured on a running SGLang {facts.get('version')} by topas calibrate, from its own log"
    profile = EngineProfile(
        name=name,
        description=f"{facts.get('model')} on {facts.get('device')}, {measured}",
        sources={
            "*": measured,
            "load_s_per_token": "equal to prefill: there is no host tier",
            "decode_s_per_token": "median decode step",
            "reserve_ratio": RESERVATION_SOURCE,
            "call_latency_s": "from sending to the queue (10th percentile), from the last token to the answer (median)",
        },
        kv_budget_tokens=int(facts["kv"]),
        max_running_requests=int(facts["slots"]),
        prefill_base_s=float(fitted[0]),
        prefill_s_per_token=token,
        prefill_s_per_kv_token=float(fitted[2]),
        chunk_tokens=int(facts["chunk"]),
        mixed_chunk=bool(facts["mixed"]),
        step_base_s=max(float(steps[0]), 1e-9),
        step_s_per_request=float(steps[1]),
        step_s_per_kv_token=float(steps[2]),
        decode_s_per_token=max(typical, 1e-9),
        call_latency_s=_latency(log, calls),
        overlap=bool(facts["overlap"]),
        load_s_per_token=token,
        offload_s_per_token=0.0,
        **reservation(facts),
        rebuild="prefill",
        host_tier="none",
        eviction="lazy",
    )
    return Fit(profile, prefill_error, step_error, int(fill.sum()), int(decode.sum()))


def _line(seconds: NDArray[np.float64], *columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Returns base and slopes, and the mean absolute error as a share of the mean."""
    from scipy.optimize import nnls

    table = np.column_stack([np.ones_like(seconds), *columns])
    limit = np.percentile(seconds, 99.0)  # a pause of the whole machine is no batch
    found, _ = nnls(table[seconds <= limit], seconds[seconds <= limit])
    return found, float(np.mean(np.abs(table @ found - seconds)) / np.mean(seconds))


def _latency(log: EngineLog, calls: dict[str, tuple[float, float]]) -> float:
    """Returns the time that a call spends on its way to the queue and back from its last token.

    The way in counts with its tenth percentile: a slower one waited for a batch under way, which is no latency.
    """
    queued: dict[str, float] = {}
    ended: dict[str, float] = {}
    for entry in log.requests:
        (ended if entry.end else queued).setdefault(entry.id, entry.time_s)
    both = [name for name in calls if name in queued and name in ended]
    if not both:
        return 0.0
    there = np.percentile([queued[i] - calls[i][0] for i in both], 10.0)
    return float(there + np.median([calls[i][1] - ended[i] for i in both]))


async def _load(
    url: str, seconds: float, context: int | None, output: int, rng: random.Random
) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    import aiohttp

    calls: dict[str, tuple[float, float]] = {}
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        facts = await engine_facts(session)
        room = int(facts["kv"])
        longest = min(context or room // 4, room // 2)

        def tokens(count: int) -> list[int]:
            return [rng.randrange(10, 2000) for _ in range(count)]

        prefixes = [[], *(tokens(longest * (i + 1) // _PREFIXES) for i in range(_PREFIXES))]

        async def worker(deadline: float, number: int) -> None:
            while time.monotonic() < deadline:
                name = f"calibrate-{number}-{len(calls)}"
                prompt = rng.choice(prefixes) + tokens(rng.randrange(8, max(longest // 4, 9)))
                sampling = {"max_new_tokens": rng.randrange(output // 2, 3 * output // 2), "temperature": 0}
                body = {"input_ids": prompt, "sampling_params": {**sampling, "ignore_eos": True}, "rid": name}
                sent = time.monotonic()
                async with session.post("/generate", json=body) as answer:
                    await answer.read()
                calls[name] = (sent, time.monotonic())

        await asyncio.gather(worker(time.monotonic() + 2.0, -1))
        calls.clear()
        for depth in _CONCURRENCY:
            if depth <= int(facts["slots"]):
                deadline = time.monotonic() + seconds / len(_CONCURRENCY)
                await asyncio.gather(*(worker(deadline, i) for i in range(depth)))
    return facts, calls
