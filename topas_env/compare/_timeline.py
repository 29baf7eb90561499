"""The timeline of one run: when each request ran, and what the KV memory held; what the pictures are made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from topas_env._workload import Workload

__all__ = ["Timeline", "make_timeline"]

Timeline = dict[str, Any]
MOST_SPANS = 3_000
MOST_SAMPLES = 1_000


def make_timeline(
    workload: "Workload",
    agents: Sequence[str],
    budget: int,
    end_s: float,
    spans: NDArray[Any],
    samples: NDArray[Any],
    tokens: NDArray[np.int64],
) -> Timeline:
    """Returns the timeline as plain lists; of a long run the beginning, so that results stay small.

    Args:
        workload: what was served.
        agents: names, in the order of `tokens`.
        budget: KV budget, tokens.
        end_s: when the last task was finished.
        spans: (n,) with `start`, `end`, `agent`, `call` and `lost` (the attempt was preempted or retracted).
        samples: (m,) with `time`, `used` and `leaves` (history), in the order of time.
        tokens: int64 (m, n_agents, 2), the prefix and the running requests of each agent.
    """
    if len(spans) > MOST_SPANS:
        spans = spans[np.argsort(spans["start"], kind="stable")]
        end_s = float(spans["start"][MOST_SPANS])
        spans = spans[:MOST_SPANS]
        inside = samples["time"] <= end_s
        samples, tokens = samples[inside], tokens[inside]
    if len(samples) > MOST_SAMPLES:
        keep = np.unique(np.linspace(0, len(samples) - 1, MOST_SAMPLES).astype(np.int64))
        samples, tokens = samples[keep], tokens[keep]
    tasks, stages = _owners(workload, spans["call"])
    return {
        "agents": list(agents),
        "kv_budget_tokens": budget,
        "end_s": round(end_s, 4),
        "spans": {
            "task": tasks,
            "stage": stages,
            "agent": spans["agent"].tolist(),
            "start_s": spans["start"].round(4).tolist(),
            "end_s": np.minimum(spans["end"], end_s).round(4).tolist(),
            "preempted": spans["lost"].astype(np.int64).tolist(),
        },
        "memory": {
            "time_s": samples["time"].round(4).tolist(),
            "prefix_tokens": tokens[:, :, 0].T.tolist(),
            "running_tokens": tokens[:, :, 1].sum(axis=1).tolist(),
            "history_tokens": samples["leaves"].tolist(),
        },
    }


def _owners(workload: "Workload", calls: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Returns the task's id and the stage's name of each call."""
    trace = workload.trace
    rows = np.searchsorted(trace.first_call, calls, side="right") - 1
    tasks = np.searchsorted(trace.stage0, rows, side="right") - 1
    ids = [workload.task_ids[task] for task in tasks.tolist()]
    stages = [
        workload.workflows[trace.workflow[task]].stages[row - int(trace.stage0[task])].name
        for task, row in zip(tasks.tolist(), rows.tolist(), strict=True)
    ]
    return ids, stages
