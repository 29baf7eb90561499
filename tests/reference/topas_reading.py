"""Sections 2 to 5 of SCHEDULER.md, slow and plain: what one snapshot says, the score of a state, GreedyPack.

It is written from the text alone, independent of the kernels, works on the JSON dict of a snapshot (SNAPSHOT.md) and
favours being obviously the text over speed: the numbers of the sections in the comments are those of SCHEDULER.md.
Nothing of `topas_env` is imported here, on purpose.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["TOLERANCE", "Reading", "State", "Terms", "reserved_tokens", "score_state", "ties_with_best"]

TOLERANCE = 1e-9


def ties_with_best(x: float, best: float) -> bool:
    """Tells whether x is within the tolerance of the best."""
    return x >= best - TOLERANCE * max(1.0, abs(best))


def reserved_tokens(engine: dict[str, Any], request: dict[str, Any]) -> int:
    """d_r of SNAPSHOT.md."""
    remaining = max(request["max_new_tokens"] - request["generated_tokens"], 0)
    if engine["reserve_cap_tokens"] is not None:
        remaining = min(remaining, engine["reserve_cap_tokens"])
    tokens: int = (
        request["suffix_tokens"] + request["generated_tokens"] + math.ceil(engine["reserve_ratio"] * remaining)
    )
    return tokens


@dataclass(frozen=True)
class Terms:
    """The five terms of the score (section 4), seconds."""

    admit: float
    move: float
    redo: float
    revoke: float
    reuse: float

    @property
    def total(self) -> float:
        """The score."""
        return self.admit - self.move - self.redo - self.revoke + self.reuse


@dataclass(frozen=True)
class State:
    """A post-decision state with its score.

    `kept` is in snapshot order, `admitted` in order of admission; `credits` are the summands of `admit`.
    """

    prefixes: tuple[str, ...]
    kept: tuple[str, ...]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    moved: int
    terms: Terms
    credits: tuple[float, ...] = ()

    @property
    def requests(self) -> tuple[str, ...]:
        """The decision's list of requests."""
        return self.kept + self.admitted

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What makes the state distinct from others."""
        return self.prefixes, tuple(sorted(self.requests))


class Reading:
    """One snapshot with everything the text derives from it."""

    def __init__(self, snapshot: dict[str, Any], *, beta: float, rho: float, exact_limit: int, scenarios: int) -> None:
        self.now: float = snapshot["time_s"]
        self.budget: int = snapshot["kv_budget_tokens"]
        self.slots: int = snapshot["max_running_requests"]
        self.engine: dict[str, Any] = snapshot["engine"]
        self.age_scale: float = snapshot["age_scale_s"]
        self.beta, self.rho = beta, rho
        self.exact_limit, self.scenarios = exact_limit, scenarios
        self.workflows = {w["name"]: w for w in snapshot["workflows"]}
        self.prefix = {a["name"]: a["prefix_tokens"] for w in snapshot["workflows"] for a in w["agents"]}
        self.service = {(s["workflow"], s["stage"]): s for s in snapshot["service"]}
        self.resident = set(snapshot["resident"])
        self.cached = {c["agent"] for c in snapshot["cached"]}
        self.tasks = {t["id"]: t for t in snapshot["tasks"]}
        self.requests = {r["id"]: r for r in snapshot["requests"]}
        self.order = [r["id"] for r in snapshot["requests"]]
        self.running = [r["id"] for r in snapshot["requests"] if r["status"] == "running"]
        self.ready = [r["id"] for r in snapshot["requests"] if r["status"] == "ready"]
        self.stage_spec = {(w["name"], s["name"]): s for w in snapshot["workflows"] for s in w["stages"]}
        self.request_of = {(r["task"], r["stage"]): r["id"] for r in snapshot["requests"]}
        self._paths: dict[tuple[str, frozenset[str]], float] = {}
        self._residuals: dict[str, dict[str, list[float]]] = {}

    # -- SNAPSHOT.md: sizes and names -----------------------------------------------------------------------------

    def workflow_of(self, request: str) -> str:
        name: str = self.tasks[self.requests[request]["task"]]["workflow"]
        return name

    def agent(self, request: str) -> str:
        """The agent of the request's stage."""
        name: str = self.stage_spec[self.workflow_of(request), self.requests[request]["stage"]]["agent"]
        return name

    def reserved(self, request: str) -> int:
        """d_r, tokens that the request reserves."""
        return reserved_tokens(self.engine, self.requests[request])

    # -- section 2: service estimates -----------------------------------------------------------------------------

    def observations(self, workflow: str, stage: str, name: str) -> list[float]:
        entry = self.service.get((workflow, stage), {})
        return list(entry.get(name) or [])[-256:]

    def request_estimate(self, request: str) -> float:
        """D_r."""
        r = self.requests[request]
        calls = self.observations(self.workflow_of(request), r["stage"], "call_s")
        if calls:
            return sum(calls) / len(calls)
        e = self.engine
        estimate: float = (
            e["prefill_base_s"]
            + e["prefill_s_per_token"] * (r["suffix_tokens"] - r["cached_tokens"])
            + e["decode_s_per_token"] * r["max_new_tokens"]
        )
        return estimate

    def total_service(self, task: str, stage: str) -> list[float]:
        """F, the values of the distribution of a stage's total service."""
        workflow = self.tasks[task]["workflow"]
        totals = self.observations(workflow, stage, "stage_totals_s")
        if totals:
            return totals
        profile = self.service.get((workflow, stage), {}).get("profile_s")
        if profile is not None:
            return [profile]
        own = self.request_of.get((task, stage))
        if own is not None:
            return [self.request_estimate(own)]
        agent = self.stage_spec[workflow, stage]["agent"]
        same_agent = [self.request_estimate(r) for r in self.order if self.agent(r) == agent]
        if same_agent:
            return [sum(same_agent) / len(same_agent)]
        return [self.engine["prefill_base_s"]]

    def residual(self, task: str, stage: dict[str, Any]) -> list[float]:
        """Z, the values of a stage's residual service, equally likely."""
        if stage["status"] == "done":
            return [0.0]
        total = self.total_service(task, stage["name"])
        received = stage["service_s"]
        if received == 0:
            return total
        beyond = [x - received for x in total if x > received]
        if beyond:
            return beyond
        calls = self.observations(self.tasks[task]["workflow"], stage["name"], "call_s")
        if calls:
            return [sum(calls) / len(calls)]
        own = self.request_of.get((task, stage["name"]))
        if own is not None:
            return [self.request_estimate(own)]
        return [self.engine["prefill_base_s"]]

    def residuals(self, task: str) -> dict[str, list[float]]:
        if task not in self._residuals:
            self._residuals[task] = {s["name"]: self.residual(task, s) for s in self.tasks[task]["stages"]}
        return self._residuals[task]

    # -- section 3: remaining path --------------------------------------------------------------------------------

    def longest(self, workflow: str, value: dict[str, float]) -> float:
        """The longest path, a stage weighing its value."""
        after = {s["name"]: s["after"] for s in self.workflows[workflow]["stages"]}
        until: dict[str, float] = {}

        def end(stage: str) -> float:
            if stage not in until:
                until[stage] = value[stage] + max((end(p) for p in after[stage]), default=0.0)
            return until[stage]

        return max(end(stage) for stage in after)

    def outcomes(self, task: str) -> Iterator[dict[str, float]]:
        """Joint outcomes of a task's residuals, equally likely: all of them, or the draws of the R_d sequence."""
        workflow = self.tasks[task]["workflow"]
        residual = self.residuals(task)
        unfinished = [s["name"] for s in self.tasks[task]["stages"] if s["status"] != "done"]
        if math.prod(len(residual[name]) for name in unfinished) <= self.exact_limit:
            names = list(residual)
            for values in itertools.product(*(residual[name] for name in names)):
                yield dict(zip(names, values, strict=True))
            return
        names = [s["name"] for s in self.workflows[workflow]["stages"]]
        d = len(names)
        p = plastic_number(d)
        for k in range(self.scenarios):
            outcome = {}
            for j, name in enumerate(names):
                a = math.fmod(p ** -(j + 1), 1.0)
                u = math.fmod(0.5 + (k + 1) * a, 1.0)
                z = sorted(residual[name])
                outcome[name] = z[math.floor(len(z) * u)]
            yield outcome

    def path(self, task: str, completed: frozenset[str]) -> float:
        """L(H), seconds, for the hypothetical completions of requests of this task."""
        if (task, completed) not in self._paths:
            shift = {self.requests[r]["stage"]: self.request_estimate(r) for r in completed}
            lengths = []
            for outcome in self.outcomes(task):
                value = {s: max(z - shift[s], 0.0) if s in shift else z for s, z in outcome.items()}
                lengths.append(self.longest(self.tasks[task]["workflow"], value))
            self._paths[task, completed] = math.fsum(lengths) / len(lengths)
        return self._paths[task, completed]

    def marginal(self, request: str, completed: Iterable[str]) -> float:
        """Marginal progress of a request after hypothetical completions; those of other tasks are left out."""
        task = self.requests[request]["task"]
        before = frozenset(r for r in completed if self.requests[r]["task"] == task)
        length = self.path(task, before)
        progress = length - self.path(task, before | {request})
        return progress if progress >= TOLERANCE * length else 0.0

    # -- section 4: the score -------------------------------------------------------------------------------------

    def weight(self, request: str) -> float:
        """g of the request's task."""
        arrival = self.tasks[self.requests[request]["task"]]["arrival_s"]
        return 1.0 + self.rho * math.log(1.0 + (self.now - arrival) / self.age_scale)

    def expected_next(self, agent: str) -> int:
        """n_a: waiting stages of the agent whose only unfinished predecessor has a request running now."""
        count = 0
        for task in self.tasks.values():
            status = {s["name"]: s["status"] for s in task["stages"]}
            for stage in self.workflows[task["workflow"]]["stages"]:
                if stage["agent"] != agent or status[stage["name"]] != "waiting":
                    continue
                unfinished = [p for p in stage["after"] if status[p] != "done"]
                if len(unfinished) == 1 and self.request_of.get((task["id"], unfinished[0])) in self.running:
                    count += 1
        return count

    def state(self, prefixes: Iterable[str], kept: Iterable[str], admitted: Iterable[str]) -> State:
        """The state with its score."""
        new, kept, admitted = set(prefixes), list(kept), list(admitted)
        preempted = [r for r in self.running if r not in kept]
        incoming = new - self.resident - self.cached
        outgoing = self.resident - new
        e = self.engine
        summands = [self.weight(r) * self.marginal(r, admitted[:i]) for i, r in enumerate(admitted)]
        transfer = e["offload_s_per_token"] * sum(self.prefix[a] for a in outgoing)
        transfer += e["load_s_per_token"] * sum(self.prefix[a] for a in incoming)
        waiting_tasks = {self.requests[r]["task"] for r in admitted if self.agent(r) in incoming}
        terms = Terms(
            admit=sum(summands),
            move=transfer * len(waiting_tasks),
            redo=sum(e["rebuild_s_per_token"] * self.requests[r]["generated_tokens"] for r in preempted),
            revoke=sum(self.requests[r]["admission_credit_s"] for r in preempted),
            reuse=self.beta * sum(self.expected_next(a) * e["load_s_per_token"] * self.prefix[a] for a in new),
        )
        moved = len(incoming) + len(outgoing)
        names = tuple(sorted(new))
        return State(names, tuple(kept), tuple(admitted), tuple(preempted), moved, terms, tuple(summands))

    # -- section 5: GreedyPack ------------------------------------------------------------------------------------

    def greedy_pack(self, prefixes: frozenset[str], cap: int) -> list[State]:
        """The states that GreedyPack emits for a prefix set; none where the set is rejected."""
        if not prefixes:
            return []
        most = cap if cap > 0 else math.inf
        kept = [r for r in self.running if self.agent(r) in prefixes]
        room = self.budget - sum(self.prefix[a] for a in prefixes) - sum(self.reserved(r) for r in kept)
        slots = self.slots - len(kept)
        if room < 0 or slots < 0 or len(self.running) - len(kept) > most:
            return []
        uncovered = prefixes - {self.agent(r) for r in kept}
        pool = [r for r in self.ready if self.agent(r) in prefixes]
        cheapest: dict[str, int] = {}
        for agent in uncovered:
            sizes = [self.reserved(r) for r in pool if self.agent(r) == agent]
            if not sizes:
                return []
            cheapest[agent] = min(sizes)
        if sum(cheapest.values()) > room or len(uncovered) > min(slots, most):
            return []
        picked: list[str] = []
        states = []
        while True:
            if not uncovered:
                states.append(self.state(prefixes, kept, picked))
            fitting = []
            for r in pool:
                others = uncovered - {self.agent(r)}
                fits = self.reserved(r) + sum(cheapest[a] for a in others) <= room
                if r not in picked and fits and 1 + len(others) <= min(slots, most - len(picked)):
                    fitting.append(r)
            if not fitting:
                return states
            rate = {r: self.weight(r) * self.marginal(r, picked) / self.reserved(r) for r in fitting}
            best = max(rate.values())
            represented = {self.requests[r]["task"] for r in kept + picked}

            def order(r: str, represented: set[str] = represented) -> tuple[bool, float, float, str]:
                task = self.requests[r]["task"]
                return task not in represented, self.tasks[task]["arrival_s"], self.requests[r]["ready_s"], r

            choice = min((r for r in fitting if ties_with_best(rate[r], best)), key=order)
            picked.append(choice)
            room -= self.reserved(choice)
            slots -= 1
            uncovered = uncovered - {self.agent(choice)}


def plastic_number(d: int) -> float:
    """The positive root of x ** (d + 1) = x + 1."""
    low, high = 1.0, 2.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle ** (d + 1) > middle + 1:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def score_state(
    snapshot: dict[str, Any],
    prefixes: Iterable[str],
    requests: Iterable[str],
    *,
    beta: float = 1.0,
    rho: float = 0.5,
    exact_limit: int = 64,
    scenarios: int = 64,
) -> State:
    """Returns any decision's state with its score; `requests` admitted are in order of admission."""
    reading = Reading(snapshot, beta=beta, rho=rho, exact_limit=exact_limit, scenarios=scenarios)
    ids = list(requests)
    running = set(reading.running)
    return reading.state(prefixes, [r for r in ids if r in running], [r for r in ids if r not in running])
