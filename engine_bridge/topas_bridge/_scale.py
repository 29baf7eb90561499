"""A workload made smaller, so that a tiny engine has the same contention as the real one had."""

import numpy as np

from topas_env import Agent, Workflow, Workload
from topas_env._errors import InputError

__all__ = ["scale_workload"]


def scale_workload(workload: Workload, *, prompt: float = 1.0, output: float = 1.0, time: float = 1.0) -> Workload:
    """Returns the workload with shorter prompts and outputs and another clock; every count stays at least 1.

    Args:
        workload: The workload.
        prompt: Factor of prefixes, suffixes and histories.
        output: Factor of output lengths and of what clients ask for.
        time: Factor of arrival times and tool waits.

    Raises:
        InputError: For a factor that is not positive.
    """
    for name, value in (("prompt", prompt), ("output", output), ("time", time)):
        if not (value > 0 and np.isfinite(value)):
            raise InputError(f"scale {name}: must be above 0 and finite: {value!r}")
    trace = workload.trace
    calls = trace.calls.copy()
    calls["suffix"] = np.maximum(np.rint(calls["suffix"] * prompt), 1)
    calls["history"] = np.minimum(np.rint(calls["history"] * prompt), calls["suffix"] - 1)
    calls["output"] = np.maximum(np.rint(calls["output"] * output), 1)
    calls["max_new"] = np.maximum(np.rint(calls["max_new"] * output), calls["output"])
    calls["tool"] *= time
    return Workload(
        name=workload.name,
        workflows=tuple(_smaller(workflow, prompt) for workflow in workload.workflows),
        trace=trace._replace(arrival=trace.arrival * time, calls=calls),
        task_ids=workload.task_ids,
        profile_s={},
        arrival_rate=None if workload.arrival_rate is None else workload.arrival_rate / time,
    )


def _smaller(workflow: Workflow, factor: float) -> Workflow:
    agents = tuple(Agent(a.name, max(round(a.prefix_tokens * factor), 1)) for a in workflow.agents)
    return Workflow(workflow.name, agents, workflow.stages)
