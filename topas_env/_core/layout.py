"""The flat arrays that every kernel reads: what a scheduler may see (`View`) as records.

One layout serves the simulator, `decide` on a snapshot from a file, the environment and the live engine, so there is
one implementation of the score, of the candidate states and of the features. Agents are indexed in the sorted order of
their names; ids are compared through integer ranks that order as the strings do.

All times are seconds, all sizes tokens. Arrays may be longer than what they hold: the counts are in `head`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AGENT",
    "DONE",
    "HEAD",
    "HISTORY_LIMIT",
    "READY",
    "REQUEST",
    "RUNNING",
    "STAGE",
    "STAT",
    "TASK",
    "TASK_STAGE",
    "TOOL",
    "WAITING",
    "WORKFLOW",
    "View",
    "empty_view",
]

# Status of a task's stage; a request is READY or RUNNING.
WAITING, READY, RUNNING, TOOL, DONE = 0, 1, 2, 3, 4
HISTORY_LIMIT = 256  # observations kept for each stage (SCHEDULER.md section 2)

HEAD = np.dtype(
    [
        ("time", "f8"),
        ("budget", "i8"),
        ("max_running", "i8"),
        ("prefill_base", "f8"),
        ("prefill_token", "f8"),
        ("decode_token", "f8"),
        ("load_token", "f8"),
        ("offload_token", "f8"),
        ("rebuild_token", "f8"),
        ("reserve_ratio", "f8"),
        ("reserve_cap", "i8"),  # -1: no cap
        ("age_scale", "f8"),
        ("n_running", "i8"),
        ("n_ready", "i8"),
        ("n_live", "i8"),
    ],
    align=True,
)

AGENT = np.dtype(
    [
        ("prefix", "i8"),
        ("resident", "u1"),  # in the R' of the last decision
        ("cached", "u1"),  # released, still in memory
        ("last_used", "f8"),  # of a cached prefix
    ],
    align=True,
)

WORKFLOW = np.dtype([("stage0", "i8"), ("n_stages", "i8")], align=True)

STAGE = np.dtype(
    [
        ("workflow", "i8"),
        ("pos", "i8"),  # its position in the workflow's list
        ("agent", "i8"),
        ("depth", "i8"),  # edges on the longest path from a source
        ("pred0", "i8"),  # predecessors: preds[pred0 : pred0 + n_pred], as positions
        ("n_pred", "i8"),
        ("succ0", "i8"),
        ("n_succ", "i8"),
        ("profile", "f8"),  # profile_s, NaN where there is none
    ],
    align=True,
)

STAT = np.dtype(
    [
        ("n_totals", "i8"),
        ("n_calls", "i8"),
        ("next_total", "i8"),  # where the ring is written next
        ("next_call", "i8"),
        ("mean_call", "f8"),  # mean of call_s, NaN where there is none
        ("version", "i8"),  # goes up with every observation
    ],
    align=True,
)

TASK = np.dtype(
    [
        ("workflow", "i8"),
        ("rank", "i8"),  # orders as the ids do
        ("arrival", "f8"),
        ("key", "i8"),  # index in the trace or the snapshot
    ],
    align=True,
)

TASK_STAGE = np.dtype([("status", "i8"), ("request", "i8"), ("service", "f8")], align=True)

REQUEST = np.dtype(
    [
        ("task", "i8"),  # row in tasks
        ("pos", "i8"),  # position of its stage in the workflow
        ("stage", "i8"),  # row in stages
        ("agent", "i8"),
        ("status", "i8"),
        ("rank", "i8"),  # orders as the ids do
        ("ready", "f8"),
        ("admitted", "f8"),  # NaN while ready
        ("suffix", "i8"),
        ("cached", "i8"),
        ("generated", "i8"),
        ("max_new", "i8"),
        ("credit", "f8"),
    ],
    align=True,
)


class View(NamedTuple):
    """What a live scheduler can know at one scheduling point, as arrays.

    Attributes:
        head: HEAD (1,), clock, budget, believed engine costs and counts.
        agents: AGENT (n_agents,), in the sorted order of their names.
        workflows: WORKFLOW (n_workflows,).
        stages: STAGE (n_stages,), all workflows behind one another.
        preds: int64, predecessors as positions within the workflow.
        succs: int64, successors likewise.
        topo: int64 (n_stages,), each workflow's positions in topological order.
        stats: STAT (n_stages,).
        totals: float64 (n_stages, HISTORY_LIMIT), ring of total service of finished stages.
        ordered: float64 (n_stages, HISTORY_LIMIT), the same values, ascending in the first n_totals.
        calls: float64 (n_stages, HISTORY_LIMIT), ring of service of finished calls.
        call_outputs: int64 (n_stages, HISTORY_LIMIT), their output tokens.
        tasks: TASK (capacity,), rows in use are those in `live`.
        task_stages: TASK_STAGE (capacity, most stages of a workflow); `request` is -1 where there is none.
        requests: REQUEST (capacity,), rows in use are those in `running` and `ready`.
        running: int64, rows of running requests in snapshot order, first n_running.
        ready: int64, rows of ready requests in snapshot order, first n_ready.
        live: int64, rows of unfinished tasks in snapshot order, first n_live.
    """

    head: NDArray[Any]
    agents: NDArray[Any]
    workflows: NDArray[Any]
    stages: NDArray[Any]
    preds: NDArray[np.int64]
    succs: NDArray[np.int64]
    topo: NDArray[np.int64]
    stats: NDArray[Any]
    totals: NDArray[np.float64]
    ordered: NDArray[np.float64]
    calls: NDArray[np.float64]
    call_outputs: NDArray[np.int64]
    tasks: NDArray[Any]
    task_stages: NDArray[Any]
    requests: NDArray[Any]
    running: NDArray[np.int64]
    ready: NDArray[np.int64]
    live: NDArray[np.int64]


def empty_view(*, agents: int, workflows: int, stages: int, edges: int, depth: int, tasks: int, requests: int) -> View:
    """Returns a zeroed view with room for the given counts (`depth`: most stages of one workflow)."""
    return View(
        head=np.zeros(1, HEAD),
        agents=np.zeros(agents, AGENT),
        workflows=np.zeros(workflows, WORKFLOW),
        stages=np.zeros(stages, STAGE),
        preds=np.zeros(edges, np.int64),
        succs=np.zeros(edges, np.int64),
        topo=np.zeros(stages, np.int64),
        stats=np.zeros(stages, STAT),
        totals=np.zeros((stages, HISTORY_LIMIT)),
        ordered=np.zeros((stages, HISTORY_LIMIT)),
        calls=np.zeros((stages, HISTORY_LIMIT)),
        call_outputs=np.zeros((stages, HISTORY_LIMIT), np.int64),
        tasks=np.zeros(tasks, TASK),
        task_stages=np.zeros((tasks, depth), TASK_STAGE),
        requests=np.zeros(requests, REQUEST),
        running=np.zeros(requests, np.int64),
        ready=np.zeros(requests, np.int64),
        live=np.zeros(tasks, np.int64),
    )
