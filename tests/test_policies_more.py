"""The policies of the literature: each rule by hand on small snapshots, and whole runs of all."""

from typing import Any

import numpy as np
import pytest

from reference.random_snapshots import random_snapshot
from topas_env import Snapshot, check_decision, load_workload, simulate
from topas_policies import make_policy
from topas_policies._more_orders import HRRN

NAMES = ["kvflow", "continuum", "infercept", "plas", "atlas", "lpm-bounded", "hrrn"]
PROFILE = "qwen2.5-32b-a100-80g"

# One engine for all cases: 1,000 tokens, chain A -> B -> C with prefixes of 100, 200 and 300 tokens; a token of prefix
# takes 0.01 s to load and as much to release, prefill 0.1 s a token. A request reserves suffix + max_new = 20 tokens.
CHAIN = {
    "name": "w",
    "agents": [{"name": a, "prefix_tokens": t} for a, t in (("A", 100), ("B", 200), ("C", 300))],
    "stages": [
        {"name": "a", "agent": "A", "after": []},
        {"name": "b", "agent": "B", "after": ["a"]},
        {"name": "c", "agent": "C", "after": ["b"]},
    ],
}


def task(name: str, arrival: float, stages: dict[str, tuple[str, float]]) -> dict[str, Any]:
    listed = [{"name": s, "status": status, "service_s": service} for s, (status, service) in stages.items()]
    return {"id": name, "workflow": "w", "arrival_s": arrival, "stages": listed}


def request(name: str, stage: str, ready: float, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{name}-{stage}", "task": name, "stage": stage, "status": "ready", "ready_s": ready, "admitted_s": None,
        "suffix_tokens": 10, "cached_tokens": 0, "generated_tokens": 0, "max_new_tokens": 10,
        "admission_credit_s": 0.0, **more,
    }  # fmt: skip


def snapshot(tasks: list[Any], requests: list[Any], **more: Any) -> Snapshot:
    engine = {
        "prefill_base_s": 0.0, "prefill_s_per_token": 0.1, "decode_s_per_token": 1.0, "load_s_per_token": 0.01,
        "offload_s_per_token": 0.01, "rebuild_s_per_token": 1.0, "reserve_ratio": 1.0, "reserve_cap_tokens": None,
    }  # fmt: skip
    plain = {
        "version": 1, "time_s": 100.0, "kv_budget_tokens": 1000, "max_running_requests": 8, "engine": engine,
        "age_scale_s": 16.0, "workflows": [CHAIN], "service": [], "resident": [], "cached": [], "tasks": tasks,
        "requests": requests, **more,
    }  # fmt: skip
    return Snapshot.from_dict(plain)


FRESH = {"a": ("ready", 0.0), "b": ("waiting", 0.0), "c": ("waiting", 0.0)}


def test_kvflow_keeps_the_prefixes_that_are_needed_soonest() -> None:
    """Ready a: A is admitted. B is 1 step away and fetched, C is 2 steps away and not, unless it is in memory."""
    tasks, requests = [task("t", 90.0, FRESH)], [request("t", "a", 90.0)]
    assert make_policy("kvflow").decide(snapshot(tasks, requests)).prefixes == ("A", "B")
    cached = [{"agent": "C", "last_used_s": 50.0}]
    assert make_policy("kvflow").decide(snapshot(tasks, requests, cached=cached)).prefixes == ("A", "B", "C")
    assert make_policy("kvflow", horizon=0).decide(snapshot(tasks, requests)).prefixes == ("A",)
    # 400 tokens hold A, its request (20) and B, not C as well; 300 tokens hold A and the request only.
    small = snapshot(tasks, requests, cached=cached, kv_budget_tokens=400)
    assert make_policy("kvflow").decide(small).prefixes == ("A", "B")
    assert make_policy("kvflow").decide(snapshot(tasks, requests, kv_budget_tokens=300)).prefixes == ("A",)


def test_kvflow_passes_over_a_request_whose_prefix_is_not_there() -> None:
    later = {"a": ("done", 5.0), "b": ("ready", 0.0), "c": ("waiting", 0.0)}
    tasks = [task("t", 90.0, FRESH), task("u", 80.0, later)]
    requests = [request("t", "a", 91.0), request("u", "b", 90.0)]
    there = snapshot(tasks, requests, resident=["A"], kv_budget_tokens=400)
    assert make_policy("kvflow").decide(there).requests == ("t-a", "u-b")
    assert make_policy("fcfs").decide(there).requests == ("u-b", "t-a")


