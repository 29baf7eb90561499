"""Policies of the literature that keep or fetch prefixes: KVFlow, Continuum and InferCept.

A decision says which agent prefixes are resident. So what these systems do to the KV cache of one request during a tool
wait is done here to the prefix of its agent; the request's own history stays a leaf of the reactive cache.
"""

import math
from collections.abc import Iterable

from topas_env import Decision, Snapshot
from topas_env._snapshot import RequestState, TaskState
from topas_policies._baselines import QueuePolicy, first_come
from topas_policies._lookup import Lookup
from topas_policies._parameters import count, weight

__all__ = ["Continuum", "InferCept", "KVFlow"]

_Stage = tuple[str, str]  # task and stage


class _KeepingPolicy(QueuePolicy):
    """A queue that may keep prefixes idle: some before anything is admitted, some in the room that is left then."""

    manages_prefixes = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the running requests, as much of the queue's head as fits, and what is kept for later."""
        lookup = Lookup(snapshot)
        self.observe(lookup)
        queue = self.order(lookup)
        pinned = list(dict.fromkeys(self.pins(lookup)))
        chosen, prefixes, room = self._admit(lookup, queue, pinned)
        if not chosen and pinned:  # pins alone must not stop the engine
            chosen, prefixes, room = self._admit(lookup, queue, [])
        for agent in self.spare(lookup):
            if agent not in prefixes and lookup.prefix_tokens[agent] <= room:
                prefixes.add(agent)
                room -= lookup.prefix_tokens[agent]
        return Decision(tuple(sorted(prefixes)), tuple(request.id for request in chosen))

    def observe(self, lookup: Lookup) -> None:
        """Takes note of what the snapshot shows, before anything is decided."""

    def pins(self, lookup: Lookup) -> Iterable[str]:  # noqa: ARG002
        """Returns the agents whose prefixes stay although that may delay admissions, the most valuable first."""
        return ()

    def spare(self, lookup: Lookup) -> Iterable[str]:  # noqa: ARG002
        """Returns the agents whose prefixes are kept or fetched where there is room, the most valuable first."""
        return ()

    def _admit(
        self, lookup: Lookup, queue: list[RequestState], pinned: list[str]
    ) -> tuple[list[RequestState], set[str], int]:
        """Returns what runs, what is resident, and the tokens that are left."""
        snapshot = lookup.snapshot
        chosen = list(lookup.running)
        prefixes = {lookup.agent(request) for request in chosen}
        room = snapshot.kv_budget_tokens
        room -= sum(lookup.prefix_tokens[agent] for agent in prefixes)
        room -= sum(snapshot.reserved_tokens(request) for request in chosen)
        for agent in pinned:
            if agent not in prefixes and lookup.prefix_tokens[agent] <= room:
                prefixes.add(agent)
                room -= lookup.prefix_tokens[agent]
        for request in queue:
            agent = lookup.agent(request)
            need = snapshot.reserved_tokens(request)
            need += 0 if agent in prefixes else lookup.prefix_tokens[agent]
            if need > room or len(chosen) >= snapshot.max_running_requests:
                break
            chosen.append(request)
            prefixes.add(agent)
            room -= need
        return chosen, prefixes, room


