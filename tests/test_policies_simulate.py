"""Policies in the simulator: a user's own, and the plain path of each that ships beside its compiled one."""

from typing import Any

import numpy as np
import pytest

from reference.topas_reference import decide
from topas_env import Decision, Snapshot, load_workload, simulate
from topas_policies import Policy, Topas, make_policy, policy_names

PROFILE = "qwen2.5-32b-a100-80g"


class ShortestFirst(Policy):
    """The request that asks for the fewest tokens goes first; nothing is preempted, no idle prefix kept."""

    name = "shortest-first"

    def decide(self, snapshot: Snapshot) -> Decision:
        agent = {(w.name, s.name): s.agent for w in snapshot.workflows for s in w.stages}
        size = {a.name: a.prefix_tokens for w in snapshot.workflows for a in w.agents}
        workflow = {task.id: task.workflow for task in snapshot.tasks}
        chosen, prefixes, held = [], set(), 0
        for r in sorted(snapshot.requests, key=lambda r: (r.status == "ready", r.max_new_tokens)):
            name = agent[workflow[r.task], r.stage]
            need = snapshot.reserved_tokens(r) + (0 if name in prefixes else size[name])
            fits = held + need <= snapshot.kv_budget_tokens and len(chosen) < snapshot.max_running_requests
            if r.status == "running" or fits:
                chosen.append(r)
                prefixes.add(name)
                held += need
        order = {r.id: i for i, r in enumerate(snapshot.requests)}
        going_on = sorted((r.id for r in chosen if r.status == "running"), key=order.__getitem__)
        return Decision(tuple(sorted(prefixes)), (*going_on, *(r.id for r in chosen if r.status == "ready")))


class Duck:
    """Not a `Policy`, but has what one needs: first come, first served, one request at a time."""

    name = "duck"

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None) -> None:
        self.seeds.append(seed)

    def decide(self, snapshot: Snapshot) -> Decision:
        one = make_policy("fcfs").decide(snapshot)
        if any(r.status == "running" for r in snapshot.requests) or not one.requests:
            return Decision(tuple(sorted({*one.prefixes} & {*snapshot.resident})), running(snapshot))
        first = min(snapshot.requests, key=lambda r: (r.ready_s, r.id))
        agent = next(a for a in one.prefixes if runs(snapshot, first) == a)
        return Decision((agent,), (first.id,))


def running(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(r.id for r in snapshot.requests if r.status == "running")


def runs(snapshot: Snapshot, request: Any) -> str:
    task = next(t for t in snapshot.tasks if t.id == request.task)
    workflow = next(w for w in snapshot.workflows if w.name == task.workflow)
    return next(s.agent for s in workflow.stages if s.name == request.stage)


@pytest.mark.parametrize("make", [ShortestFirst, Duck])
def test_a_policy_of_a_users_own_runs(make: Any) -> None:
    policy = make()
    workload = load_workload("chain-3", arrival_rate=0.10, num_tasks=30, seed=1)
    result = simulate(workload, policy, profile=PROFILE, seed=1)
    assert result.jct_s.shape == (30,)
    assert np.isfinite(result.jct_s).all()
    assert (result.jct_s > 0).all()
    if isinstance(policy, Duck):
        assert len(policy.seeds) == 1


@pytest.mark.parametrize("name", policy_names()[:13])
@pytest.mark.parametrize("workload", ["dag-4", "metagpt-sop"])
def test_plain_and_compiled_paths_give_the_same_run(name: str, workload: str) -> None:
    """Every decision of a run is the same, so every completion is: bit for bit."""
    drawn = load_workload(workload, num_tasks=25, seed=2)
    compiled = simulate(drawn, make_policy(name), profile=PROFILE, seed=2)
    plain = simulate(drawn, make_policy(name), profile=PROFILE, seed=2, compiled=False)
    assert compiled.jct_s.tobytes() == plain.jct_s.tobytes()


class Reference:
    """TOPAS by the plain reading; it also checks what the simulator tells of its own earlier decisions."""

    name = "reference"
    manages_prefixes = True

    def __init__(self) -> None:
        self.credits: dict[str, float] = {}
        self.prefixes: tuple[str, ...] = ()
        self.decisions = self.preempted = 0

    def reset(self, *, seed: int | None = None) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        data = snapshot.to_dict()
        Snapshot.from_dict(data)  # what the simulator hands out keeps every rule of SNAPSHOT.md
        for r in data["requests"]:
            if r["status"] == "running":
                # The credit is the request's own summand of admit at its last admission.
                assert r["admission_credit_s"] == pytest.approx(self.credits[r["id"]], rel=1e-9, abs=1e-9)
        assert set(data["resident"]) <= set(self.prefixes)
        chosen = decide(data).chosen
        assert chosen is not None
        self.credits.update(zip(chosen.admitted, chosen.credits, strict=True))
        self.prefixes = chosen.prefixes
        self.decisions += 1
        self.preempted += len(chosen.preempted)
        return Decision(chosen.prefixes, chosen.requests)


@pytest.mark.parametrize(("workload", "tasks"), [("dag-4", 15), ("dag-10-wide", 6), ("metagpt-sop", 12)])
def test_the_plain_reading_of_the_specification_gives_the_same_run(workload: str, tasks: int) -> None:
    """The whole loop of snapshot, decision, credits and statistics is that of the compiled path."""
    drawn = load_workload(workload, num_tasks=tasks, seed=3)
    reference = Reference()
    plain = simulate(drawn, reference, profile=PROFILE, seed=3)
    compiled = simulate(drawn, make_policy("topas"), profile=PROFILE, seed=3)
    assert reference.decisions > 3 * tasks
    assert compiled.jct_s.tobytes() == plain.jct_s.tobytes()
    assert compiled.preemptions == plain.preemptions == reference.preempted


def test_a_policy_is_credited_by_its_own_rho():
    """Without a compiled path the simulator scores decisions for credits: by the policy's rho, where it has one."""
    seen = {}

    class Watch(Topas):
        def decide(self, snapshot):
            seen.setdefault(self.rho, []).extend(
                r.admission_credit_s for r in snapshot.requests if r.status == "running"
            )
            return super().decide(snapshot)

    for rho in (0.0, 4.0):
        simulate(load_workload("chain-3", num_tasks=12, seed=3), Watch(beta=0.0, rho=rho))
    assert max(seen[4.0]) > 1.5 * max(seen[0.0]) > 0.0