def waits(now: float, **more: Any) -> Snapshot:
    """Task t waits for the tool of its stage b; task u is ready at a, and A with its request needs 120 tokens."""
    tool = {"a": ("done", 5.0), "b": ("tool", 4.0), "c": ("waiting", 0.0)}
    tasks = [task("t", 50.0, tool), task("u", 99.0, FRESH)]
    return snapshot(tasks, [request("u", "a", 99.0)], time_s=now, resident=["B"], **more)


def test_continuum_pins_for_a_time_to_live() -> None:
    policy = make_policy("continuum", default_ttl_s=2.0)
    assert policy.decide(waits(100.0)).prefixes == ("A", "B")  # the wait is first seen at 100
    assert policy.decide(waits(102.0)).prefixes == ("A", "B")
    assert policy.decide(waits(102.5)).prefixes == ("A",)
    policy.reset()
    assert policy.decide(waits(102.5)).prefixes == ("A", "B")  # forgotten, so the wait begins here
    # 300 tokens hold B or A with its request: nothing runs, so the pin is given up rather than the engine stopped.
    assert policy.decide(waits(103.0, kv_budget_tokens=300)).prefixes == ("A",)


def test_continuum_learns_its_time_to_live() -> None:
    """Waits of 1, 1 and 9 s; no delay observed, so a return is worth the reload, 0.01 * 200 = 2 s.

    t = 1: 2/3 * 2 - 1 = 1/3; t = 9: 2 - 9 < 0. So the time to live is 1 s.
    """
    policy = make_policy("continuum", observations=3)
    policy.decide(waits(100.0))
    key = ("w", "b")
    policy.lasted[key] = [1.0, 1.0, 9.0]
    assert policy.decide(waits(101.0)).prefixes == ("A", "B")
    assert policy.decide(waits(101.1)).prefixes == ("A",)


def test_a_tool_wait_is_measured_from_sight_to_return() -> None:
    policy = make_policy("continuum")
    policy.decide(waits(100.0))
    back = {"a": ("done", 5.0), "b": ("ready", 4.0), "c": ("waiting", 0.0)}
    policy.decide(snapshot([task("t", 50.0, back)], [request("t", "b", 101.5)], time_s=103.0))
    assert policy.lasted == {("w", "b"): [1.5]}
    assert policy.since == {}


def test_infercept_keeps_what_wastes_least() -> None:
    """Nothing runs, so to swap wastes nothing and the prefix goes once the wait has lasted; at sight it stays.

    With a running request of 1,000 tokens of memory (A 100, suffix 880, output 20) swapping wastes
    (0.01 + 0.01) * 200 * 1000 = 4,000 token-seconds, keeping 200 a second of the wait: B stays for 20 s.
    """
    policy = make_policy("infercept")
    assert policy.decide(waits(100.0)).prefixes == ("A", "B")
    assert policy.decide(waits(100.1)).prefixes == ("A",)
    policy.reset()

    def busy(now: float) -> Snapshot:
        tool = {"a": ("done", 5.0), "b": ("tool", 4.0), "c": ("waiting", 0.0)}
        runs = {**FRESH, "a": ("running", 0.0)}
        running = request(
            "u", "a", 99.0, status="running", admitted_s=99.0, suffix_tokens=880, generated_tokens=20, max_new_tokens=30
        )
        tasks = [task("t", 50.0, tool), task("u", 99.0, runs)]
        return snapshot(tasks, [running], time_s=now, resident=["A", "B"], kv_budget_tokens=2000)

    assert policy.decide(busy(100.0)).prefixes == ("A", "B")
    assert policy.decide(busy(120.0)).prefixes == ("A", "B")
    assert policy.decide(busy(120.1)).prefixes == ("A",)


def ordered(policy: Any, tasks: list[Any], requests: list[Any], **more: Any) -> tuple[str, ...]:
    return tuple(policy.decide(snapshot(tasks, requests, **more)).requests)


