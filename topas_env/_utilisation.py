"""How much of an engine a workload asks for, and whether its largest request fits at all."""

import math
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from topas_env._errors import InputError
from topas_env._profile import EngineProfile
from topas_env._workload import Workload

__all__ = ["check_fits", "most_tokens", "offered_rate", "task_engine_s", "utilisation"]


def utilisation(workload: Workload, profile: EngineProfile) -> float:
    """Returns the share of the engine's time that a perfect batcher would need.

    It is `offered_rate` times the mean of `task_engine_s`.

    Above 1 no policy can keep up. It is a lower bound of the load: prefixes are there for nothing, history is always
    still cached, and every call runs in a full batch of calls like itself.
    """
    return offered_rate(workload) * float(task_engine_s(workload, profile).mean())


def offered_rate(workload: Workload) -> float:
    """Returns tasks per second: the rate of the Poisson process, else (tasks - 1) / span of the recorded arrivals.

    Infinite where all tasks arrive at once, or there is only one.
    """
    if workload.arrival_rate is not None:
        return workload.arrival_rate
    arrival = workload.trace.arrival
    span = float(arrival[-1] - arrival[0])
    return (len(arrival) - 1) / span if span > 0 else math.inf


def task_engine_s(workload: Workload, profile: EngineProfile) -> NDArray[np.float64]:
    """Returns the engine time of each task under a perfect batcher, seconds, float64 (num_tasks,).

    The sum over the task's calls of

    * prefill of its suffix without its history, the batch's fixed time shared by `chunk_tokens`:
      `(suffix - history) * (prefill_s_per_token + prefill_base_s / chunk_tokens)`, and
    * `output - 1` decode steps (prefill yields the first token), each shared by a batch of b calls like it:
      `(step_base_s + b * (step_s_per_request + step_s_per_kv_token * (prefix + suffix + output / 2))) / b`,
      where b is the largest number of them that fits beside their prefix alone,
      `floor((kv_budget - prefix) / (suffix + max(output, reservation)))`, from 1 to `max_running_requests`.
    """
    calls = workload.trace.calls
    prefix = call_prefixes(workload)
    own = _own_tokens(calls, profile, np.zeros_like(calls["output"]))
    batch = np.clip((profile.kv_budget_tokens - prefix) // np.maximum(own, 1), 1, profile.max_running_requests)
    per_token = profile.prefill_s_per_token + profile.prefill_base_s / profile.chunk_tokens
    prefill = (calls["suffix"] - calls["history"]) * per_token
    context = prefix + calls["suffix"] + calls["output"] / 2
    step = profile.step_base_s / batch + profile.step_s_per_request + profile.step_s_per_kv_token * context
    seconds = prefill + np.maximum(calls["output"] - 1, 0) * step
    first = workload.trace.first_call[workload.trace.stage0]
    total: NDArray[np.float64] = np.add.reduceat(seconds, first)
    return total


def check_fits(workload: Workload, profile: EngineProfile) -> None:
    """Checks that every call fits into the KV budget alone with its prefix, at every length that it will have.

    What it needs is the largest reservation d_r of SNAPSHOT.md from its first to its last token, so that a call which
    was preempted late can run again.

    Raises:
        InputError: The largest call does not fit; the line has what it needs and what there is.
    """
    calls = workload.trace.calls
    need = most_tokens(workload, profile)
    worst = int(need.argmax())
    if need[worst] <= profile.kv_budget_tokens:
        return
    trace = workload.trace
    row = int(np.searchsorted(trace.first_call, worst, side="right")) - 1
    task = int(np.searchsorted(trace.stage0, row, side="right")) - 1
    stage = workload.workflows[trace.workflow[task]].stages[row - int(trace.stage0[task])]
    path = f"$.tasks[{task}].stages[{row - int(trace.stage0[task])}].calls[{worst - int(trace.first_call[row])}]"
    where = f"{path} (task {workload.task_ids[task]!r}, stage {stage.name!r})"
    many = int((need > profile.kv_budget_tokens).sum())
    raise InputError(
        f"workload {workload.name}: {where} needs {int(need[worst])} tokens, "
        f"more than kv_budget_tokens {profile.kv_budget_tokens} of profile {profile.name}; "
        f"{many} of {len(calls)} requests can never fit"
    )


def call_prefixes(workload: Workload) -> NDArray[np.int64]:
    """Returns the prefix tokens of the agent of each call, int64 (num_requests,)."""
    prefixes: list[int] = []
    offsets: list[int] = []
    for workflow in workload.workflows:
        tokens = {agent.name: agent.prefix_tokens for agent in workflow.agents}
        offsets.append(len(prefixes))
        prefixes.extend(tokens[stage.agent] for stage in workflow.stages)
    trace = workload.trace
    rows = len(trace.first_call) - 1
    counts = np.diff(np.append(trace.stage0, rows))
    # Row of a stage in `prefixes`: its position in the task plus the offset of the task's workflow.
    shift = np.array(offsets, np.int64)[trace.workflow] - trace.stage0
    per_row = np.array(prefixes, np.int64)[np.arange(rows) + np.repeat(shift, counts)]
    return np.repeat(per_row, np.diff(trace.first_call))


def _own_tokens(calls: NDArray[Any], profile: EngineProfile, generated: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns what each call holds beside its prefix: suffix + max(output, reservation after `generated` tokens)."""
    left = calls["max_new"] - generated
    if profile.reserve_cap_tokens is not None:
        left = np.minimum(left, profile.reserve_cap_tokens)
    reserved = np.ceil(profile.reserve_ratio * left).astype(np.int64)
    own: NDArray[np.int64] = calls["suffix"] + np.maximum(calls["output"], generated + reserved)
    return own


def most_tokens(workload: Workload, profile: EngineProfile) -> NDArray[np.int64]:
    """Returns the most that each call and its prefix may take: at its first token, its last, or where the cap ends.

    d_r of SNAPSHOT.md grows with every token while the cap counts fewer than are to come, or the ratio is below 1. A
    KV budget of the largest of these is the smallest that every call fits. A ratio that moves may rise to 1.

    Returns:
        int64 (num_requests,), tokens.
    """
    if profile.reserve_decay_steps > 0:
        profile = replace(profile, reserve_ratio=max(profile.reserve_ratio, 1.0))
    calls = workload.trace.calls
    last = calls["output"] - 1
    cap = profile.reserve_cap_tokens
    bend = last if cap is None else np.clip(calls["max_new"] - cap, 0, last)
    points = [_own_tokens(calls, profile, generated) for generated in (np.zeros_like(last), bend, last)]
    most: NDArray[np.int64] = call_prefixes(workload) + np.maximum.reduce(points)
    return most