class KVFlow(_KeepingPolicy):
    """Keeps and prefetches the prefixes that the step graph needs soonest (after KVFlow).

    KVFlow (arXiv:2507.07400): every agent has its steps to execution in the workflows that are under way, the least
    over them; a stage that waits for several predecessors has the most of them plus one. What is evicted first is
    what is furthest away, prefixes that are needed next are loaded ahead, and a request whose prefix is not there yet
    is passed over. Here: the queue is first come, first served among requests whose prefix is in memory, then among
    the others; the room that admission leaves is filled with prefixes by steps to execution. Those in memory are kept
    at any distance, others are fetched up to `horizon` steps ahead.

    Args:
        horizon: Most steps to execution at which a prefix is fetched; 0 fetches for requests that are ready.
    """

    name = "kvflow"

    def __init__(self, horizon: int = 1) -> None:
        self.horizon = count("horizon", horizon, least=0)

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those whose prefix is in memory first."""
        there = _in_memory(lookup)
        return sorted(lookup.ready, key=lambda request: (lookup.agent(request) not in there, first_come(request)))

    def spare(self, lookup: Lookup) -> list[str]:
        """Returns agents by steps to execution; of equals those in memory first, then by name."""
        steps = steps_to_execution(lookup)
        there = _in_memory(lookup)
        useful = [agent for agent in steps if agent in there or steps[agent] <= self.horizon]
        return sorted(useful, key=lambda agent: (steps[agent], agent not in there, agent))


class _ToolWaits(_KeepingPolicy):
    """Remembers tool waits: since when each lasts, and how long those of each stage lasted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, *, seed: int | None = None) -> None:  # noqa: ARG002
        """Forgets all waits."""
        self.since: dict[_Stage, float] = {}
        self.lasted: dict[_Stage, list[float]] = {}
        self.first_ready: dict[_Stage, float] = {}
        self.last_wait: dict[str, float] = {}

    def observe(self, lookup: Lookup) -> None:
        """Notes which waits began and which ended; the start of a wait is the first snapshot that shows it."""
        now = lookup.snapshot.time_s
        ready_s = {(request.task, request.stage): request.ready_s for request in lookup.snapshot.requests}
        tasks = lookup.snapshot.tasks
        waiting = {(task.id, stage.name) for task in tasks for stage in task.stages if stage.status == "tool"}
        for key in [key for key in self.since if key not in waiting]:
            began = self.since.pop(key)
            if key in ready_s and key[0] in lookup.tasks:
                kind = (lookup.tasks[key[0]].workflow, key[1])
                self.lasted.setdefault(kind, []).append(max(ready_s[key] - began, 0.0))
        for key in sorted(waiting):
            self.since.setdefault(key, now)
        for request in lookup.snapshot.requests:
            self.first_ready.setdefault((request.task, request.stage), request.ready_s)
            if request.admitted_s is not None:
                self.last_wait[request.id] = request.admitted_s - request.ready_s
        self.first_ready = {key: when for key, when in self.first_ready.items() if key[0] in lookup.tasks}
        while len(self.last_wait) > 256:
            del self.last_wait[next(iter(self.last_wait))]

    def waiting_agents(self, lookup: Lookup) -> dict[str, list[_Stage]]:
        """Returns the tool waits by the agent that they will come back to."""
        by_agent: dict[str, list[_Stage]] = {}
        for task, stage in self.since:
            by_agent.setdefault(lookup.agent_of(lookup.tasks[task], stage), []).append((task, stage))
        return by_agent


