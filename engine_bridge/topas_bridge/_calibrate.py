"""`topas calibrate`: the speed of a live engine, measured from outside, as an engine profile."""

import asyncio
import random
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from topas_env import EngineProfile
from topas_env._errors import InputError

__all__ = ["RESERVATION_SOURCE", "Measurements", "calibrate", "engine_facts", "fit_profile", "reservation"]

RESERVATION_SOURCE = "SGLang's new-token ratio: 0.7 times --schedule-conservativeness, falls to 0.14 of it in 600 steps"


class Measurements(NamedTuple):
    """What was measured.

    Attributes:
        prefill: Pairs of prompt tokens and seconds until the first token, one request alone.
        steps: Triples of requests in the batch, their context tokens in all, and seconds a decode step.
        engine: SGLang's own facts: KV pool, slots, chunk size.
    """

    prefill: list[tuple[int, float]]
    steps: list[tuple[int, int, float]]
    engine: dict[str, Any]


def calibrate(
    url: str,
    *,
    name: str,
    api_key: str | None = None,
    repeats: int = 5,
    prompts: tuple[int, ...] = (32, 64, 128, 256, 512, 1024),
    batches: tuple[int, ...] = (1, 2, 4, 8, 16),
    contexts: tuple[int, ...] = (32, 256),
    output: int = 48,
    seed: int = 0,
) -> tuple[EngineProfile, Measurements]:
    """Measures an idle SGLang server and fits a profile.

    Args:
        url: Address of the server.
        name: Name of the profile.
        api_key: Sent as a bearer token.
        repeats: Repeats of each measurement; the median counts.
        prompts: Prompt lengths, tokens.
        batches: Batch sizes of decode.
        contexts: Prompt lengths in decode.
        output: Output tokens in decode.
        seed: Seed of the prompts, so that another run measures other prompts.

    Raises:
        InputError: If the server does not answer as SGLang does.
    """
    import aiohttp

    try:
        measured = asyncio.run(_measure(url, api_key, repeats, prompts, batches, contexts, output, seed))
    except InputError:
        raise
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, KeyError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{url}: does not answer as a running SGLang server does: {problem}") from error
    return fit_profile(name, measured), measured


def fit_profile(name: str, measured: Measurements) -> EngineProfile:
    """Fits the profile's times: straight lines by least squares, none of them below zero."""
    from scipy.optimize import nnls

    tokens = np.array([point[0] for point in measured.prefill], float)
    seconds = np.array([point[1] for point in measured.prefill])
    (base, slope), _ = nnls(np.column_stack([np.ones_like(tokens), tokens]), seconds)
    rows = np.array([(1.0, n, total) for n, total, _ in measured.steps])
    steps = np.array([step for _, _, step in measured.steps])
    (step_base, per_request, per_token), _ = nnls(rows, steps)
    slope = max(float(slope), 1e-9)
    typical = float(np.median(steps))
    engine = measured.engine
    measured_with = f"measured on a running SGLang {engine.get('version')} by topas calibrate"
    return EngineProfile(
        name=name,
        description=f"{engine.get('model')} on {engine.get('device')}, {measured_with}",
        sources={
            "*": measured_with,
            "load_s_per_token": "equal to prefill: there is no host tier",
            "decode_s_per_token": "median decode step of the batches measured",
            "reserve_ratio": RESERVATION_SOURCE,
        },
        kv_budget_tokens=int(engine["kv"]),
        max_running_requests=int(engine["slots"]),
        prefill_base_s=float(base),
        prefill_s_per_token=slope,
        chunk_tokens=int(engine["chunk"]),
        mixed_chunk=bool(engine["mixed"]),
        step_base_s=max(float(step_base), 1e-9),
        step_s_per_request=float(per_request),
        step_s_per_kv_token=float(per_token),
        decode_s_per_token=max(typical, 1e-9),
        load_s_per_token=slope,
        offload_s_per_token=0.0,
        **reservation(engine),
        rebuild="prefill",
        host_tier="none",
        eviction="lazy",
    )


async def _measure(
    url: str,
    api_key: str | None,
    repeats: int,
    prompts: tuple[int, ...],
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    output: int,
    seed: int,
) -> Measurements:
    import aiohttp

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    generator = random.Random(seed)  # noqa: S311
    timeout = aiohttp.ClientTimeout(total=600.0)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as session:
        engine = await engine_facts(session)
        room = int(engine["kv"])

        async def send(length: int, count: int) -> tuple[float, float]:
            """Returns seconds until the answer, as the client and as the server see it."""
            tokens = [generator.randrange(10, 2000) for _ in range(length)]
            sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
            started = time.perf_counter()
            async with session.post("/generate", json={"input_ids": tokens, "sampling_params": sampling}) as answer:
                body = await answer.json()
            return time.perf_counter() - started, float(body["meta_info"]["e2e_latency"])

        for _ in range(3):
            await send(64, 8)
        prefill = []
        for length in prompts:
            if length + 2 <= room:
                seen = [(await send(length, 1))[0] for _ in range(repeats)]
                prefill.append((length, statistics.median(seen)))
        steps = []
        for batch in batches:
            for context in contexts:
                if batch * (context + output) > 0.9 * room or batch > int(engine["slots"]):
                    continue
                found = [await _step(send, batch, context, output) for _ in range(repeats)]
                steps.append((batch, batch * (context + output // 2), statistics.median(found)))
    if len(prefill) < 2 or len(steps) < 3:
        raise InputError(f"{url}: a KV pool of {room} tokens is too small to measure on")
    return Measurements(prefill, steps, engine)


async def _step(send: Any, batch: int, context: int, output: int) -> float:
    """Returns the time of a decode step: what longer outputs take more than short ones."""
    short = max(output // 4, 1)

    async def run(count: int) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(send(context, count) for _ in range(batch)))
        return time.perf_counter() - started

    return max((await run(output) - await run(short)) / (output - short), 1e-9)


def reservation(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a profile that say how SGLang admits and what it reserves, from `engine_facts`."""
    first = min(0.7 * float(facts["conservativeness"]), 1.0)
    return {
        "admission": "sglang",
        "reserve_ratio": first,
        "reserve_min_ratio": 0.14 * first,
        "reserve_decay_steps": 600,
        "reserve_cap_tokens": 4096,
    }


async def engine_facts(session: Any) -> dict[str, Any]:
    """Returns SGLang's own facts of a server: version, model, KV pool, slots, chunk, overlap, reservation."""
    async with session.get("/server_info") as answer:
        if answer.status != 200:
            raise InputError(f"{session._base_url}: no SGLang server: status {answer.status}")  # noqa: SLF001
        info = await answer.json()
    inner = info["internal_states"][0]
    return {
        "version": info.get("version"),
        "model": info.get("model_path"),
        "device": info.get("device"),
        "kv": inner.get("memory_usage", {}).get("token_capacity") or info.get("max_total_num_tokens"),
        "slots": inner.get("effective_max_running_requests_per_dp") or info.get("max_running_requests"),
        "chunk": info.get("chunked_prefill_size") or 8192,
        "mixed": info.get("enable_mixed_chunk") or False,
        "overlap": not info.get("disable_overlap_schedule", False),
        "conservativeness": info.get("schedule_conservativeness") or 1.0,
    }
