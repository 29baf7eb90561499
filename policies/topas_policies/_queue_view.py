"""Orders of the queue on the simulator's arrays: the same decisions as on snapshots, without making any."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from topas_env._core.choice import Choice
    from topas_env._core.layout import View

__all__ = ["ArrayOrder", "attained_s", "longest_attained_s"]


class ArrayOrder(ABC):
    """Makes a queue policy of this package decide on arrays too; a subclass elsewhere may order otherwise."""

    @abstractmethod
    def keys(self, v: "View", ready: NDArray[Any]) -> Sequence[NDArray[np.float64]]:
        """Returns the sort keys of the ready requests, the first one first; ties of all go by ready time and id.

        Args:
            v: The state.
            ready: REQUEST (n,), the ready requests in snapshot order.
        """

    @property
    def decide_view(self) -> "Callable[[View, Choice], None]":
        """Writes the decision for a state given as arrays."""
        if not type(self).__module__.startswith(f"{__package__}."):
            raise AttributeError("decide_view")
        return self._decide_view

    def _decide_view(self, v: "View", choice: "Choice") -> None:
        rows = v.ready[: int(v.head["n_ready"][0])]
        ready = v.requests[rows]
        order = np.lexsort((ready["rank"], ready["ready"], *reversed(self.keys(v, ready))))
        _admit(v, rows[order], choice)


def _admit(v: "View", queue: NDArray[np.int64], choice: "Choice") -> None:
    """Keeps what runs and admits the head of the queue: the first that does not fit ends the walk."""
    head = v.head[0]
    running = v.running[: int(head["n_running"])]
    n = len(running)
    agents = v.requests["agent"]
    choice.prefixes[:] = 0
    choice.prefixes[agents[running]] = 1
    room = int(head["budget"]) - int(v.agents["prefix"][choice.prefixes.view(bool)].sum())
    room -= int(_reserved(v, running).sum())
    total, limit = n, int(head["max_running"])
    for row, need in zip(queue.tolist(), _reserved(v, queue).tolist(), strict=True):
        agent = int(agents[row])
        if not choice.prefixes[agent]:
            need += int(v.agents["prefix"][agent])
        if need > room or total >= limit:
            break
        choice.rows[total] = row
        choice.prefixes[agent] = 1
        room -= need
        total += 1
    choice.rows[:n] = running
    choice.credits[:total] = 0.0
    choice.info["n_kept"], choice.info["n_admitted"], choice.info["n_preempted"] = n, total - n, 0


def _reserved(v: "View", rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns d_r of SNAPSHOT.md of some requests, tokens."""
    r, head = v.requests[rows], v.head[0]
    left = np.maximum(r["max_new"] - r["generated"], 0)
    if head["reserve_cap"] >= 0:
        left = np.minimum(left, head["reserve_cap"])
    own: NDArray[np.int64] = r["suffix"] + r["generated"] + np.ceil(head["reserve_ratio"] * left).astype(np.int64)
    return own


def attained_s(v: "View", tasks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the service that the stages of each task have received, seconds, added in their order.

    Args:
        v: The state.
        tasks: Rows of tasks, int64 (n,).

    Returns:
        float64 (n,), seconds.
    """
    upto = np.add.accumulate(v.task_stages["service"][tasks], axis=1)
    last = v.workflows["n_stages"][v.tasks["workflow"][tasks]] - 1  # behind it lies what other tasks left
    found: NDArray[np.float64] = upto[np.arange(len(tasks)), last]
    return found


def longest_attained_s(v: "View", tasks: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the longest path of received service that ends in a stage, its own included, seconds.

    Args:
        v: The state.
        tasks: Rows of tasks, int64 (n,).
        positions: The stage of each, int64 (n,).

    Returns:
        float64 (n,), seconds.
    """
    service = v.task_stages["service"][tasks]
    flows = v.tasks["workflow"][tasks]
    longest = np.zeros_like(service)
    for flow in np.unique(flows).tolist():
        mine = flows == flow
        base, count = (int(v.workflows[flow][name]) for name in ("stage0", "n_stages"))
        for pos in v.topo[base : base + count].tolist():
            stage = v.stages[base + pos]
            before = v.preds[stage["pred0"] : stage["pred0"] + stage["n_pred"]]
            upto = longest[mine][:, before].max(axis=1) if len(before) else 0.0
            longest[mine, pos] = service[mine, pos] + upto
    found: NDArray[np.float64] = longest[np.arange(len(tasks)), positions]
    return found