def test_plas_orders_by_queues_of_attained_service() -> None:
    """Queues end at 2, 4, 8, ... s (an eighth of 16). 5 + 0 s is the third queue, 3 s the second, 0 s the first."""
    tasks = [
        task("t", 90.0, {"a": ("done", 5.0), "b": ("ready", 0.0), "c": ("waiting", 0.0)}),
        task("u", 90.0, {"a": ("done", 3.0), "b": ("ready", 0.0), "c": ("waiting", 0.0)}),
        task("v", 90.0, FRESH),
    ]
    requests = [request("t", "b", 91.0), request("u", "b", 92.0), request("v", "a", 93.0)]
    plain = make_policy("plas", promotion=0.0)
    assert ordered(plain, tasks, requests) == ("v-a", "u-b", "t-b")
    # t waited 100 - 90 - 5 = 5 s, once its service; u 7 s, 2.3 times its service: with promotion 2 it joins the first
    # queue, where it came before v.
    assert ordered(make_policy("plas", promotion=2.0), tasks, requests) == ("u-b", "v-a", "t-b")
    # One queue is first come, first served.
    assert ordered(make_policy("plas", promotion=0.0, levels=1), tasks, requests) == ("t-b", "u-b", "v-a")


FORK = {
    "name": "f",
    "agents": [{"name": "A", "prefix_tokens": 100}],
    "stages": [
        {"name": "x", "agent": "A", "after": []},
        {"name": "y", "agent": "A", "after": []},
        {"name": "z", "agent": "A", "after": ["x", "y"]},
    ],
}


def test_atlas_counts_the_longest_path_and_plas_the_sum() -> None:
    """Fork x, y (3 s each) -> z: plas counts 6 s (third queue), atlas 3 s (second); u has 5 s on a chain (third)."""
    fork = [{"name": s, "status": "done", "service_s": 3.0} for s in "xy"]
    fork.append({"name": "z", "status": "ready", "service_s": 0.0})
    tasks = [
        task("u", 90.0, {"a": ("done", 5.0), "b": ("ready", 0.0), "c": ("waiting", 0.0)}),
        {"id": "t", "workflow": "f", "arrival_s": 90.0, "stages": fork},
    ]
    requests = [request("u", "b", 91.0), request("t", "z", 92.0)]
    both = {"workflows": [CHAIN, FORK]}
    assert ordered(make_policy("plas", promotion=0.0), tasks, requests, **both) == ("u-b", "t-z")
    assert ordered(make_policy("atlas", promotion=0.0), tasks, requests, **both) == ("t-z", "u-b")


def test_lpm_bounded_lets_nobody_wait_longer_than_the_bound() -> None:
    later = {"a": ("done", 5.0), "b": ("ready", 0.0), "c": ("waiting", 0.0)}
    tasks = [task("t", 60.0, FRESH), task("u", 50.0, later)]
    requests = [request("t", "a", 90.0), request("u", "b", 70.0)]
    assert ordered(make_policy("lpm-bounded", bound_s=31.0), tasks, requests, resident=["A"]) == ("t-a", "u-b")
    assert ordered(make_policy("lpm-bounded", bound_s=30.0), tasks, requests, resident=["A"]) == ("u-b", "t-a")


def test_hrrn_weighs_wait_against_work() -> None:
    """Profiles a, b, c of 10, 10 and 10 s: t has 30 s left and waits 40 s, ratio 2.33; u has 10 s left.

    u waits 10 s: ratio 2, t first. u waits 20 s: ratio 3, u first.
    """
    last = {"a": ("done", 1.0), "b": ("done", 1.0), "c": ("ready", 0.0)}
    service = [{"workflow": "w", "stage": s, "profile_s": 10.0} for s in "abc"]
    for wait, expected in ((10.0, ("t-a", "u-c")), (20.0, ("u-c", "t-a"))):
        tasks = [task("t", 60.0, FRESH), task("u", 100.0 - wait, last)]
        requests = [request("t", "a", 60.0), request("u", "c", 99.0)]
        assert ordered(make_policy("hrrn"), tasks, requests, service=service) == expected


