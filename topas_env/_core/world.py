"""The truth of a simulated run beside the `View`: physics, clock, private state, event heap and results, as arrays.

The engine's kernels get a `World`; a policy's kernels get only its field `v`. All times are seconds, sizes tokens.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64
from topas_env._core.layout import View
from topas_env._core.trace import Trace

__all__ = [
    "AGENT_STATE",
    "CALL_RESULT",
    "CLOCK",
    "DECISION",
    "DECODE",
    "END",
    "EVENT",
    "GROW",
    "ITL_BINS",
    "ITL_LEAST_S",
    "ITL_RATIO",
    "LOG",
    "LOG_ADMIT",
    "LOG_EVICT",
    "LOG_FINISH",
    "LOG_FIRST_TOKEN",
    "LOG_LOAD",
    "LOG_PREEMPT",
    "LOG_RELEASE",
    "LOG_RESIDENT",
    "LOG_RETRACT",
    "PAUSED",
    "PHYSICS",
    "POINT",
    "PREFILL",
    "REQUEST_STATE",
    "SAMPLE",
    "STAGE_STATE",
    "STUCK",
    "TASK_STATE",
    "World",
]

# What `advance` and `run` return.
POINT = 0  # a decision is wanted
END = 1  # every task is finished
GROW = 2  # an array is nearly full: give the world more room and go on
STUCK = 3  # a running request alone does not fit the budget any more
PAUSED = 4  # `run` made as many decisions as it was allowed to

# Phase of a running request.
PREFILL, DECODE = 0, 1

# Histogram of the gaps between output tokens: bin i counts gaps in [ITL_LEAST_S * ITL_RATIO ** i, ... ** (i + 1)).
ITL_BINS, ITL_LEAST_S, ITL_RATIO = 1024, 1e-5, 1.02

PHYSICS = np.dtype(
    [
        ("budget", "i8"),
        ("max_running", "i8"),
        ("prefill_base", "f8"),
        ("prefill_token", "f8"),
        ("prefill_kv", "f8"),  # per token of context of the requests in a prefill batch
        ("chunk", "i8"),  # most tokens of one prefill batch
        ("mixed", "i8"),
        ("step_base", "f8"),
        ("step_request", "f8"),
        ("step_kv", "f8"),
        ("load_token", "f8"),
        ("offload_token", "f8"),
        ("rebuild_decode", "i8"),  # 1: preempted output is decoded again, 0: prefilled
        ("tier", "i8"),  # 1: prefixes may be loaded from host memory
        ("eager", "i8"),  # 1: what is released is evicted at once
        ("decision", "f8"),  # the engine stands still for so long after each decision
        ("latency", "f8"),  # from the end of a call to what follows it, the tool wait apart
        ("overlap", "i8"),  # 1: the end of a call is noticed one step late
        ("reserve_moves", "i8"),  # 1: the reserve ratio changes, see reserve.py
        ("reserve_first", "f8"),  # reserve ratio of an engine that was idle
        ("reserve_least", "f8"),
        ("reserve_decay", "f8"),  # by so much it falls in a decode step
        ("checked", "i8"),  # 1: SGLang's checks stand between a decision and its admissions, see admit.py
        ("own_pass", "i8"),  # SGLang's own admission pass in place of a policy's decisions: one of own_pass.ORDERS
    ],
    align=True,
)

CLOCK = np.dtype(
    [
        ("time", "f8"),
        ("area", "f8"),  # integral of unfinished tasks up to area_time
        ("area_time", "f8"),
        ("channel_free", "f8"),  # when the transfer channel is free again
        ("busy", "f8"),  # time with a running request
        ("batch_area", "f8"),  # integral of running requests over it
        ("next_arrival", "i8"),
        ("n_unfinished", "i8"),
        ("n_events", "i8"),
        ("n_free_tasks", "i8"),
        ("n_free_requests", "i8"),
        ("used", "i8"),  # tokens of memory in use, evictable ones included
        ("peak_used", "i8"),
        ("n_cached", "i8"),  # cached prefixes
        ("n_prefill", "i8"),  # running requests that do not decode yet
        ("n_complete", "i8"),  # running requests that have all their output
        ("dirty", "i8"),  # something happened since the last decision
        ("next_place", "i8"),  # of SGLang's waiting queue
        ("full", "i8"),  # SGLang's own pass found no room: none follows before a request has left
        ("n_wanted", "i8"),  # ready requests that the last decision admits and the engine has not let in yet
        ("again", "i8"),  # another one follows the next batch
        ("leaf_head", "i8"),  # least recently used history leaf, -1: none
        ("leaf_tail", "i8"),
        ("leaf_tokens", "i8"),
        ("n_totals", "i8"),
        ("next_total", "i8"),
        ("max_out", "i8"),  # most requests that one event can make ready
        ("depth", "i8"),  # most stages of a workflow
        ("record", "i8"),  # 0: no logs, 1: decisions, 2: everything; -1: as 0, and nothing is learnt (planner)
        ("n_decisions", "i8"),
        ("n_decision_rows", "i8"),
        ("n_log", "i8"),
        ("n_samples", "i8"),
        ("steps", "i8"),
        ("batches", "i8"),
        ("prefilled", "i8"),  # tokens computed in prefill batches
        ("loads", "i8"),
        ("computes", "i8"),
        ("evictions", "i8"),
        ("preemptions", "i8"),
        ("retractions", "i8"),
        ("forced", "i8"),
        ("stuck_call", "i8"),
    ],
    align=True,
)

AGENT_STATE = np.dtype(
    [
        ("in_memory", "u1"),
        ("copied", "u1"),  # host memory holds a copy
        ("n_running", "i8"),
        ("left", "i8"),  # tokens of the prefix that are still to be computed
        ("planned", "i8"),  # of them in the batch that is being planned
        ("ready_at", "f8"),  # when its load is done
        ("touched", "f8"),  # last use by a request
        ("whole_since", "i8"),  # iterations that had been run when it was computed
    ],
    align=True,
)

TASK_STATE = np.dtype([("left", "i8"), ("service", "f8")], align=True)

STAGE_STATE = np.dtype(
    [
        ("call", "i8"),  # calls that are finished
        ("preds_left", "i8"),
        ("leaf", "i8"),  # tokens of its history in memory
        ("used", "f8"),  # when the leaf was last used
        ("before", "i8"),  # neighbours in the list of leaves, -1: none
        ("after", "i8"),
    ],
    align=True,
)

REQUEST_STATE = np.dtype(
    [
        ("phase", "i8"),
        ("call", "i8"),  # row of the trace's calls
        ("output", "i8"),  # true output tokens
        ("work", "i8"),  # tokens left to prefill
        ("redo", "i8"),  # lost output tokens that are still to be decoded again
        ("last_token", "f8"),
        ("key", "i8"),  # in SGLang's own pass: the greatest goes first
        ("take_prefix", "i8"),  # share in the batch that is being planned
        ("take_work", "i8"),
        ("place", "i8"),  # in SGLang's waiting queue, or among the wanted ones
        ("progress", "i8"),  # tokens that it had generated when it was admitted
        ("wanted", "i8"),  # 1: the last decision admits it
        ("offer", "f8"),  # with this credit
        ("copy", "i8"),  # tokens of the prefix that it computes for itself and holds until its prefill is done
    ],
    align=True,
)

EVENT = np.dtype([("time", "f8"), ("order", "i8"), ("row", "i8"), ("pos", "i8")], align=True)

CALL_RESULT = np.dtype(
    [
        ("ready", "f8"),
        ("admitted", "f8"),  # first admission
        ("readmitted", "f8"),  # last admission
        ("first_token", "f8"),
        ("finish", "f8"),
        ("cached", "i8"),  # prompt tokens found in the cache at the last admission, its prefix excluded
        ("preemptions", "i8"),  # by the policy
        ("retractions", "i8"),  # by memory
    ],
    align=True,
)

DECISION = np.dtype(
    [
        ("time", "f8"),
        ("admitted", "i8"),
        ("preempted", "i8"),
        ("incoming", "i8"),  # prefixes that are made resident and lie in memory nowhere
        ("outgoing", "i8"),
        ("ready", "i8"),  # what the policy saw
        ("running", "i8"),
        ("resident_tokens", "i8"),  # prefixes resident after it
        ("used_tokens", "i8"),  # memory in use after it, evictable tokens included
        ("decision_s", "f8"),  # simulated time that it was charged
    ],
    align=True,
)

LOG = np.dtype([("time", "f8"), ("kind", "i8"), ("agent", "i8"), ("call", "i8")], align=True)
# Kinds of line.
LOG_ADMIT, LOG_FIRST_TOKEN, LOG_PREEMPT, LOG_RETRACT, LOG_FINISH = (i64(i) for i in range(5))
LOG_RESIDENT, LOG_LOAD, LOG_RELEASE, LOG_EVICT = (i64(i) for i in range(5, 9))

SAMPLE = np.dtype([("time", "f8"), ("used", "i8"), ("leaves", "i8")], align=True)


class World(NamedTuple):
    """One simulated engine with its tasks.

    Attributes:
        v: What a policy may see.
        trace: What will happen; never written.
        physics: PHYSICS (1,).
        clock: CLOCK (1,), time, list lengths and counters.
        agents: AGENT_STATE (n_agents,), beside `v.agents`.
        tasks: TASK_STATE (task capacity,), beside `v.tasks`.
        stages: STAGE_STATE (task capacity, most stages), beside `v.task_stages`.
        requests: REQUEST_STATE (request capacity,), beside `v.requests`.
        events: EVENT (task capacity * most stages,), a binary heap of tool waits.
        free_tasks: int64 (task capacity,), a stack of free rows.
        free_requests: int64 (request capacity,), likewise.
        task_totals: float64 (HISTORY_LIMIT,), ring of total service of finished tasks.
        base: int64 (n_tasks,), position of the ids of a task's requests among all tasks' request ids.
        results: CALL_RESULT (n_calls,).
        jct: float64 (n_tasks,), NaN until the task is finished.
        itl: int64 (ITL_BINS,), gaps between output tokens.
        decisions: DECISION (capacity,).
        wall: float64 (capacity,), measured seconds of each decision; the one array that depends on the machine.
        log: LOG (capacity,), filled where everything is recorded.
        samples: SAMPLE (capacity,), likewise.
        sample_tokens: int64 (capacity, n_agents, 2), memory of each agent: its prefix, its running requests.
    """

    v: View
    trace: Trace
    physics: NDArray[Any]
    clock: NDArray[Any]
    agents: NDArray[Any]
    tasks: NDArray[Any]
    stages: NDArray[Any]
    requests: NDArray[Any]
    events: NDArray[Any]
    free_tasks: NDArray[np.int64]
    free_requests: NDArray[np.int64]
    task_totals: NDArray[np.float64]
    base: NDArray[np.int64]
    results: NDArray[Any]
    jct: NDArray[np.float64]
    itl: NDArray[np.int64]
    decisions: NDArray[Any]
    wall: NDArray[np.float64]
    log: NDArray[Any]
    samples: NDArray[Any]
    sample_tokens: NDArray[np.int64]
