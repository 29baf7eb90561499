"""Policies that misbehave on purpose. They are registered when this module is imported, for tests alone."""

import random
import time
from typing import Any, cast

from topas_env import Decision, Snapshot
from topas_policies import make_policy, policy_names, register_policy

__all__ = ["CORRUPT", "HOSTILE", "register_chaos"]

CORRUPT = "corrupt"
"""A request of an agent of this name makes `chaos-preempt` damage the KV cache."""


class _Chaos:
    """A policy with a random generator of its own; its decisions are feasible unless said otherwise."""

    name = "chaos"

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._base = make_policy("fcfs")

    def reset(self, *, seed: int | None = None) -> None:
        """Starts again."""
        if seed is not None:
            self._random.seed(seed)


class RandomPreempt(_Chaos):
    """Preempts at random, admits at random in random order, keeps or drops prefixes at random."""

    name = "chaos-preempt"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns a random feasible state."""
        if any(task.workflow == f"-{CORRUPT}" for task in snapshot.tasks):
            _corrupt_kv()
        keep = [r for r in snapshot.requests if r.status == "running" and self._random.random() < 0.7]
        return _fill(snapshot, keep, self._random)


class PreemptAll(_Chaos):
    """Gives up everything that runs at each event and admits what waits."""

    name = "chaos-all"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns a state without any running request."""
        return _fill(snapshot, [], self._random)


class Raises(_Chaos):
    """Raises at random."""

    name = "chaos-raise"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the decision of fcfs or raises."""
        if self._random.random() < 0.4:
            raise ArithmeticError("on purpose")
        decision: Decision = self._base.decide(snapshot)
        return decision


class Infeasible(_Chaos):
    """Answers infeasibly or with nonsense at random."""

    name = "chaos-infeasible"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the decision of fcfs, one that breaks a constraint, or none at all."""
        draw = self._random.random()
        good: Decision = self._base.decide(snapshot)
        if draw < 0.15:
            return Decision(good.prefixes, (*good.requests, "nobody"))
        if draw < 0.3:
            return Decision((), tuple(request.id for request in snapshot.requests))
        if draw < 0.4:
            good = cast("Decision", "admit all")
        return good


class Sleeps(_Chaos):
    """Takes too long at random."""

    name = "chaos-sleep"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the decision of fcfs, sometimes late."""
        if self._random.random() < 0.1:
            time.sleep(0.05)
        decision: Decision = self._base.decide(snapshot)
        return decision


class HoldsAll(_Chaos):
    """Never admits anything."""

    name = "chaos-hold"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Keeps what runs."""
        running = tuple(request.id for request in snapshot.requests if request.status == "running")
        return Decision(snapshot.resident, running)


class Rotates(_Chaos):
    """Lets every policy of the registry decide in turn, and a random one that preempts between them."""

    name = "chaos-rotate"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        names = [name for name in policy_names() if not name.startswith(("chaos", "rollout", "tuned", "learned"))]
        self._policies = [make_policy(name) for name in names] + [RandomPreempt(seed)]
        self._asked = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the decision of the policy whose turn it is; the first time all are asked and compiled."""
        if self._asked == 0:
            for policy in self._policies:
                policy.decide(snapshot)
        self._asked += 1
        decision: Decision = self._policies[self._asked // 3 % len(self._policies)].decide(snapshot)
        return decision


class Everything(_Chaos):
    """Is each of the hostile policies in turn, at random."""

    name = "chaos-everything"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        kinds = (RandomPreempt, RandomPreempt, PreemptAll, Raises, Infeasible, Sleeps, HoldsAll)
        self._policies = [kind(seed) for kind in kinds]

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns what one of them answers, or raises what it raises."""
        decision: Decision = self._random.choice(self._policies).decide(snapshot)
        return decision


HOSTILE = (Everything, RandomPreempt, PreemptAll, Raises, Infeasible, Sleeps, HoldsAll, Rotates)


def _corrupt_kv() -> None:
    """Overwrites the KV of one prompt token of each running request, once, to prove that a comparison would notice."""
    from topas_bridge._hooks import bridges

    for bridge in bridges():
        scheduler: Any = bridge.scheduler
        if getattr(scheduler, "topas_corrupted", False):
            continue
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        for req in scheduler.running_batch.reqs:
            row = req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx  # 0.5.18, 0.5.23
            slot = int(scheduler.req_to_token_pool.req_to_token[row, 3])
            for buffer in (*pool.k_buffer, *pool.v_buffer):
                buffer[slot] += 5.0
            scheduler.topas_corrupted = True


def _fill(snapshot: Snapshot, keep: list[Any], generator: random.Random) -> Decision:
    """Adds ready requests in random order while they fit, on the prefixes of what is chosen and some idle ones."""
    agents = {agent.name: agent.prefix_tokens for w in snapshot.workflows for agent in w.agents}
    stage_agent = {(w.name, stage.name): stage.agent for w in snapshot.workflows for stage in w.stages}
    workflow = {task.id: task.workflow for task in snapshot.tasks}

    def agent_of(request: Any) -> str:
        return stage_agent[workflow[request.task], request.stage]

    def cost(requests: list[Any], prefixes: set[str]) -> int:
        return sum(agents[name] for name in prefixes) + sum(snapshot.reserved_tokens(r) for r in requests)

    chosen = list(keep)
    prefixes = {agent_of(request) for request in chosen}
    if cost(chosen, prefixes) > snapshot.kv_budget_tokens:
        chosen, prefixes = [], set()
    ready = [request for request in snapshot.requests if request.status == "ready"]
    generator.shuffle(ready)
    for request in ready:
        more, wider = [*chosen, request], prefixes | {agent_of(request)}
        if len(more) <= snapshot.max_running_requests and cost(more, wider) <= snapshot.kv_budget_tokens:
            chosen, prefixes = more, wider
    for name in sorted(snapshot.resident):
        if generator.random() < 0.5 and cost(chosen, prefixes | {name}) <= snapshot.kv_budget_tokens:
            prefixes = prefixes | {name}
    return Decision(tuple(sorted(prefixes)), tuple(request.id for request in chosen))


def register_chaos() -> None:
    """Registers all of them."""
    for policy in HOSTILE:
        register_policy(policy.name, policy, replace=True)


register_chaos()
