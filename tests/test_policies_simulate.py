"""Policies in the simulator: a user's own, and the plain path of each that ships beside its compiled one."""

from typing import Any

import numpy as np
import pytest

from topas_env import Decision, Snapshot, load_workload, simulate
from topas_policies import Policy, make_policy, policy_names

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


@pytest.mark.parametrize("name", policy_names()[:11])
@pytest.mark.parametrize("workload", ["dag-4", "metagpt-sop"])
def test_plain_and_compiled_paths_give_the_same_run(name: str, workload: str) -> None:
    """Every decision of a run is the same, so every completion is: bit for bit."""
    drawn = load_workload(workload, num_tasks=25, seed=2)
    compiled = simulate(drawn, make_policy(name), profile=PROFILE, seed=2)
    plain = simulate(drawn, make_policy(name), profile=PROFILE, seed=2, compiled=False)
    assert compiled.jct_s.tobytes() == plain.jct_s.tobytes()
