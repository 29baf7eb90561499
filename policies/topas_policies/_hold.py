"""The planner's two base policies on their own: finish with the prefixes in use before another one is fetched.

`lpm` looks for prefixes in memory and goes back to fcfs above 128 waiting requests; these look for prefixes that
running requests, or requests admitted just now, use, however long the queue is. They differ in what is fetched next.
"""

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from topas_env._core.codes import CODES
from topas_env._snapshot import RequestState
from topas_policies._baselines import QueuePolicy, first_come
from topas_policies._lookup import Lookup

__all__ = ["HoldDepth", "HoldMany", "HoldPolicy"]


class HoldPolicy(QueuePolicy):
    """An order of the queue in which requests of prefixes in use go before all others.

    A prefix comes into use with the first request of it that is admitted, so the others of it are next. As in every
    `QueuePolicy` nothing is preempted and the first request that does not fit ends the walk.
    """

    def walk(self, lookup: Lookup, prefixes: Set[str]) -> Iterator[RequestState]:
        """Yields the ready requests, at each step one of a prefix in use if there is any."""
        queue = self.order(lookup)
        while queue:
            head = next((request for request in queue if lookup.agent(request) in prefixes), queue[0])
            queue.remove(head)
            yield head

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code of the kernel with the same order; None for a subclass, whose order is its own."""
        return (CODES[self.name], self._params()) if type(self).__module__ == __name__ else None


class HoldMany(HoldPolicy):
    """Requests of prefixes in use first, then the agent with most ready requests."""

    name = "hold-many"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the agent with most of them first."""
        many = Counter(lookup.agent(request) for request in lookup.ready)
        return sorted(lookup.ready, key=lambda request: (-many[lookup.agent(request)], first_come(request)))


class HoldDepth(HoldPolicy):
    """Requests of prefixes in use first, then the deepest stage."""

    name = "hold-depth"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, the deepest stage first."""
        depths = lookup.depths()
        return sorted(
            lookup.ready,
            key=lambda request: (-depths[lookup.task(request).workflow, request.stage], first_come(request)),
        )
