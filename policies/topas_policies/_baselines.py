"""The baselines: each is an order of the queue, the rest is one shared rule.

None of them preempts and none of them chooses prefixes. After a decision exactly the agents of the running requests are
resident; a prefix that is released stays in memory as `cached` until its room is needed, least recently used first.
That is the reactive radix cache of SGLang, and why an order of the queue is all there is to a baseline.
"""

from abc import abstractmethod
from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from topas_env import Decision, Snapshot
from topas_env._core.choice import default_params
from topas_env._core.codes import CODES, LPM_QUEUE_LIMIT
from topas_env._snapshot import RequestState
from topas_policies._lookup import Lookup
from topas_policies._parameters import count
from topas_policies._paths import remaining_path_s
from topas_policies._policy import Policy

__all__ = ["FCFS", "LAS", "LPM", "SPF", "SRPT", "GatedLPM", "ParrotFCFS", "QueuePolicy", "SGLangFCFS", "SGLangLPM"]


class QueuePolicy(Policy):
    """A policy that is an order of the ready requests.

    It keeps everything that runs and walks the ordered queue. A request is admitted if it fits: its reservation, and
    its agent's prefix where no earlier request brought it, within the budget, and a free slot. The first request
    that does not fit ends the walk, as in SGLang: nobody overtakes the head of the line. Where what runs is over the
    budget, nothing is admitted.
    """

    @abstractmethod
    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, the next to be admitted first."""

    def walk(self, lookup: Lookup, prefixes: Set[str]) -> Iterator[RequestState]:  # noqa: ARG002
        """Yields the ready requests in the order in which they are looked at.

        Args:
            lookup: The snapshot.
            prefixes: Agents whose prefixes are in use; that of a request is in it from its admission on.
        """
        yield from self.order(lookup)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the running requests and as much of the queue's head as fits."""
        lookup = Lookup(snapshot)
        chosen = list(lookup.running)
        prefixes = {lookup.agent(request) for request in chosen}
        room = snapshot.kv_budget_tokens
        room -= sum(lookup.prefix_tokens[agent] for agent in prefixes)
        room -= sum(snapshot.reserved_tokens(request) for request in chosen)
        for request in self.walk(lookup, prefixes):
            agent = lookup.agent(request)
            need = snapshot.reserved_tokens(request)
            if agent not in prefixes:
                need += lookup.prefix_tokens[agent]
            if need > room or len(chosen) >= snapshot.max_running_requests:
                break
            chosen.append(request)
            prefixes.add(agent)
            room -= need
        return Decision(tuple(sorted(prefixes)), tuple(request.id for request in chosen))

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code of the kernel with the same order; None for a subclass, whose order is its own."""
        if type(self).__module__ != __name__:
            return None
        return CODES[self.sglang_order or self.name], self._params()

    def _params(self) -> NDArray[Any]:
        return default_params()


def first_come(request: RequestState) -> tuple[float, str]:
    """The key of the fcfs order, which also breaks the ties of every other order."""
    return request.ready_s, request.id


class FCFS(QueuePolicy):
    """First come, first served, by the time a request became ready: SGLang's default."""

    name = "fcfs"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, the one that waits longest first."""
        return sorted(lookup.ready, key=first_come)


class LPM(QueuePolicy):
    """Longest prefix match: the request with most of its prompt in the KV cache first (SGLang's lpm).

    The match is the agent's prefix where it is resident or cached, plus what the cache holds of the request's own
    history. Above 128 waiting requests the order is that of fcfs, as in SGLang.
    """

    name = "lpm"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, the longest match first."""
        queue = sorted(lookup.ready, key=first_come)
        if len(queue) > LPM_QUEUE_LIMIT:
            return queue
        in_memory = {*lookup.snapshot.resident, *(cached.agent for cached in lookup.snapshot.cached)}

        def match(request: RequestState) -> int:
            agent = lookup.agent(request)
            return request.cached_tokens + (lookup.prefix_tokens[agent] if agent in in_memory else 0)

        return sorted(queue, key=match, reverse=True)  # a stable sort: equal matches stay first come, first served


class ParrotFCFS(QueuePolicy):
    """First come, first served by task: requests of the task that arrived first go first (after Parrot)."""

    name = "parrot-fcfs"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the oldest task first."""
        return sorted(lookup.ready, key=lambda request: (lookup.task(request).arrival_s, first_come(request)))


class LAS(QueuePolicy):
    """Least attained service: requests of the task that has received the least LLM service first."""

    name = "las"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the least served task first."""
        attained = {task.id: lookup.attained_s(task) for task in lookup.snapshot.tasks}
        return sorted(lookup.ready, key=lambda request: (attained[request.task], first_come(request)))


class SPF(QueuePolicy):
    """Stage priority first: deeper stages first, so that tasks that are nearly done get done.

    The depth of a stage is the number of edges on the longest path to it from a source of its workflow.
    """

    name = "spf"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, the deepest stage first."""
        depths = lookup.depths()
        return sorted(
            lookup.ready,
            key=lambda request: (-depths[lookup.task(request).workflow, request.stage], first_come(request)),
        )


class SRPT(QueuePolicy):
    """Shortest remaining processing time: requests of the task with the shortest expected remaining path first.

    The remaining path is L with no hypothetical completion (SCHEDULER.md section 3), as TOPAS estimates it.
    """

    name = "srpt"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the task nearest to its end first."""
        left = remaining_path_s(lookup.snapshot)
        return sorted(lookup.ready, key=lambda request: (left[request.task], first_come(request)))


class GatedLPM(LPM):
    """Longest prefix match with a downstream gate (paper, section II and figure 1).

    Once at least `gate` ready requests belong to last stages (those that no other stage of their workflow waits for),
    these go first; among them, and behind them, the order is that of lpm.

    Args:
        gate: Backlog of last stages that opens the gate, at least 1.
    """

    name = "gated-lpm"

    def __init__(self, gate: int = 4) -> None:
        self.gate = count("gate", gate, least=1)

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests in the order of lpm, last stages in front while the gate is open."""
        queue = super().order(lookup)
        last = lookup.last_stages()

        def is_last(request: RequestState) -> bool:
            return (lookup.task(request).workflow, request.stage) in last

        backlog = [request for request in queue if is_last(request)]
        if len(backlog) < self.gate:
            return queue
        return backlog + [request for request in queue if not is_last(request)]

    def _params(self) -> NDArray[Any]:
        return default_params(gate=self.gate)


class SGLangFCFS(FCFS):
    """SGLang alone with its default schedule policy, fcfs.

    On a simulated engine SGLang itself admits then (`_core/own_pass.py`), and what it does is more than an order: it
    stops trying while its pool is full, reserves all that a new request asked for, and requests that are admitted
    together each compute a prefix that is missing. `decide`, which `topas explain` shows, is the order alone.
    `topas serve` and `topas bench` start SGLang without the plugin for this name.
    """

    name = "sglang-fcfs"
    sglang_order = "fcfs"


class SGLangLPM(LPM):
    """SGLang alone with its schedule policy lpm: requests of a prefix that is missing go last, all but one.

    What else it does is what `SGLangFCFS` says.
    """

    name = "sglang-lpm"
    sglang_order = "lpm"
