"""Orders of the queue that people ask for beside the paper's baselines: response ratio, bounded wait, Autellix's two.

All follow the shared rule of `QueuePolicy`: nothing that runs is preempted, and no prefix is kept idle.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.codes import LPM_QUEUE_LIMIT
from topas_env._snapshot import RequestState, TaskState
from topas_policies._baselines import LPM, QueuePolicy, first_come
from topas_policies._lookup import Lookup
from topas_policies._parameters import count, weight
from topas_policies._paths import remaining_path_s
from topas_policies._queue_view import ArrayOrder, attained_s, longest_attained_s

if TYPE_CHECKING:
    from topas_env._core.layout import View

__all__ = ["ATLAS", "HRRN", "PLAS", "BoundedLPM"]


class HRRN(ArrayOrder, QueuePolicy):
    """Highest response ratio next: the task whose time here is the largest multiple of the work it has left.

    The ratio is (wait + service) / service (Brinch Hansen, 1971). The job is the task: service is its expected
    remaining path as `srpt` has it, wait the time since its arrival. So short tasks go first, as in `srpt`, until long
    ones have waited in proportion.
    """

    name = "hrrn"

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the task with the highest ratio first."""
        left = remaining_path_s(lookup.snapshot)
        now = lookup.snapshot.time_s

        def ratio(request: RequestState) -> float:
            service = left[request.task]
            wait = now - lookup.task(request).arrival_s
            return 1.0 + wait / service if service > 0.0 else math.inf

        return sorted(lookup.ready, key=lambda request: (-ratio(request), first_come(request)))

    def keys(self, v: "View", ready: NDArray[Any]) -> Sequence[NDArray[np.float64]]:
        """Returns minus the ratios."""
        from topas_env._core.choice import default_params
        from topas_env._core.paths import remaining_paths

        left = np.full(len(v.tasks), np.nan)
        remaining_paths(v, default_params(), left)
        service = left[ready["task"]]
        wait = v.head["time"][0] - v.tasks["arrival"][ready["task"]]
        some = service > 0.0
        return (np.where(some, -(1.0 + wait / np.where(some, service, 1.0)), -math.inf),)


