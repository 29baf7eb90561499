"""Whole runs: determinism, both paths, believed costs, memory, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator_cases import random_workload
from topas_env import Decision, InfeasibleDecision, InputError, Snapshot, load_profile, load_workload, simulate
from topas_env._live_snapshot import LiveSnapshots
from topas_policies import make_policy


def test_same_seed_same_bytes() -> None:
    workload = load_workload("dag-4", num_tasks=40, seed=3)
    runs = [simulate(workload, make_policy("topas"), seed=1, record=True) for _ in range(2)]
    for name in ("jct_s", "requests", "decisions", "spans", "samples", "sample_tokens"):
        first, second = (getattr(run, name) for run in runs)
        assert first.tobytes() == second.tobytes(), name
    figures = [{k: v for k, v in run.summary().items() if k != "decision_ms"} for run in runs]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("policy", ["fcfs", "spf", "topas"])
def test_compiled_and_plain_runs_are_the_same(policy: str) -> None:
    workload = load_workload("metagpt-sop", num_tasks=25, seed=2)
    fast = simulate(workload, make_policy(policy))
    slow = simulate(workload, make_policy(policy), compiled=False)
    assert fast.jct_s.tobytes() == slow.jct_s.tobytes()
    assert fast.decisions.tobytes() == slow.decisions.tobytes()


class Hold:
    """Admits nothing, ever."""

    name = "hold"

    def reset(self, *, seed: int | None = None) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(snapshot.resident, tuple(r.id for r in snapshot.requests if r.status == "running"))


def test_holding_everything_ends_by_forced_admissions() -> None:
    result = simulate(load_workload("chain-3", num_tasks=5, seed=0), Hold())
    assert result.forced_admissions == 15
    assert np.isfinite(result.jct_s).all()
    assert result.mean_batch == 1.0


class Greedy(Hold):
    """Admits everything, whether it fits or not."""

    def decide(self, snapshot: Snapshot) -> Decision:
        agents = tuple(sorted({a.name for w in snapshot.workflows for a in w.agents}))
        return Decision(agents, tuple(r.id for r in snapshot.requests))


def test_an_infeasible_decision_is_refused() -> None:
    with pytest.raises(InfeasibleDecision, match="kv_budget_tokens"):
        simulate(load_workload("chain-3", num_tasks=50, seed=0), Greedy())


def test_a_request_that_never_fits_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match="kv_budget_tokens 4000"):
        simulate(
            load_workload("chain-3", num_tasks=2),
            make_policy("fcfs"),
            profile=load_profile("toy", kv_budget_tokens=4000),
        )


def test_measured_decisions_leave_out_what_is_loaded_once() -> None:
    """The first decision is made twice and the policy is reset between, so that it decides as in any other run."""

    class Counted(type(make_policy("fcfs"))):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def reset(self, *, seed: int | None = None) -> None:
            self.calls.append(f"reset {seed}")

        def decide(self, snapshot: Snapshot) -> Decision:
            self.calls.append("decide")
            return super().decide(snapshot)

    policy = Counted()
    result = simulate(load_workload("chain-3", num_tasks=2, seed=0), policy, seed=7, decision_time_s="measured")
    assert policy.calls[:4] == ["reset 7", "decide", "reset 7", "decide"]
    assert policy.calls.count("decide") == len(result.decisions) + 1


def test_bad_decision_time() -> None:
    with pytest.raises(InputError, match="decision_time_s"):
        simulate(load_workload("chain-3", num_tasks=2), make_policy("fcfs"), decision_time_s=-1.0)


class Watch(Hold):
    """Runs another policy and keeps the snapshots."""

    def __init__(self, policy: object) -> None:
        self.inner = policy
        self.manages_prefixes = getattr(policy, "manages_prefixes", False)
        self.snapshots: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.snapshots.append(snapshot)
        return self.inner.decide(snapshot)  # type: ignore[attr-defined, no-any-return]


def test_policies_see_believed_costs_and_the_engine_has_its_own() -> None:
    workload = load_workload("chain-3", num_tasks=10, seed=0)
    watch = Watch(make_policy("fcfs"))
    wrong = load_profile("qwen2.5-32b-a100-80g", load_s_per_token=0.5, kv_budget_tokens=20_000)
    result = simulate(workload, watch, believed=wrong)
    right = load_profile("qwen2.5-32b-a100-80g")
    assert watch.snapshots[0].kv_budget_tokens == right.kv_budget_tokens
    assert result.jct_s.tolist() == simulate(workload, make_policy("fcfs")).jct_s.tolist()


@pytest.mark.parametrize(("tier", "policy", "loads"), [
    ("all", "fcfs", True), ("none", "topas", False), ("topas-only", "fcfs", False), ("topas-only", "topas", True),
])  # fmt: skip
def test_who_has_a_host_tier(tier: str, policy: str, loads: bool) -> None:
    profile = load_profile("qwen2.5-32b-a100-80g", host_tier=tier)
    watch = Watch(make_policy(policy))
    result = simulate(load_workload("chain-3", num_tasks=20, seed=0), watch, profile=profile)
    assert (result.loads > 0) == loads
    told = watch.snapshots[0].engine
    assert told.load_s_per_token == (profile.load_s_per_token if loads else profile.prefill_s_per_token)
    assert told.offload_s_per_token == (profile.offload_s_per_token if loads else 0.0)


def test_request_ids_order_as_their_ranks() -> None:
    from simulator_cases import tick
    from topas_env._core.world import POINT
    from topas_env._new_world import grow, new_world

    checked = 0
    for seed in range(30):
        workload = random_workload(seed, 9)  # ids with characters before and behind the separator
        w = new_world(workload, load_profile("toy", kv_budget_tokens=1000), tasks_capacity=16)
        names = LiveSnapshots(workload)
        for _ in range(12):
            state = tick(w)
            if state == POINT:
                rows = w.v.ready[: w.v.head[0]["n_ready"]].tolist()
                by_rank = sorted(rows, key=lambda row: w.v.requests[row]["rank"])
                assert by_rank == sorted(rows, key=lambda row: names.request_id(w, row))
                checked += len(rows) > 1
                break
            w = grow(w)
    assert checked > 5


def test_arrival_rates_of_the_past() -> None:
    watch = Watch(make_policy("fcfs"))
    workload = load_workload("chain-3", num_tasks=10, seed=0)
    simulate(workload, watch)
    for snapshot in watch.snapshots:
        seen = int((workload.trace.arrival <= snapshot.time_s).sum())
        assert snapshot.history is not None
        assert snapshot.history.arrivals_per_s == {"chain-3": seen / snapshot.time_s}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_hundred_thousand_tasks_in_a_gibibyte() -> None:
    """The peak is that of /proc: what getrusage gives starts at the size of the process that starts this one."""
    program = (
        "import re; from topas_env import load_workload, simulate; from topas_policies import make_policy;"
        "r = simulate(load_workload('chain-3', num_tasks=100_000, seed=0), make_policy('spf'));"
        "assert len(r.requests) == 300_000 and r.summary()['completed'] == 300_000;"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) * 1024 < 2**30


def test_a_clone_goes_its_own_way() -> None:
    from topas_env._core.choice import default_params, empty_choice
    from topas_env._core.codes import CODES
    from topas_env._core.run import run
    from topas_env._core.world import END, PAUSED
    from topas_env._new_world import clone, new_world

    workload = load_workload("dag-4", num_tasks=30, seed=0)
    w = new_world(workload, load_profile("qwen2.5-32b-a100-80g"), tasks_capacity=128, requests_capacity=512)
    choice = empty_choice(len(w.agents), len(w.v.requests))
    params = default_params()
    assert run(w, CODES["fcfs"], params, choice, 40) == PAUSED
    copy = clone(w)
    assert run(copy, CODES["spf"], params, choice, 10**6) == END
    assert np.isnan(w.jct).any()
    assert run(w, CODES["fcfs"], params, choice, 10**6) == END
    assert w.jct.tolist() == simulate(workload, make_policy("fcfs")).jct_s.tolist()
    assert copy.jct.tolist() != w.jct.tolist()


def test_spans_and_samples_of_a_recorded_run() -> None:
    workload = load_workload("dag-4", num_tasks=30, seed=0)
    result = simulate(workload, make_policy("topas"), record=True)
    spans, calls = result.spans, result.requests
    assert len(spans) == len(calls) + result.preemptions + result.retractions
    done = spans[spans["lost"] == 0]
    assert sorted(done["call"].tolist()) == list(range(len(calls)))
    assert calls["finish_s"][done["call"]].tolist() == done["end"].tolist()
    assert calls["readmitted_s"][done["call"]].tolist() == done["start"].tolist()
    assert (spans["start"] < spans["end"]).all()
    samples = result.samples
    assert (np.diff(samples["time"]) >= 0).all()
    assert (samples["used"] == result.sample_tokens.sum(axis=(1, 2)) + samples["leaves"]).all()
    assert simulate(workload, make_policy("topas")).jct_s.tolist() == result.jct_s.tolist()
