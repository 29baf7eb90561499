"""The simulator's invariants hold after every iteration, for random workloads, engines and feasible decisions."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator_cases import random_profile, random_workload, walk
from topas_env import EngineProfile, Workload, load_profile
from topas_env._simulate import bound_s
from topas_env._utilisation import most_tokens

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@SETTINGS
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 10**6), st.sampled_from([0.0, 0.7]))
def test_invariants(seed: int, tasks: int, engine: int, decision_s: float) -> None:
    workload = random_workload(seed, tasks)
    profile = random_profile(engine, workload)
    w = walk(workload, profile, seed, decision_s=decision_s, record=2)
    # Nothing beats the critical path alone with resident prefixes.
    assert (w.jct >= bound_s(workload, profile) * (1 - 1e-9)).all()


def moving(seed: int, workload: Workload, **more: Any) -> EngineProfile:
    """A random engine whose reservation moves, with the room that it may come to ask for."""
    profile = random_profile(seed, workload, reserve_decay_steps=30, **more)
    least = int(most_tokens(workload, profile).max()) + 1
    return load_profile(profile, kv_budget_tokens=max(profile.kv_budget_tokens, least))


@SETTINGS
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 10**6), st.sampled_from(["fcfs", "lpm"]), st.booleans())
def test_invariants_of_sglangs_own_pass(seed: int, tasks: int, engine: int, order: str, overlap: bool) -> None:
    workload = random_workload(seed, tasks)
    walk(workload, moving(engine, workload, overlap=overlap), seed, record=2, sglang_order=order)


@SETTINGS
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 10**6), st.booleans())
def test_invariants_behind_sglangs_checks(seed: int, tasks: int, engine: int, overlap: bool) -> None:
    workload = random_workload(seed, tasks)
    walk(workload, moving(engine, workload, admission="sglang", overlap=overlap), seed, record=2)


def test_the_walk_meets_every_case() -> None:
    """The random runs are worth something only if they preempt, retract, force, load, compute and evict."""
    seen = dict.fromkeys(("preemptions", "retractions", "forced", "loads", "computes", "evictions"), 0)
    cached = 0
    for seed in range(40):
        workload = random_workload(seed, 8)
        w = walk(workload, random_profile(seed + 1, workload), seed)
        for name in seen:
            seen[name] += int(w.clock[0][name])
        cached += int(w.results["cached"].sum())
    assert min(seen.values()) > 0, seen
    assert cached > 0


def test_retracted_work_is_done_again() -> None:
    """Without a reservation and with room for 1.5 requests, memory takes the newest request's place."""
    workload = random_workload(3, 9)
    profile = random_profile(
        5, workload, reserve_ratio=0.0, max_running_requests=64, eviction="eager", host_tier="none"
    )
    w = walk(workload, profile, 1)
    assert w.clock[0]["retractions"] > 0
    assert (w.results["retractions"].sum()) == w.clock[0]["retractions"]