class BoundedLPM(ArrayOrder, LPM):
    """Longest prefix match with a bound: what has waited longer than `bound_s` goes first, the oldest in front.

    Users of SGLang report tails of 20 to 60 s under lpm, since a request whose prefix is cold may wait for ever
    (sgl-project/sglang issue 31954; pull request 33210 proposes aging). This is the plainest cure.

    Args:
        bound_s: Longest wait that lpm may impose, seconds, at least 0; with 0 the order is that of fcfs.
    """

    name = "lpm-bounded"

    def __init__(self, bound_s: float = 30.0) -> None:
        self.bound_s = weight("bound_s", bound_s)

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the overdue requests, first come first, then the others, the longest match first."""
        latest = lookup.snapshot.time_s - self.bound_s
        overdue = sorted((request for request in lookup.ready if request.ready_s <= latest), key=first_come)
        late = {request.id for request in overdue}
        return overdue + [request for request in super().order(lookup) if request.id not in late]

    def keys(self, v: "View", ready: NDArray[Any]) -> Sequence[NDArray[np.float64]]:
        """Returns whether a request is not overdue, and minus its match where lpm orders those."""
        rest = ready["ready"] > v.head["time"][0] - self.bound_s
        if len(ready) > LPM_QUEUE_LIMIT:
            return (rest.astype(np.float64),)
        agents = v.agents[ready["agent"]]
        there = (agents["resident"] | agents["cached"]).astype(bool)
        match = ready["cached"] + np.where(there, agents["prefix"], 0)
        return rest.astype(np.float64), np.where(rest, -match, 0.0)


class _Levels(ArrayOrder, QueuePolicy):
    """What PLAS and ATLAS share: queues of doubling quanta, first come first served in each, and promotion.

    Autellix (arXiv:2502.13965, section 4): a call starts in the queue that the service of its program so far leads to;
    queues are served in order, each first come, first served; a program whose wait is a multiple of its service goes
    to the first queue, so that none starves. Left out: a running call is not demoted and nothing is preempted (Autellix
    swaps to host memory at little cost; here preemption loses the KV cache).

    Args:
        quantum: Bound of the first queue as a share of the mean service of a task (the snapshot's `age_scale_s`).
        levels: Number of queues; each bound is twice the one before.
        promotion: A task that has waited so many times its service goes to the first queue; 0 for no promotion.
    """

    def __init__(self, quantum: float = 0.125, levels: int = 6, promotion: float = 4.0) -> None:
        self.quantum = weight("quantum", quantum)
        self.levels = count("levels", levels, least=1)
        self.promotion = weight("promotion", promotion)

    @abstractmethod
    def attained_s(self, lookup: Lookup, request: RequestState) -> float:
        """Returns the service that counts against a request, seconds."""

    def order(self, lookup: Lookup) -> list[RequestState]:
        """Returns the ready requests, those of the first queue first."""
        return sorted(lookup.ready, key=lambda request: (self.level(lookup, request), first_come(request)))

    @abstractmethod
    def attained_all_s(self, v: "View", ready: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the same for all ready requests of a state given as arrays."""

    def keys(self, v: "View", ready: NDArray[Any]) -> Sequence[NDArray[np.float64]]:
        """Returns the queues."""
        now, scale = float(v.head["time"][0]), float(v.head["age_scale"][0])
        arrivals = v.tasks["arrival"][ready["task"]].tolist()
        pairs = zip(arrivals, self.attained_all_s(v, ready).tolist(), strict=True)
        return (np.array([self._level(attained, now - arrival - attained, scale) for arrival, attained in pairs]),)

    def level(self, lookup: Lookup, request: RequestState) -> int:
        """Returns the queue of a request, 0 for the first."""
        attained = self.attained_s(lookup, request)
        wait = lookup.snapshot.time_s - lookup.task(request).arrival_s - attained
        return self._level(attained, wait, lookup.snapshot.age_scale_s)

    def _level(self, attained: float, wait: float, scale: float) -> int:
        """Returns the queue that so much service and waiting lead to; `scale` is the mean service of a task."""
        if self.promotion and attained > 0.0 and wait >= self.promotion * attained:
            return 0
        first = self.quantum * scale
        if attained < first:
            return 0
        steps = 1 + math.floor(math.log2(attained / first)) if first > 0.0 else self.levels
        return min(steps, self.levels - 1)


class PLAS(_Levels):
    """Program-level attained service: the less service a task has received, the earlier its queue.

    Autellix's policy for programs with one thread (arXiv:2502.13965, section 4.2): the priority of a call is the summed
    service of the calls that its program has completed. `las` is the same without queues, that is with infinitely
    fine ones.
    """

    name = "plas"

    def attained_s(self, lookup: Lookup, request: RequestState) -> float:
        """Returns the service of all completed calls of the task, seconds."""
        return lookup.attained_s(lookup.task(request))

    def attained_all_s(self, v: "View", ready: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the service of all completed calls of each request's task, seconds."""
        return attained_s(v, ready["task"])


class ATLAS(_Levels):
    """Adaptive thread-level attained service: the less service on the path to a stage, the earlier its queue.

    Autellix's policy for programs with parallel threads (arXiv:2502.13965, section 4.2): what counts is the longest
    chain of completed calls that leads to this one, not their sum, so that a wide fork does not sink its own join.
    On a chain it is `plas`.
    """

    name = "atlas"

    def attained_s(self, lookup: Lookup, request: RequestState) -> float:
        """Returns the service of the longest path of completed calls up to and in the request's stage, seconds."""
        if request.task not in lookup.worked_out:
            lookup.worked_out[request.task] = _longest_attained_s(lookup, lookup.task(request))
        return lookup.worked_out[request.task][request.stage]

    def attained_all_s(self, v: "View", ready: NDArray[Any]) -> NDArray[np.float64]:
        """Returns the service of the longest path of each request, seconds."""
        return longest_attained_s(v, ready["task"], ready["pos"])


def _longest_attained_s(lookup: Lookup, task: TaskState) -> dict[str, float]:
    """Returns the longest path of received service that ends in each stage, its own included, by its name."""
    workflow = lookup.workflow(task)
    received = {stage.name: stage.service_s for stage in task.stages}
    longest: dict[str, float] = {}
    for position in workflow.order:
        stage = workflow.stages[position]
        before = [longest[name] for name in stage.after]
        longest[stage.name] = received[stage.name] + (max(before) if before else 0.0)
    return longest
