"""Service statistics of the view: what finished calls, stages and tasks received (SCHEDULER.md section 2)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, lean
from topas_env._core.layout import HISTORY_LIMIT, View

__all__ = ["observe_call", "observe_stage", "ring_mean"]


@lean
def ring_mean(values: NDArray[np.float64], count: int, following: int) -> float:
    """Returns the mean of a ring of HISTORY_LIMIT places, summed from the oldest value on as a list would be."""
    total = 0.0
    if count == HISTORY_LIMIT:
        for i in range(following, HISTORY_LIMIT):
            total += values[i]
        for i in range(following):
            total += values[i]
    else:
        for i in range(count):
            total += values[i]
    return total / count


@lean
def observe_call(v: View, stage: int, service: float, output: int) -> None:
    """Records a finished call: its wall time from admission to completion and its output tokens."""
    stat: Any = v.stats[stage]
    v.calls[stage, stat.next_call] = service
    v.call_outputs[stage, stat.next_call] = output
    stat.next_call = (stat.next_call + 1) % HISTORY_LIMIT
    stat.n_calls = min(stat.n_calls + 1, HISTORY_LIMIT)
    stat.mean_call = ring_mean(v.calls[stage], i64(stat.n_calls), i64(stat.next_call))
    stat.version += 1


@lean
def observe_stage(v: View, stage: int, total: float) -> None:
    """Records the total service of a finished stage and keeps the ascending copy in order."""
    stat: Any = v.stats[stage]
    row = v.ordered[stage]
    n = stat.n_totals
    if n == HISTORY_LIMIT:
        gone = v.totals[stage, stat.next_total]
        i = np.searchsorted(row[:n], gone)
        while i < n - 1:
            row[i] = row[i + 1]
            i += 1
        n -= 1
    i = n
    while i > 0 and row[i - 1] > total:
        row[i] = row[i - 1]
        i -= 1
    row[i] = total
    v.totals[stage, stat.next_total] = total
    stat.next_total = (stat.next_total + 1) % HISTORY_LIMIT
    stat.n_totals = n + 1
    stat.version += 1
