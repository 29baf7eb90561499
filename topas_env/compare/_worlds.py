"""Workloads that are not what policies expect: other output lengths, a surge of arrivals."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from topas_env._core.trace import Trace
    from topas_env._workload import Workload

__all__ = ["scale_outputs", "surge_arrivals"]


def scale_outputs(workload: "Workload", factor: float) -> "Workload":
    """Returns the workload with all outputs `factor` times as long.

    Later calls of a stage repeat the outputs before them, so their prompts and histories grow or shrink with them. A
    client that asked for less than its output now needs asks for just that.

    Args:
        workload: The workload.
        factor: Above 0.
    """
    trace = workload.trace
    calls = trace.calls.copy()
    calls["output"] = np.maximum(np.rint(factor * trace.calls["output"]), 1)
    calls["max_new"] = np.maximum(calls["max_new"], calls["output"])
    more = _before(trace, calls["output"] - np.maximum(trace.calls["output"], 1))
    calls["suffix"] = np.maximum(calls["suffix"] + more, 1)
    calls["history"] = np.clip(calls["history"] + np.where(calls["history"] > 0, more, 0), 0, calls["suffix"])
    return replace(workload, trace=trace._replace(calls=calls))


def _before(trace: "Trace", values: NDArray[Any]) -> NDArray[np.int64]:
    """Returns for each call the sum of the values of the earlier calls of its stage."""
    upto = np.concatenate(([0], np.cumsum(values)))
    counts = np.diff(trace.first_call)
    before: NDArray[np.int64] = upto[:-1] - np.repeat(upto[trace.first_call[:-1]], counts)
    return before


def surge_arrivals(workload: "Workload", factor: float) -> "Workload":
    """Returns the workload with the middle third of its tasks arriving `factor` times as fast.

    Args:
        workload: The workload.
        factor: Above 0.
    """
    trace = workload.trace
    gaps = np.diff(trace.arrival, prepend=0.0)
    n = len(gaps)
    gaps[n // 3 : 2 * n // 3] /= factor
    return replace(workload, trace=trace._replace(arrival=np.cumsum(gaps)), arrival_rate=None)
