"""Worlds that are not what policies are told: lengths, arrivals, speeds, tags."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topas_env import EngineProfile, Snapshot, load_profile, load_workload, simulate
from topas_env._workload import Workload
from topas_env.compare import Point, RunConfig, make_suite
from topas_env.compare._execute import execute
from topas_env.compare._suite_robust import worlds
from topas_env.compare._tags import HiddenTags, pick_tasks, reversed_workflow
from topas_env.compare._worlds import scale_outputs, surge_arrivals
from topas_policies import Policy, make_policy

NOWHERE = Path("/no/such/folder")


def test_longer_outputs_lengthen_the_prompts_after_them() -> None:
    """A stage of two calls: the second repeats the first's 100 prompt tokens, its output and 30 tokens of a tool."""
    drawn = load_workload("metagpt-sop", num_tasks=40, seed=0)
    longer = scale_outputs(drawn, 1.3)
    before, after = drawn.trace.calls, longer.trace.calls
    assert np.array_equal(after["output"], np.maximum(np.rint(1.3 * before["output"]), 1))
    assert (after["max_new"] >= after["output"]).all()
    counts = np.diff(drawn.trace.first_call)
    first = drawn.trace.first_call[:-1][counts > 1]  # of stages with a second call
    assert len(first) > 10
    grown = after["output"][first] - before["output"][first]
    assert np.array_equal(after["suffix"][first], before["suffix"][first])
    assert np.array_equal(after["suffix"][first + 1] - before["suffix"][first + 1], grown)
    assert np.array_equal(after["history"][first + 1] - before["history"][first + 1], grown)
    assert np.array_equal(scale_outputs(drawn, 1.0).trace.calls, before)


def test_a_surge_is_in_the_middle_third() -> None:
    drawn = load_workload("chain-3", num_tasks=9, seed=0)
    gaps, fast = (np.diff(w.trace.arrival, prepend=0.0) for w in (drawn, surge_arrivals(drawn, 2.0)))
    assert fast[:3] == pytest.approx(gaps[:3])
    assert fast[3:6] == pytest.approx(gaps[3:6] / 2.0)
    assert fast[6:] == pytest.approx(gaps[6:])


class Watching(Policy):
    """Decides as fcfs, and keeps what it was told."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self._fcfs = make_policy("fcfs")

    def decide(self, snapshot: Snapshot) -> Any:
        self.seen.append(snapshot)
        return self._fcfs.decide(snapshot)


def told(point: Point, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Returns the first snapshot of a run at a point."""
    from topas_env.compare import _execute

    policy = Watching()
    monkeypatch.setattr(_execute, "_policy", lambda _config: policy)
    execute(RunConfig(point, "fcfs", {}, 0))
    return policy.seen[0]


def test_what_policies_are_told_is_the_unperturbed_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Point("metagpt-sop", 0.15, 3, overrides={"host_tier": "all"})
    first = told(plain, monkeypatch)
    for name, point in worlds(plain).items():
        if point.untagged or point.mistagged or point.decision_time == "measured":
            continue
        seen = told(point, monkeypatch)
        assert seen.engine == first.engine, name
        assert [entry.profile_s for entry in seen.service] == [entry.profile_s for entry in first.service], name
    changed = load_profile(plain.profile, **worlds(plain)["decode time x 1.3"].overrides)
    assert changed.step_base_s == pytest.approx(1.3 * load_profile(plain.profile).step_base_s)


def test_the_engine_is_another_one() -> None:
    """A factor of 1.3 on what takes the time is seen in the completion times; on the plain point nothing is changed."""
    plain = Point("chain-3", 0.05, 12, overrides={"host_tier": "all"})
    jct = {
        name: execute(RunConfig(point, "fcfs", {}, 0))["mean_jct_s"]
        for name, point in worlds(plain).items()
        if point.decision_time != "measured"
    }
    assert jct["as told"] == simulate_plain(plain)
    for name in ("decode time", "output length", "arrival rate", "prefill time"):
        assert jct[f"{name} x 0.7"] < jct["as told"] < jct[f"{name} x 1.3"], name
    assert jct["KV budget x 1.3"] <= jct["as told"] <= jct["KV budget x 0.7"]
    assert jct["a decision takes 10 ms"] > jct["as told"]
    assert jct["a tenth without tags"] == jct["a tenth with wrong tags"] == jct["as told"]  # fcfs looks at no tag


