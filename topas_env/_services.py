"""Expected service of stages from runs on other seeds, and the lower bound of a task's completion time."""

import functools

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env._errors import InputError
from topas_env._profile import EngineProfile
from topas_env._topology import topology
from topas_env._utilisation import call_prefixes
from topas_env._workload import Workload, WorkloadSpec, workload_names, workload_spec

__all__ = ["PROFILE_SEED", "bound_s", "known_services", "profile_services", "profile_workload"]

PROFILE_SEED = 20_000_000  # far from the seeds that people run
_PROFILE_TASKS = 200


def profile_workload(spec: WorkloadSpec, seed: int = PROFILE_SEED) -> Workload:
    """Returns the tasks that `profile_services` runs."""
    return spec.draw(seed=seed, num_tasks=_PROFILE_TASKS)


def profile_services(
    spec: WorkloadSpec, profile: EngineProfile, seed: int = PROFILE_SEED
) -> dict[tuple[str, str], float]:
    """Returns the mean LLM service of each stage under fcfs, seconds, by (workflow, stage).

    Args:
        spec: Where the tasks come from; 200 are drawn at its own rate.
        profile: The engine.
        seed: Of the draw: another one than those of the runs that use the result.

    Raises:
        InputError: One of their requests outgrows the KV budget.
    """
    from topas_env._core.choice import default_params, empty_choice
    from topas_env._core.codes import CODES
    from topas_env._core.run import run
    from topas_env._core.world import END, GROW
    from topas_env._new_world import grow, new_world

    workload = profile_workload(spec, seed)
    w = new_world(workload, profile, profile_s={}, record=0)
    state = GROW
    while state != END:
        choice = empty_choice(len(w.agents), len(w.v.requests))
        state = run(w, CODES["fcfs"], default_params(), choice, 2**62)
        if state == GROW:
            w = grow(w)
        elif state != END:
            raise InputError(
                f"{spec.name}: a request of the {_PROFILE_TASKS} tasks that its stages are profiled on outgrows "
                f"kv_budget_tokens = {profile.kv_budget_tokens}"
            )
    trace = workload.trace
    service = np.add.reduceat(w.results["finish"] - w.results["readmitted"], trace.first_call[:-1])
    counts = np.diff(np.append(trace.stage0, len(service)))
    flow = np.repeat(trace.workflow, counts)
    pos = np.arange(len(service)) - np.repeat(trace.stage0, counts)
    result = {}
    for f, workflow in enumerate(workload.workflows):
        for i, stage in enumerate(workflow.stages):
            mine = service[(flow == f) & (pos == i)]
            if len(mine):
                result[workflow.name, stage.name] = float(mine.mean())
    return result


def known_services(workload: Workload, profile: EngineProfile) -> dict[tuple[str, str], float]:
    """Returns what is known of a workload's stages before it is served.

    That is its own `profile_s`, else, for a shipped workload, the result of `profile_services`, kept in memory.
    """
    if workload.profile_s or workload.name not in workload_names():
        return workload.profile_s
    spec = workload_spec(workload.name)
    if spec.workflows != workload.workflows:
        return workload.profile_s
    return _cached(workload.name, msgspec.json.encode(profile))


@functools.lru_cache(maxsize=64)
def _cached(name: str, profile: bytes) -> dict[tuple[str, str], float]:
    return profile_services(workload_spec(name), msgspec.json.decode(profile, type=EngineProfile))


def bound_s(workload: Workload, profile: EngineProfile) -> NDArray[np.float64]:
    """Returns each task's critical path alone on the engine with its prefixes resident, seconds, float64 (num_tasks,).

    The longest path through the task's stages; a stage lasts the sum of its calls and of their tool waits; a call
    lasts its prefill without what its history leaves in the cache, in chunks, and output - 1 decode steps at batch 1.
    No policy can finish the task earlier.
    """
    trace = workload.trace
    calls = trace.calls
    first = np.zeros(len(calls), bool)
    first[trace.first_call[:-1]] = True
    before = np.zeros(len(calls), np.int64)
    before[1:] = calls["suffix"][:-1] + np.maximum(calls["output"][:-1], 1)
    leaf = np.where(first, 0, before)
    cached = np.minimum(calls["history"], leaf) if profile.eviction == "lazy" else np.zeros_like(leaf)
    work = np.maximum(calls["suffix"] - cached, 1)
    prefill = -(-work // profile.chunk_tokens) * profile.prefill_base_s + work * profile.prefill_s_per_token
    steps = np.maximum(calls["output"], 1) - 1
    context = call_prefixes(workload) + calls["suffix"] + 1
    step = profile.step_base_s + profile.step_s_per_request + profile.step_s_per_kv_token * context
    decode = steps * step + profile.step_s_per_kv_token * steps * (steps - 1) / 2
    stage_s = np.add.reduceat(prefill + decode + calls["tool"], trace.first_call[:-1])
    t = topology(workload.workflows)
    result = np.zeros(len(trace.arrival))
    for f, flow in enumerate(t.workflows):
        mine = np.flatnonzero(trace.workflow == f)
        done = np.zeros((int(flow["n_stages"]), len(mine)))
        base = int(flow["stage0"])
        for pos in t.topo[base : base + len(done)].tolist():
            stage = t.stages[base + pos]
            preds = t.preds[stage["pred0"] : stage["pred0"] + stage["n_pred"]]
            done[pos] = stage_s[trace.stage0[mine] + pos] + done[preds].max(axis=0, initial=0.0)
        result[mine] = done.max(axis=0, initial=0.0)
    return result