class Continuum(_ToolWaits):
    """First come, first served by task; a prefix is pinned for a time to live during tool waits (after Continuum).

    Continuum (arXiv:2511.02230) pins the KV cache of a request that calls a tool for the time to live t that is worth
    most: P(tool returns within t) * (reload + queueing delay) - t, from the observed durations of that tool and the
    mean delay of requests; before there are enough observations, for a default. Who returns in time goes first. Here
    the tool is the stage, and what is pinned is the prefix of its agent. A pin goes before admissions; it is given up
    where nothing else runs and the queue's head does not fit beside it.

    Args:
        default_ttl_s: Time to live before `observations` waits of a stage are known, seconds.
        observations: Number of observed waits from which their distribution is used.
    """

    name = "continuum"

    def __init__(self, default_ttl_s: float = 2.0, observations: int = 10) -> None:
        self.default_ttl_s = weight("default_ttl_s", default_ttl_s)
        self.observations = count("observations", observations, least=1)
        super().__init__()

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests: those back to a resident prefix in mid-stage, then by arrival of their task."""
        resident = set(lookup.snapshot.resident)

        def key(request: RequestState) -> tuple[bool, float, tuple[float, str]]:
            task = lookup.task(request)
            back = any(s.name == request.stage and s.service_s > 0.0 for s in task.stages)
            return not (back and lookup.agent(request) in resident), task.arrival_s, first_come(request)

        return sorted(lookup.ready, key=key)

    def pins(self, lookup: Lookup) -> list[str]:
        """Returns the resident agents with a tool wait younger than its time to live, the youngest task last."""
        now = lookup.snapshot.time_s
        resident = set(lookup.snapshot.resident)
        alive: dict[str, float] = {}
        for agent, stages in self.waiting_agents(lookup).items():
            if agent not in resident:
                continue
            for key in stages:
                if now - self.since[key] <= self.ttl_s(lookup, agent, key):
                    arrival = lookup.tasks[key[0]].arrival_s
                    alive[agent] = min(arrival, alive.get(agent, math.inf))
        return sorted(alive, key=lambda agent: (alive[agent], agent))

    def ttl_s(self, lookup: Lookup, agent: str, key: _Stage) -> float:
        """Returns the time to live of a pin, seconds from the start of the wait."""
        lasted = self.lasted.get((lookup.tasks[key[0]].workflow, key[1]), [])
        if len(lasted) < self.observations:
            return self.default_ttl_s
        engine = lookup.snapshot.engine
        delay = sum(self.last_wait.values()) / len(self.last_wait) if self.last_wait else 0.0
        worth = engine.load_s_per_token * lookup.prefix_tokens[agent] + delay
        recent = sorted(lasted[-256:])
        best, ttl = 0.0, 0.0
        for rank, duration in enumerate(recent, 1):
            gain = worth * rank / len(recent) - duration
            if gain > best:
                best, ttl = gain, duration
        return ttl


class InferCept(_ToolWaits):
    """Keeps, swaps or discards the prefix of an agent that waits for a tool, whichever wastes least (after InferCept).

    InferCept (arXiv:2402.01869) compares the memory that each choice wastes, in token-seconds: keeping holds the
    tokens for the rest of the wait, which it takes to be as long as the wait so far; swapping stalls what runs for
    the moves out and in; discarding stalls it for the recomputation, during which the tokens are held again. Requests
    go first come, first served by their first arrival, so that nobody loses a place to a tool. Here swapping and
    discarding are one decision, releasing the prefix: the engine writes a copy to its host tier where there is one.
    """

    name = "infercept"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those whose stage became ready first in front."""
        return sorted(
            lookup.ready,
            key=lambda request: (self.first_ready[request.task, request.stage], first_come(request)),
        )

    def pins(self, lookup: Lookup) -> list[str]:
        """Returns the resident agents whose prefix is cheaper to keep than to bring back, the cheapest first."""
        held = sum(r.suffix_tokens + r.generated_tokens for r in lookup.running)
        held += sum(lookup.prefix_tokens[agent] for agent in {lookup.agent(r) for r in lookup.running})
        resident = set(lookup.snapshot.resident)
        kept: list[tuple[float, str]] = []
        for agent, stages in self.waiting_agents(lookup).items():
            if agent in resident:
                youngest = min(lookup.snapshot.time_s - self.since[key] for key in stages)
                keep = youngest * lookup.prefix_tokens[agent]
                if keep <= min(swap_waste(lookup, agent, held), discard_waste(lookup, agent, held)):
                    kept.append((keep, agent))
        return [agent for _, agent in sorted(kept)]


def swap_waste(lookup: Lookup, agent: str, held: int) -> float:
    """Returns the token-seconds that moving a prefix out and in again wastes, `held` tokens standing by."""
    engine = lookup.snapshot.engine
    return (engine.load_s_per_token + engine.offload_s_per_token) * lookup.prefix_tokens[agent] * held


def discard_waste(lookup: Lookup, agent: str, held: int) -> float:
    """Returns the token-seconds that computing a prefix again wastes, `held` tokens standing by."""
    engine = lookup.snapshot.engine
    tokens = lookup.prefix_tokens[agent]
    return (engine.prefill_base_s + engine.prefill_s_per_token * tokens) * (tokens + held)


def steps_to_execution(lookup: Lookup) -> dict[str, int]:
    """Returns by agent the least number of stages that have to end before one of its stages can run, over all tasks.

    0 where a stage is ready, runs or waits for a tool; agents without an unfinished stage are left out.
    """
    steps: dict[str, int] = {}
    for task in lookup.snapshot.tasks:
        for stage, distance in _distances(lookup, task).items():
            agent = lookup.agent_of(task, stage)
            steps[agent] = min(distance, steps.get(agent, distance))
    return steps


def _distances(lookup: Lookup, task: TaskState) -> dict[str, int]:
    workflow = lookup.workflow(task)
    status = {stage.name: stage.status for stage in task.stages}
    distances: dict[str, int] = {}
    for position in workflow.order:
        stage = workflow.stages[position]
        if status[stage.name] == "waiting":
            distances[stage.name] = 1 + max(distances[name] for name in stage.after if name in distances)
        elif status[stage.name] != "done":
            distances[stage.name] = 0
    return distances


def _in_memory(lookup: Lookup) -> set[str]:
    return {*lookup.snapshot.resident, *(cached.agent for cached in lookup.snapshot.cached)}
