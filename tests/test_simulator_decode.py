"""Decode in closed form against one step after the other."""

import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topas_env import load_profile, load_workload, simulate
from topas_env._core.decode import steps_time, steps_until
from topas_policies import make_policy


@numba.njit
def closed(first: float, growth: float, k: float, seconds: float) -> tuple[float, float]:
    return steps_time(first, growth, k), steps_until(first, growth, seconds)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(1e-4, 1.0), st.sampled_from([0.0, 1e-7, 1e-4, 0.01]), st.integers(1, 2000), st.floats(0.0, 50.0))
def test_steps(first: float, growth: float, k: int, seconds: float) -> None:
    total = math.fsum(first + growth * i for i in range(k))
    time, until = closed(first, growth, float(k), seconds)
    assert math.isclose(time, total, rel_tol=1e-12)
    passed, steps = 0.0, 0
    while passed < seconds and steps < 100_000:
        passed += first + growth * steps
        steps += 1
    if steps < 100_000:
        # The naive sum may round to the other side of the event by itself.
        assert until == pytest.approx(max(steps, 1), abs=1 if math.isclose(passed, seconds, rel_tol=1e-9) else 0) or (
            abs(until - steps) == 1
            and math.isclose(closed(first, growth, min(until, steps), 1.0)[0], seconds, rel_tol=1e-9)
        )


def naive(outputs: list[int], suffixes: list[int], prefix: int, engine: dict[str, float]) -> list[float]:
    """Completion times of requests that start together: one prefill, then one token of each at a time."""
    time = engine["prefill_base_s"] + engine["prefill_s_per_token"] * (prefix + sum(suffixes))
    made = [1] * len(outputs)
    finish = [time if output == 1 else math.nan for output in outputs]
    while True:
        active = [i for i, output in enumerate(outputs) if made[i] < output]
        if not active:
            return finish
        context = sum(prefix + suffixes[i] + made[i] for i in active)
        time += engine["step_base_s"] + engine["step_s_per_request"] * len(active)
        time += engine["step_s_per_kv_token"] * context
        for i in active:
            made[i] += 1
            if made[i] == outputs[i]:
                finish[i] = time


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_ends_as_token_by_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.integers(1, 400, 12).tolist()
    suffixes = rng.integers(1, 90, 12).tolist()
    engine = {"prefill_base_s": 0.02, "prefill_s_per_token": 2e-4, "step_base_s": 0.045, "step_s_per_request": 1e-4,
              "step_s_per_kv_token": 2.6e-7}  # fmt: skip
    workload = load_workload({
        "version": 1, "name": "batch",
        "workflows": [{"name": "w", "agents": [{"name": "A", "prefix_tokens": 700}],
                       "stages": [{"name": "s", "agent": "A", "after": []}]}],
        "tasks": [
            {"id": f"t{k}", "workflow": "w", "arrival_s": 0.0,
             "stages": [{"name": "s", "calls": [{"suffix_tokens": suffix, "history_tokens": 0, "output_tokens": output,
                                                 "max_new_tokens": output, "tool_s": 0.0}]}]}
            for k, (suffix, output) in enumerate(zip(suffixes, outputs, strict=True))
        ],
    })  # fmt: skip
    profile = load_profile("toy", kv_budget_tokens=100_000, max_running_requests=100, chunk_tokens=100_000, **engine)
    result = simulate(workload, make_policy("fcfs"), profile=profile)
    np.testing.assert_allclose(result.jct_s, naive(outputs, suffixes, 700, engine), rtol=1e-12)
    assert int(result.world.itl.sum()) == sum(outputs) - len(outputs)
