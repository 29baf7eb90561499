"""Section 6 of SCHEDULER.md, slow and plain like `topas_reading`: which states are tried, and which one is chosen."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from reference.topas_reading import TOLERANCE, Reading, State, ties_with_best

__all__ = ["Result", "decide", "emitted_states"]


@dataclass
class Result:
    """The chosen state (None where nothing is ready or running), every emitted one and the sets that were tried."""

    chosen: State | None
    emitted: list[State]
    tried: dict[frozenset[str], float] = field(default_factory=dict)


def improves(x: float, y: float) -> bool:
    """Tells whether x is larger than y beyond the tolerance of section 6."""
    if y == -math.inf:
        return x > -math.inf
    return x > y + TOLERANCE * max(1.0, abs(y))


class Search:
    """The candidates of a snapshot."""

    def __init__(self, reading: Reading, max_enumerated: int, cap: int) -> None:
        self.reading, self.limit, self.cap = reading, max_enumerated, cap
        self.states: dict[frozenset[str], list[State]] = {}
        self.active = sorted({reading.agent(r) for r in reading.order})
        self.start = frozenset(reading.agent(r) for r in reading.running)

    def phi(self, prefixes: frozenset[str]) -> float:
        """Phi of a prefix set; its states are kept as candidates."""
        if prefixes not in self.states:
            self.states[prefixes] = self.reading.greedy_pack(prefixes, self.cap)
        return max((s.terms.total for s in self.states[prefixes]), default=-math.inf)

    def best_extension(self, base: frozenset[str], size: int) -> tuple[frozenset[str], float] | None:
        """The best set made by adding `size` agents, the first in sorted order among those that tie."""
        left = [a for a in self.active if a not in base]
        options = [base | set(extra) for extra in itertools.combinations(left, size)]
        if not options:
            return None
        values = [self.phi(option) for option in options]
        best = max(values)
        if best == -math.inf:
            return None
        index = next(i for i, value in enumerate(values) if ties_with_best(value, best))
        return options[index], values[index]

    def repair(self, base: frozenset[str]) -> None:
        """Evaluates what dropping one agent or swapping one for another makes of a set."""
        for out in base:
            self.phi(base - {out})
            for new in self.active:
                if new not in base:
                    self.phi((base - {out}) | {new})

    def grow(self) -> None:
        """Algorithm 1 of the paper for large pools."""
        current, value = self.start, self.phi(self.start)
        self.repair(self.start)
        pairs_tested = False
        while True:
            step = self.best_extension(current, 1)
            if step is None or not improves(step[1], value):
                if pairs_tested:
                    break
                pairs_tested = True
                step = self.best_extension(current, 2)
                if step is None or not improves(step[1], value):
                    break
            current, value = step
        self.repair(current)

    def run(self) -> list[State]:
        """Returns every distinct candidate."""
        if len(self.active) <= self.limit:
            for size in range(1, len(self.active) + 1):
                for subset in itertools.combinations(self.active, size):
                    self.phi(frozenset(subset))
        else:
            self.grow()
        found: dict[Any, State] = {}
        if self.reading.running:
            incumbent = self.reading.state(self.start, self.reading.running, [])
            found[incumbent.key] = incumbent
        for states in self.states.values():
            for state in states:
                if state.requests:
                    found.setdefault(state.key, state)
        return list(found.values())


def emitted_states(
    snapshot: dict[str, Any],
    *,
    beta: float = 1.0,
    rho: float = 0.5,
    max_enumerated: int = 6,
    max_changes: int = 0,
    exact_limit: int = 64,
    scenarios: int = 64,
) -> tuple[list[State], dict[frozenset[str], float]]:
    """Returns all candidates and Phi of each prefix set that was tried."""
    reading = Reading(snapshot, beta=beta, rho=rho, exact_limit=exact_limit, scenarios=scenarios)
    search = Search(reading, max_enumerated, max_changes)
    states = search.run()
    return states, {tried: search.phi(tried) for tried in search.states}


def choose(states: list[State]) -> State | None:
    """The state with the largest score, ties as in section 6."""
    if not states:
        return None
    best = max(s.terms.total for s in states)
    tied = [s for s in states if ties_with_best(s.terms.total, best)]
    return min(tied, key=lambda s: (len(s.preempted), s.moved, -len(s.admitted), s.prefixes, sorted(s.requests)))


def decide(snapshot: dict[str, Any], **params: Any) -> Result:
    """Returns TOPAS's decision on the JSON dict of a snapshot; `params` as in `emitted_states`."""
    states, tried = emitted_states(snapshot, **params)
    return Result(choose(states), states, tried)