def simulate_plain(point: Point) -> float:
    profile: EngineProfile = load_profile(point.profile, **point.overrides)
    drawn = load_workload(point.workload, num_tasks=point.num_tasks, seed=0, arrival_rate=point.arrival_rate)
    return simulate(drawn, make_policy("fcfs"), profile=profile, seed=0).mean_jct_s


def test_worlds_have_names_and_are_different() -> None:
    suite = make_suite("robust", sessions=NOWHERE)
    assert len({at.name for at in suite.points}) == len(suite.points)
    assert len({repr(at.point) for at in suite.points}) == len(suite.points)
    for at in suite.points:
        factors = [at.point.output_scale]
        plain = load_profile(at.point.profile)
        factors += [
            at.point.overrides[name] / getattr(plain, name) for name in at.point.believed if getattr(plain, name)
        ]  # type: ignore[operator]
        assert all(0.699 <= factor <= 1.301 for factor in factors), at.name


def hidden(workload: Workload, policy: Any, untagged: float, mistagged: float) -> HiddenTags:
    missing = pick_tasks(workload, untagged, 5)
    return HiddenTags(policy, workload, missing, pick_tasks(workload, mistagged, 5, besides=missing))


@pytest.mark.parametrize("name", ["dag-4", "dag-10-wide", "metagpt-sop"])
def test_disguised_snapshots_are_valid_and_show_the_same_requests(name: str) -> None:
    drawn = load_workload(name, num_tasks=15, seed=1)
    policy = Watching()
    simulate(drawn, hidden(drawn, policy, 0.3, 0.3), seed=0)
    true = Watching()
    simulate(drawn, true, seed=0)
    assert len(policy.seen) == len(true.seen) > 20
    for shown, real in zip(policy.seen, true.seen, strict=True):
        Snapshot.from_dict(shown.to_dict())
        assert [r.id for r in shown.requests] == [r.id for r in real.requests]
        assert agents_of(shown) == agents_of(real)
        assert (shown.resident, shown.cached) == (real.resident, real.cached)
    last = policy.seen[len(policy.seen) // 2]
    kinds = {task.workflow.partition(" ")[0] if "untagged" in task.workflow else task.workflow for task in last.tasks}
    assert kinds == {name, "untagged", f"{name} reversed"}


def agents_of(snapshot: Snapshot) -> list[str]:
    flows = {(flow.name, stage.name): stage.agent for flow in snapshot.workflows for stage in flow.stages}
    owner = {task.id: task.workflow for task in snapshot.tasks}
    return [flows[owner[request.task], request.stage] for request in snapshot.requests]


def test_a_share_of_the_tasks_is_picked_once() -> None:
    drawn = load_workload("dag-4", num_tasks=40, seed=1)
    missing = pick_tasks(drawn, 0.1, 5)
    wrong = pick_tasks(drawn, 0.1, 5, besides=missing)
    assert len(missing) == len(wrong) == 4
    assert not missing & wrong
    assert missing != pick_tasks(drawn, 0.1, 6)


def test_wrong_tags_are_those_of_the_reversed_workflow() -> None:
    flow = load_workload("dag-4", num_tasks=1).workflows[0]
    turned = reversed_workflow(flow)
    assert {stage.name: set(stage.after) for stage in turned.stages} == {
        "plan": {"code", "test"}, "code": {"review"}, "test": {"review"}, "review": set(),
    }  # fmt: skip
    assert reversed_workflow(turned).stages == tuple(
        replace_after(stage, next(s for s in flow.stages if s.name == stage.name).after) for stage in turned.stages
    )


def replace_after(stage: Any, after: tuple[str, ...]) -> Any:
    import msgspec

    return msgspec.structs.replace(stage, after=after)


def test_what_looks_at_tags_decides_otherwise() -> None:
    drawn = load_workload("chain-3", num_tasks=30, seed=1)
    disguised = simulate(drawn, hidden(drawn, make_policy("spf"), 0.1, 0.1), seed=0)
    assert disguised.mean_jct_s > simulate(drawn, make_policy("spf"), seed=0).mean_jct_s
    nothing = simulate(drawn, HiddenTags(make_policy("topas-keep"), drawn, set(), set()), seed=0)
    assert np.array_equal(nothing.jct_s, simulate(drawn, make_policy("topas-keep"), seed=0).jct_s)