@pytest.mark.parametrize("name", NAMES)
def test_decisions_on_random_snapshots_are_feasible(name: str) -> None:
    admitted = 0
    for seed in range(62000, 62150):
        shown = Snapshot.from_dict(random_snapshot(seed))
        policy = make_policy(name)
        decision = policy.decide(shown)
        assert policy.decide(shown) == decision, seed  # seeing the same again changes nothing
        running = sum(r.status == "running" for r in shown.requests)
        admitted += len(decision.requests) - running
        if len(decision.requests) > running:
            check_decision(shown, decision)
    assert admitted > 50


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tier", ["all", "topas-only", "none"])
def test_whole_runs_end_and_repeat(name: str, tier: str) -> None:
    policy = make_policy(name)
    drawn = load_workload("metagpt-tl", num_tasks=6, seed=4)
    first = simulate(drawn, policy, profile={"base": PROFILE, "host_tier": tier}, seed=4)
    again = simulate(drawn, policy, profile={"base": PROFILE, "host_tier": tier}, seed=4)
    assert np.isfinite(first.jct_s).all()
    assert first.preemptions == 0
    assert first.jct_s.tobytes() == again.jct_s.tobytes()


def test_topas_keep_preempts_nothing_and_is_topas_where_topas_preempts_nothing() -> None:
    kept = preempted = 0
    for seed in range(63000, 63200):
        shown = Snapshot.from_dict(random_snapshot(seed))
        running = {r.id for r in shown.requests if r.status == "running"}
        decision, free = make_policy("topas-keep").decide(shown), make_policy("topas").decide(shown)
        if running <= set(free.requests):
            assert decision == free, seed
            kept += bool(running)
        else:
            assert running <= set(decision.requests) or not fits(shown, running), seed
            preempted += 1
    assert kept > 20
    assert preempted > 20


@pytest.mark.parametrize("name", ["hrrn", "plas", "atlas", "lpm-bounded"])
@pytest.mark.parametrize(("workload", "rate"), [("dag-10-wide", 0.5), ("metagpt-tl", 0.05)])
def test_orders_on_arrays_are_those_on_snapshots(name: str, workload: str, rate: float) -> None:
    """To the bit; the many ready requests of dag-10-wide are past the number at which lpm gives up."""
    drawn = load_workload(workload, num_tasks=60, arrival_rate=rate, seed=4)
    fast, slow = (simulate(drawn, make_policy(name), seed=4, compiled=way) for way in (True, False))
    assert fast.decisions.tobytes() == slow.decisions.tobytes()
    assert fast.jct_s.tobytes() == slow.jct_s.tobytes()
    if name == "lpm-bounded" and workload == "dag-10-wide":
        assert fast.decisions["ready"].max() > 128
        assert fast.decisions["ready"].min() < 16


def test_a_policy_derived_from_an_order_keeps_its_own() -> None:
    class LastCome(HRRN):
        def order(self, lookup: Any) -> Any:
            return super().order(lookup)[::-1]

    assert hasattr(make_policy("hrrn"), "decide_view")
    assert not hasattr(LastCome(), "decide_view")


@pytest.mark.parametrize("workload", ["dag-4", "metagpt-tl"])
def test_topas_keep_on_arrays_decides_as_on_snapshots(workload: str) -> None:
    """To the bit; point estimates have no path on arrays."""
    drawn = load_workload(workload, num_tasks=15, seed=4)
    fast, slow = (simulate(drawn, make_policy("topas-keep"), seed=4, compiled=way) for way in (True, False))
    assert fast.jct_s.tobytes() == slow.jct_s.tobytes()
    assert fast.decisions.tobytes() == slow.decisions.tobytes()
    assert not hasattr(make_policy("topas-keep", estimates="point"), "decide_view")


def fits(shown: Snapshot, running: set[str]) -> bool:
    """Whether what runs is within the budget, so that it can go on beside something new."""
    size = {a.name: a.prefix_tokens for w in shown.workflows for a in w.agents}
    agent = {(w.name, s.name): s.agent for w in shown.workflows for s in w.stages}
    flow = {t.id: t.workflow for t in shown.tasks}
    kept = [r for r in shown.requests if r.id in running]
    held = sum(size[a] for a in {agent[flow[r.task], r.stage] for r in kept})
    return held + sum(shown.reserved_tokens(r) for r in kept) <= shown.kv_budget_tokens
