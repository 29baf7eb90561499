"""What will happen in a run, drawn before it: tasks, their arrivals, and every call of every stage."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CALL", "Trace"]

CALL = np.dtype(
    [
        ("suffix", "i8"),  # prompt tokens after the agent's prefix
        ("history", "i8"),  # the first of them that repeat what an earlier call of the stage left
        ("output", "i8"),  # true output tokens, unknown to policies
        ("max_new", "i8"),  # what the client asked for
        ("tool", "f8"),  # wait after the call
    ],
    align=True,
)


class Trace(NamedTuple):
    """A list of tasks as arrays; no policy is shown it.

    Attributes:
        arrival: float64 (n_tasks,), seconds, ascending.
        workflow: int64 (n_tasks,), index into the workload's workflows.
        rank: int64 (n_tasks,), position of the task's id in sorted order.
        stage0: int64 (n_tasks,), row of the task's first stage in `first_call`; stages follow in the workflow's order.
        first_call: int64 (n_stage_rows + 1,), calls of row s are calls[first_call[s] : first_call[s + 1]], one or more.
        calls: CALL (n_calls,).
    """

    arrival: NDArray[np.float64]
    workflow: NDArray[np.int64]
    rank: NDArray[np.int64]
    stage0: NDArray[np.int64]
    first_call: NDArray[np.int64]
    calls: NDArray[Any]
