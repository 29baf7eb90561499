"""Traces from flat columns and from other traces."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.trace import CALL, Trace

__all__ = ["build_trace", "common_length", "gather", "id_ranks"]


def build_trace(
    ids: list[str],
    arrival: NDArray[np.float64],
    workflow: NDArray[np.int64],
    stage_counts: Sequence[int],
    call_counts: NDArray[np.int64],
    calls: NDArray[Any],
) -> tuple[Trace, list[str]]:
    """Builds a trace from flat columns, tasks sorted by arrival (equal ones stay in order); returns the ids likewise.

    Args:
        ids: Ids of the tasks, unique.
        arrival: Seconds, float64 (n_tasks,), in any order.
        workflow: Index of each task's workflow, int64 (n_tasks,).
        stage_counts: Number of stages of each workflow.
        call_counts: Calls of each stage of each task, int64 (sum of the tasks' stages,).
        calls: CALL (sum of `call_counts`,).
    """
    first_call = np.zeros(len(call_counts) + 1, np.int64)
    np.cumsum(call_counts, out=first_call[1:])
    stages = np.array(stage_counts, np.int64)[workflow]
    trace = Trace(
        arrival=np.ascontiguousarray(arrival, np.float64),
        workflow=workflow.astype(np.int64),
        rank=id_ranks(ids),
        stage0=np.cumsum(stages) - stages,
        first_call=first_call,
        calls=np.ascontiguousarray(calls, CALL),
    )
    if bool((np.diff(arrival) >= 0).all()):
        return trace, ids
    order = np.argsort(arrival, kind="stable")
    ids = [ids[k] for k in order.tolist()]
    return gather(trace, order, arrival[order], ids, stage_counts), ids


def gather(
    trace: Trace,
    picks: NDArray[np.int64],
    arrival: NDArray[np.float64],
    ids: Sequence[str],
    stage_counts: Sequence[int],
) -> Trace:
    """Returns a trace of the picked tasks (repeats allowed) with new arrivals and ids."""
    workflow = trace.workflow[picks]
    stages = np.array(stage_counts, np.int64)[workflow]
    rows = _ranges(trace.stage0[picks], stages)
    counts = np.diff(trace.first_call)[rows]
    first_call = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=first_call[1:])
    return Trace(
        arrival=np.ascontiguousarray(arrival, np.float64),
        workflow=workflow,
        rank=id_ranks(ids),
        stage0=np.cumsum(stages) - stages,
        first_call=first_call,
        calls=trace.calls[_ranges(trace.first_call[rows], counts)],
    )


def id_ranks(ids: Sequence[str]) -> NDArray[np.int64]:
    """Returns the position of each id in sorted order, int64 (len(ids),)."""
    rank = np.empty(len(ids), np.int64)
    rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return rank


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the integers of the ranges start .. start + count, one behind the other."""
    before = np.cumsum(counts) - counts
    indices: NDArray[np.int64] = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return indices


def common_length(a: list[int], b: list[int]) -> int:
    """Returns the length of the common start of two lists."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
