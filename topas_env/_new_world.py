"""Worlds from Python: a new one from a workload and a profile, more room for one that is full, a copy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.layout import HISTORY_LIMIT, View, empty_view
from topas_env._core.own_pass import ORDERS
from topas_env._core.world import (
    AGENT_STATE,
    CALL_RESULT,
    CLOCK,
    DECISION,
    EVENT,
    ITL_BINS,
    LOG,
    PHYSICS,
    REQUEST_STATE,
    SAMPLE,
    STAGE_STATE,
    TASK_STATE,
    World,
)
from topas_env._pack import write_costs
from topas_env._profile import EngineProfile
from topas_env._snapshot import EngineCosts
from topas_env._topology import Topology, topology
from topas_env._workload import NumberedIds, Workload

__all__ = ["ASSUMED_OUTPUT", "clone", "grow", "new_world", "physics_row", "request_order"]

# Output tokens of a stage where nothing is known of it, for the age scale before the first task is finished.
ASSUMED_OUTPUT = 256
_SEPARATORS = "/#:|~^!;,=@\x1f"


def has_tier(profile: EngineProfile, manages_prefixes: bool) -> bool:
    """Tells whether a policy may load prefixes from host memory."""
    return profile.host_tier == "all" or (profile.host_tier == "topas-only" and manages_prefixes)


def request_order(task_ids: Any) -> tuple[str, NDArray[np.int64] | None]:
    """Finds how request ids can start with task ids and still be ordered by task.

    Returns:
        A separator that no id contains, one character, empty if there is none left; the position of each
        `id + separator` in sorted order, int64 (n_tasks,), None where it is that of the ids.
    """
    if isinstance(task_ids, NumberedIds):
        return _SEPARATORS[0], None  # of equal length, and every character is above the separator
    ids = list(task_ids)
    used = set().union(*map(set, ids)) if ids else set()
    separator = next((mark for mark in _SEPARATORS if mark not in used), "")
    if not separator or not used or min(used) > separator:
        return separator, None
    keys = [name + separator for name in ids]
    order = np.empty(len(ids), np.int64)
    order[sorted(range(len(ids)), key=keys.__getitem__)] = np.arange(len(ids))
    return separator, order


def new_world(
    workload: Workload,
    profile: EngineProfile,
    *,
    believed: EngineProfile | None = None,
    manages_prefixes: bool = True,
    sglang_order: str = "",
    profile_s: dict[tuple[str, str], float] | None = None,
    decision_s: float = 0.0,
    record: int = 1,
    tasks_capacity: int = 64,
    requests_capacity: int = 64,
    decisions_capacity: int = 1024,
) -> World:
    """Returns a world at time 0, before the first arrival.

    Args:
        workload: What will happen.
        profile: How the engine behaves.
        believed: What policies are told about speeds; the profile by default. Budget, slots and reservation are always
            the engine's own.
        manages_prefixes: Whether the policy does; decides who has a host tier where the profile says `topas-only`.
        sglang_order: `fcfs` or `lpm` where SGLang's own pass admits and no policy; empty for a policy.
        profile_s: Expected service by (workflow, stage), seconds; the workload's own by default.
        decision_s: The engine stands still for so long after each decision.
        record: 0 for no logs, 1 for the table of decisions, 2 for everything that plots need.
        tasks_capacity: Unfinished tasks that there is room for before `GROW`.
        requests_capacity: Ready and running requests, likewise; at least twice what one event may make ready.
        decisions_capacity: Rows of the table of decisions, likewise.
    """
    t = topology(workload.workflows)
    tier = has_tier(profile, manages_prefixes)
    sources = [sum(not stage.after for stage in w.stages) for w in workload.workflows]
    max_out = max(1, int(t.stages["n_succ"].max(initial=1)), *sources)
    n_requests = max(requests_capacity, 2 * max_out)
    fixed = {"workflows": t.workflows, "preds": t.preds, "succs": t.succs, "topo": t.topo}
    v = empty_view(
        agents=len(t.agent_names),
        workflows=len(t.workflows),
        stages=len(t.stages),
        edges=len(t.preds),
        depth=t.depth,
        tasks=tasks_capacity,
        requests=n_requests,
    )._replace(**{name: array.copy() for name, array in fixed.items()})
    v.stages[:] = t.stages
    v.agents["prefix"] = t.prefix
    v.stats["mean_call"] = np.nan
    known = workload.profile_s if profile_s is None else profile_s
    for w, workflow in enumerate(workload.workflows):
        for i, stage in enumerate(workflow.stages):
            v.stages["profile"][t.workflows["stage0"][w] + i] = known.get((workflow.name, stage.name), np.nan)
    costs = (believed or profile).costs(host_tier=tier)
    write_costs(v, costs, budget=profile.kv_budget_tokens, max_running=profile.max_running_requests)
    v.head["reserve_ratio"] = profile.reserve_ratio
    v.head["reserve_cap"] = -1 if profile.reserve_cap_tokens is None else profile.reserve_cap_tokens
    v.head["age_scale"] = _age_scale(v, t, costs)
    clock = np.zeros(1, CLOCK)
    clock["n_free_tasks"] = tasks_capacity
    clock["n_free_requests"] = n_requests
    clock["leaf_head"] = clock["leaf_tail"] = -1
    clock["max_out"] = max_out
    clock["depth"] = t.depth
    clock["record"] = record
    clock["stuck_call"] = -1
    agents = np.zeros(len(t.agent_names), AGENT_STATE)
    agents["ready_at"] = -np.inf
    base = request_order(workload.task_ids)[1]
    rows = decisions_capacity if record >= 1 else 0
    lines = decisions_capacity if record >= 2 else 0
    return World(
        v=v,
        trace=workload.trace,
        physics=physics_row(profile, tier, decision_s, ORDERS[sglang_order]),
        clock=clock,
        agents=agents,
        tasks=np.zeros(tasks_capacity, TASK_STATE),
        stages=np.zeros((tasks_capacity, t.depth), STAGE_STATE),
        requests=np.zeros(n_requests, REQUEST_STATE),
        events=np.zeros(tasks_capacity + n_requests, EVENT),
        free_tasks=np.arange(tasks_capacity - 1, -1, -1, dtype=np.int64),
        free_requests=np.arange(n_requests - 1, -1, -1, dtype=np.int64),
        task_totals=np.zeros(HISTORY_LIMIT),
        base=workload.trace.rank if base is None else base,
        results=_no_results(len(workload.trace.calls)),
        jct=np.full(len(workload.trace.arrival), np.nan),
        itl=np.zeros(ITL_BINS, np.int64),
        decisions=np.zeros(rows, DECISION),
        wall=np.zeros(rows),
        log=np.zeros(8 * lines, LOG),
        samples=np.zeros(lines, SAMPLE),
        sample_tokens=np.zeros((lines, len(t.agent_names), 2), np.int64),
    )


def physics_row(profile: EngineProfile, tier: bool, decision_s: float, own_pass: int = 0) -> NDArray[Any]:
    p = np.zeros(1, PHYSICS)
    p["budget"] = min(profile.kv_budget_tokens, 2**62)
    p["max_running"] = min(profile.max_running_requests, 2**62)
    p["prefill_base"] = profile.prefill_base_s
    p["prefill_token"] = profile.prefill_s_per_token
    p["prefill_kv"] = profile.prefill_s_per_kv_token
    p["chunk"] = profile.chunk_tokens
    p["mixed"] = profile.mixed_chunk
    p["step_base"] = profile.step_base_s
    p["step_request"] = profile.step_s_per_request
    p["step_kv"] = profile.step_s_per_kv_token
    p["load_token"] = profile.load_s_per_token
    p["offload_token"] = profile.offload_s_per_token
    p["rebuild_decode"] = profile.rebuild == "decode"
    p["tier"] = tier
    p["eager"] = profile.eviction == "eager"
    p["decision"] = decision_s
    p["latency"] = profile.call_latency_s
    p["overlap"] = profile.overlap
    p["checked"] = profile.admission == "sglang" and not own_pass
    if profile.reserve_decay_steps > 0:
        p["reserve_moves"] = 1
        p["reserve_first"] = profile.reserve_ratio
        p["reserve_least"] = profile.reserve_min_ratio
        p["reserve_decay"] = (profile.reserve_ratio - profile.reserve_min_ratio) / profile.reserve_decay_steps
    p["own_pass"] = own_pass
    return p


def _no_results(n: int) -> NDArray[Any]:
    results = np.zeros(n, CALL_RESULT)
    for name in ("ready", "admitted", "readmitted", "first_token", "finish"):
        results[name] = np.nan
    return results


def _age_scale(v: View, t: Topology, costs: EngineCosts) -> float:
    """Returns the largest profiled path, seconds.

    A stage without a profile counts as the prefill of its agent's prefix and ASSUMED_OUTPUT decoded tokens.
    """
    guess = costs.prefill_base_s + costs.prefill_s_per_token * t.prefix + costs.decode_s_per_token * ASSUMED_OUTPUT
    best = 0.0
    for flow in t.workflows:
        first = int(flow["stage0"])
        path = np.zeros(int(flow["n_stages"]))
        for pos in t.topo[first : first + len(path)].tolist():
            stage = v.stages[first + pos]
            own = stage["profile"] if np.isfinite(stage["profile"]) else guess[stage["agent"]]
            before = t.preds[stage["pred0"] : stage["pred0"] + stage["n_pred"]]
            path[pos] = own + path[before].max(initial=0.0)
        best = max(best, float(path.max(initial=0.0)))
    return best if best > 0.0 else 1.0


def _longer(array: NDArray[Any], n: int) -> NDArray[Any]:
    """Returns the array with its first axis made n long, new rows zero."""
    made = np.zeros((n, *array.shape[1:]), array.dtype)
    made[: len(array)] = array
    return made


def grow(w: World) -> World:
    """Returns the same world with twice the room wherever it is short; the old one must not be used any more."""
    c = w.clock[0]
    v = w.v
    running, ready = int(v.head[0]["n_running"]), int(v.head[0]["n_ready"])
    # In a stack of worlds the arrays of one may be longer than its own rows, where another has grown: those come first.
    n_tasks = int(c["n_free_tasks"]) + int(v.head[0]["n_live"])
    n_requests = int(c["n_free_requests"]) + running + ready
    if c["n_free_tasks"] < 1:
        new = len(v.tasks) if len(v.tasks) > n_tasks else 2 * n_tasks
        v = v._replace(tasks=_longer(v.tasks, new), task_stages=_longer(v.task_stages, new), live=_longer(v.live, new))
        free = _longer(w.free_tasks, new)
        k = int(c["n_free_tasks"])
        free[k : k + new - n_tasks] = np.arange(new - 1, n_tasks - 1, -1)
        w = w._replace(v=v, tasks=_longer(w.tasks, new), stages=_longer(w.stages, new), free_tasks=free)
        c["n_free_tasks"] += new - n_tasks
    if c["n_free_requests"] < c["max_out"]:
        spare = len(v.requests) - n_requests
        new = len(v.requests) if spare >= c["max_out"] else max(len(v.requests), 2 * n_requests)
        v = v._replace(requests=_longer(v.requests, new), running=_longer(v.running, new), ready=_longer(v.ready, new))
        free = _longer(w.free_requests, new)
        k = int(c["n_free_requests"])
        free[k : k + new - n_requests] = np.arange(new - 1, n_requests - 1, -1)
        w = w._replace(v=v, requests=_longer(w.requests, new), free_requests=free)
        c["n_free_requests"] += new - n_requests
    if c["n_events"] + running >= len(w.events):
        w = w._replace(events=_longer(w.events, 2 * len(w.events) + running))
    if c["record"] >= 1 and c["n_decision_rows"] >= len(w.decisions):
        new = 2 * len(w.decisions) + 1
        w = w._replace(decisions=_longer(w.decisions, new), wall=_longer(w.wall, new))
    if c["record"] >= 2:
        need = int(c["n_log"]) + 4 * running + 2 * ready + 4 * len(w.agents) + 64
        if need > len(w.log):
            w = w._replace(log=_longer(w.log, 2 * need))
        if c["n_samples"] + 2 > len(w.samples):
            new = 2 * len(w.samples) + 2
            w = w._replace(samples=_longer(w.samples, new), sample_tokens=_longer(w.sample_tokens, new))
    return w


def clone(w: World) -> World:
    """Returns an independent copy that shares only what a run never writes: the trace and the workflows."""
    v = View(**{
        name: array if name in ("workflows", "stages", "preds", "succs", "topo") else array.copy()
        for name, array in w.v._asdict().items()
    })  # fmt: skip
    rest = {
        name: array if name == "base" else array.copy()
        for name, array in w._asdict().items()
        if name not in ("v", "trace")
    }
    return World(v=v, trace=w.trace, **rest)
