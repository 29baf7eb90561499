"""What a call costs beside prefill and decode: attention over cached context, the way to the client, overlap."""

import numpy as np
import pytest

from topas_env import InputError, load_profile, load_workload, simulate
from topas_env._result import SimulationResult
from topas_policies import make_policy

ENGINE: dict[str, object] = {
    "prefill_base_s": 0.01,
    "prefill_s_per_token": 1e-4,
    "step_base_s": 0.004,
    "step_s_per_request": 0.0,
    "step_s_per_kv_token": 0.0,
    "host_tier": "none",
    "kv_budget_tokens": 100_000,
    "reserve_ratio": 0.0,
}


def serve(**more: object) -> SimulationResult:
    """One chain of three calls, alone on an engine without anything that batches could change."""
    workload = load_workload("chain-3", num_tasks=1, seed=0)
    return simulate(workload, make_policy("fcfs"), profile=load_profile("toy", **ENGINE, **more))


def test_latency_is_added_once_a_call() -> None:
    plain, late = serve(), serve(call_latency_s=0.5)
    assert late.jct_s[0] == pytest.approx(plain.jct_s[0] + 3 * 0.5, rel=1e-12)


def test_overlap_costs_one_decode_step_a_call_and_no_token() -> None:
    plain, ahead = serve(), serve(overlap=True)
    assert ahead.jct_s[0] == pytest.approx(plain.jct_s[0] + 3 * 0.004, rel=1e-12)


def test_a_call_that_uses_all_it_asked_for_ends_in_time() -> None:
    workload = load_workload("chain-3", num_tasks=1, seed=0)
    workload.trace.calls["max_new"][:] = workload.trace.calls["output"]
    engine = load_profile("toy", **ENGINE)
    times = [
        simulate(workload, make_policy("fcfs"), profile=p).jct_s[0]
        for p in (engine, load_profile(engine, overlap=True))
    ]
    assert times[0] == times[1]


def test_prefill_reads_the_whole_context() -> None:
    workload = load_workload("chain-3", num_tasks=1, seed=0)
    prefix = sum(agent.prefix_tokens for agent in workload.workflows[0].agents)
    context = prefix + int(workload.trace.calls["suffix"].sum())
    plain, slow = serve(chunk_tokens=50_000), serve(chunk_tokens=50_000, prefill_s_per_kv_token=1e-5)
    assert slow.jct_s[0] == pytest.approx(plain.jct_s[0] + 1e-5 * context, rel=1e-9)


def test_a_later_chunk_reads_the_earlier_ones_again() -> None:
    workload = load_workload("chain-3", num_tasks=1, seed=0)
    prefixes = np.array([agent.prefix_tokens for agent in workload.workflows[0].agents])
    total = prefixes + workload.trace.calls["suffix"]
    chunk = 1000
    read = sum(min(chunk * (k + 1), n) for n in total.tolist() for k in range(-(-n // chunk)))
    plain, slow = serve(chunk_tokens=chunk), serve(chunk_tokens=chunk, prefill_s_per_kv_token=1e-5)
    assert slow.jct_s[0] == pytest.approx(plain.jct_s[0] + 1e-5 * read, rel=1e-9)


def test_profiles_without_them_are_written_as_before() -> None:
    engine = load_profile("toy")
    assert not {"call_latency_s", "overlap", "prefill_s_per_kv_token"} & engine.to_dict().keys()
    changed = load_profile(engine, call_latency_s=0.25, overlap=True, prefill_s_per_kv_token=1e-6)
    assert load_profile(changed.to_dict()) == changed
    with pytest.raises(InputError, match=r"\$.call_latency_s.*-1"):
        load_profile("toy", call_latency_s=-1.0)
