"""What a learned policy sees: features of the scheduling point and of each candidate state.

None depends on how many agents, tasks or requests there are, and all come from the `View`, so one network serves any
workload, the environment and the live engine. Times are in units of `age_scale`, sizes in units of the KV budget,
counts and times through a logarithm that keeps the sign; every value lies in [-LIMIT, LIMIT].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Candidates
from topas_env._core.codes import CODES, SHORT_ORDERS
from topas_env._core.estimates import call_estimate, reserved
from topas_env._core.feature_names import CANDIDATE_FEATURES, GLOBAL_FEATURES, LIMIT
from topas_env._core.jit import inner, kernel, lean
from topas_env._core.layout import WAITING, View
from topas_env._core.orders import stage_paths
from topas_env._core.problem import reuse_counts
from topas_env._core.ref import ref

__all__ = ["CANDIDATE_FEATURES", "GLOBAL_FEATURES", "LIMIT", "describe", "features"]

_BEHIND = CANDIDATE_FEATURES.index("behind_best")
_N_BASE = CANDIDATE_FEATURES.index("by_fcfs")
_N_ORIGINS = len(CODES) + len(SHORT_ORDERS)


@lean
def _squash(x: float) -> float:
    """Returns log(1 + |x|) with the sign of x, within the limits."""
    y = np.log(1.0 + abs(x))
    return min(y, LIMIT) if x >= 0.0 else -min(y, LIMIT)


_ROW = np.dtype(
    [
        ("need", "i8"),
        ("stamp", "i8"),
        ("sink", "i8"),
        ("age", "f8"),
        ("depth", "f8"),
        ("call", "f8"),
        ("fill", "f8"),
        ("path", "f8"),
        ("held", "f8"),
        ("left", "f8"),
    ],
    align=True,
)


@inner
def _rows(v: View) -> NDArray[Any]:
    """Returns what the candidates' features need of each request, so that it is computed once a point."""
    h = v.head[0]
    mean = np.empty(v.stages.shape[0])
    path = np.empty(v.stages.shape[0])
    stage_paths(v, mean, path)
    rows = np.empty(v.requests.shape[0], _ROW)
    for k in range(h.n_running + h.n_ready):
        at = v.running[k] if k < h.n_running else v.ready[k - h.n_running]
        r = v.requests[at]
        x = rows[at]
        x.need = reserved(v.head[0], v.requests[at])
        x.stamp = -1
        x.sink = 1 if v.stages[r.stage].n_succ == 0 else 0
        x.age = h.time - v.tasks[r.task].arrival
        x.depth = _depth(v, at)
        x.call = call_estimate(v.head[0], v.stats, v.requests[at])
        x.fill = h.prefill_token * (r.suffix - r.cached + r.generated)
        x.path = path[r.stage] - min(v.task_stages[r.task, r.pos].service, 0.9 * mean[r.stage])
        x.held = r.cached / max(r.suffix, 1)
        x.left = max(x.call - (h.time - r.admitted), 0.1 * x.call) if k < h.n_running else x.call
    return rows


@lean
def _depth(v: View, row: int) -> float:
    """Returns how far down its workflow a request's stage is, 0 to 1."""
    r = v.requests[row]
    w = v.workflows[v.stages[r.stage].workflow]
    deepest = 0
    for s in range(w.stage0, w.stage0 + w.n_stages):
        deepest = max(deepest, v.stages[s].depth)
    return v.stages[r.stage].depth / deepest if deepest > 0 else 1.0


_AGENT = np.dtype(
    [
        ("ready", "i8"),  # its ready requests
        ("running", "i8"),
        ("soon", "i8"),  # its stages that the end of a running request makes ready
        ("future", "i8"),  # its waiting stages of unfinished tasks
        ("stamp", "i8"),  # the candidate that was found to use it last
    ],
    align=True,
)


@inner
def _agents(v: View) -> NDArray[Any]:
    """Returns what the candidates' features need of each agent."""
    h = v.head[0]
    agents = np.zeros(v.agents.shape[0], _AGENT)
    soon = reuse_counts(v)
    for a in range(agents.shape[0]):
        agents[a].soon = soon[a]
        agents[a].stamp = -1
    for i in range(h.n_ready):
        agents[v.requests[v.ready[i]].agent].ready += 1
    for i in range(h.n_running):
        agents[v.requests[v.running[i]].agent].running += 1
    for i in range(h.n_live):
        flow = v.workflows[v.tasks[v.live[i]].workflow]
        for pos in range(flow.n_stages):
            if v.task_stages[v.live[i], pos].status == WAITING:
                agents[v.stages[flow.stage0 + pos].agent].future += 1
    return agents


@inner
def _overall(v: View, rows: NDArray[Any], agents: NDArray[Any], out: NDArray[np.float32]) -> None:
    h = v.head[0]
    unit = h.age_scale
    budget = float(h.budget)
    resident = 0
    cached = 0
    for a in range(v.agents.shape[0]):
        if v.agents[a].resident:
            resident += v.agents[a].prefix
        elif v.agents[a].cached:
            cached += v.agents[a].prefix
    running = 0
    left = 0.0
    least = 0.0
    for k in range(h.n_running):
        x = rows[v.running[k]]
        running += x.need
        left += x.left
        least = x.left if k == 0 else min(least, x.left)
    seen = np.zeros(v.agents.shape[0], np.uint8)
    demand = 0
    depth = 0.0
    wait = 0.0
    call = 0.0
    load = 0.0
    path = 0.0
    held = 0.0
    for i in range(h.n_ready):
        row = v.ready[i]
        r = v.requests[row]
        path += rows[row].path
        held += rows[row].held
        demand += rows[row].need
        depth += rows[row].depth
        wait += h.time - r.ready
        call += rows[row].call
        load += v.agents[r.agent].prefix * h.load_token
        seen[r.agent] = 1
    age = 0.0
    oldest = 0.0
    for i in range(h.n_live):
        x = h.time - v.tasks[v.live[i]].arrival
        age += x
        oldest = max(oldest, x)
    n = max(h.n_ready, 1)
    out[0] = _squash(h.n_running)
    out[1] = _squash(h.n_ready)
    out[2] = _squash(h.n_live)
    out[3] = min(resident / budget, LIMIT)
    out[4] = min(cached / budget, LIMIT)
    out[5] = min(running / budget, LIMIT)
    out[6] = max(1.0 - (resident + running) / budget, -LIMIT)
    out[7] = _squash(demand / budget)
    out[8] = _squash(h.max_running - h.n_running)
    out[9] = _squash(age / max(h.n_live, 1) / unit)
    out[10] = _squash(oldest / unit)
    out[11] = _squash(wait / n / unit)
    out[12] = depth / n
    out[13] = _squash(call / n / unit)
    out[14] = _squash(load / max(call, 1e-9))
    out[15] = _squash(h.rebuild_token / h.decode_token)
    out[16] = _squash(1000.0 * h.prefill_token / h.decode_token)
    out[17] = _squash(float(np.sum(seen)))
    out[18] = _squash(path / n / unit)
    out[19] = min(held / n, LIMIT)
    soon = 0
    future = 0
    most = 0
    used = 0
    for a in range(agents.shape[0]):
        soon += agents[a].soon
        future += agents[a].future
        most = max(most, agents[a].ready)
        used += 1 if agents[a].running > 0 else 0
    out[20] = _squash(soon)
    out[21] = _squash(left / max(h.n_running, 1) / unit)
    out[22] = _squash(least / unit)
    out[23] = _squash(used)
    out[24] = _squash(future)
    out[25] = _squash(most)


@inner
def _by_age(v: View, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the ready requests, those of the oldest task first (they come nearly so: insertion is cheap)."""
    n = v.head[0].n_ready
    order = np.empty(n, np.int64)
    for i in range(n):
        row = v.ready[i]
        j = i
        while j > 0 and rows[order[j - 1]].age < rows[row].age:
            order[j] = order[j - 1]
            j -= 1
        order[j] = row
    return order


@lean
def _candidate(
    v: View,
    rows: NDArray[Any],
    by_age: NDArray[np.int64],
    agents: NDArray[Any],
    c: Candidates,
    k: int,
    out: NDArray[np.float32],
) -> None:
    """Writes the features of candidate k."""
    h = v.head[0]
    unit = h.age_scale
    budget = float(h.budget)
    info = c.info[k]
    prefixes = 0
    idle = 0
    incoming = 0
    outgoing = 0
    n_prefixes = 0
    tokens = 0
    age = 0.0
    depth = 0.0
    sinks = 0
    call = 0.0
    fill = 0.0
    path = 0.0
    held = 0.0
    fresh = 0
    next_kept = 0
    next_left = 0
    kept_future = 0
    left_future = 0
    cached_demand = 0
    spare = 0
    new_prefixes = 0
    total = info.n_kept + info.n_admitted
    for i in range(total):
        row = c.rows[k, i]
        x = rows[row]
        agents[v.requests[row].agent].stamp = k
        tokens += x.need
        if i >= info.n_kept:
            x.stamp = k
            fresh += x.need
            age += x.age
            depth += x.depth
            sinks += x.sink
            call += x.call
            fill += x.fill
            path += x.path
            held += x.held
            stage = v.stages[v.requests[row].stage]
            base = v.workflows[stage.workflow].stage0
            for e in range(stage.succ0, stage.succ0 + stage.n_succ):
                if c.prefixes[k, v.stages[base + v.succs[e]].agent]:
                    next_kept += 1
                else:
                    next_left += 1
    covered = -info.n_admitted  # the agent of what is admitted is always kept
    soon_covered = 0
    most_left = 0
    most_admitted = 0
    for a in range(v.agents.shape[0]):
        agent = v.agents[a]
        if c.prefixes[k, a]:
            covered += agents[a].ready
            soon_covered += agents[a].soon
            kept_future += agents[a].future
            new_prefixes += 1 if agents[a].running == 0 else 0
            prefixes += agent.prefix
            n_prefixes += 1
            if agents[a].stamp != k:
                idle += agent.prefix
            most_admitted = max(most_admitted, agents[a].ready)
            if not agent.resident and not agent.cached:
                incoming += agent.prefix
        else:
            most_left = max(most_left, agents[a].ready)
            left_future += agents[a].future
            if agent.resident or agent.cached:
                cached_demand += agents[a].ready + agents[a].soon
                spare += agent.prefix
            if agent.resident:
                outgoing += agent.prefix
    left_age = 0.0
    left_path = 0.0
    left_sinks = 0
    n_left = 0
    for i in range(h.n_ready):
        x = rows[by_age[i]]
        if x.stamp != k:
            if n_left == 0:
                left_age = x.age
            n_left += 1
            left_path += x.path
            left_sinks += x.sink
    n = max(info.n_admitted, 1)
    out[0] = 1.0
    out[1] = info.n_kept / max(h.n_running, 1)
    out[2] = _squash(info.n_admitted)
    out[3] = _squash(info.n_preempted)
    out[4] = _squash(info.admit / unit)
    out[5] = _squash(info.move / unit)
    out[6] = _squash(info.redo / unit)
    out[7] = _squash(info.revoke / unit)
    out[8] = _squash(info.reuse / unit)
    out[9] = _squash(info.total / unit)
    out[11] = min(prefixes / budget, LIMIT)
    out[12] = min(tokens / budget, LIMIT)
    out[13] = max(1.0 - (prefixes + tokens) / budget, -LIMIT)
    out[14] = min(idle / budget, LIMIT)
    out[15] = min(incoming / budget, LIMIT)
    out[16] = min(outgoing / budget, LIMIT)
    out[17] = _squash(n_prefixes)
    out[18] = info.n_admitted / max(h.n_ready, 1)
    out[19] = _squash(total)
    out[20] = _squash(age / n / unit)
    out[21] = _squash(left_age / unit)
    out[22] = depth / n
    out[23] = _squash(sinks)
    out[24] = _squash(call / n / unit)
    out[25] = _squash(covered)
    out[26] = _squash(h.n_ready - info.n_admitted - covered)
    out[27] = _squash(info.admit / unit / max(fresh / budget, 1e-3))
    out[28] = _squash(fill / unit)
    out[29] = _squash(path / n / unit)
    out[30] = min(held / n, LIMIT)
    out[31] = _squash(soon_covered)
    out[32] = _squash(h.load_token * incoming / unit)
    out[33] = _squash(left_path / max(n_left, 1) / unit)
    out[34] = _squash(left_sinks)
    out[35] = _squash(most_left)
    out[36] = _squash(most_admitted)
    out[37] = _squash(kept_future)
    out[38] = _squash(left_future)
    out[39] = _squash(next_kept)
    out[40] = _squash(next_left)
    out[41] = min(max(spare + prefixes + tokens - budget, 0.0) / budget, LIMIT)
    out[42] = _squash(cached_demand)
    out[43] = _squash(new_prefixes)
    for b in range(_N_ORIGINS):
        out[_N_BASE + b] = (info.origin >> b) & 1


@inner
def describe(v: View, c: Candidates, overall: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
    """Writes the features of the point and of its candidates.

    Args:
        v: The scheduling point.
        c: Its candidates, as `candidates` fills them.
        overall: float32 (len(GLOBAL_FEATURES),), written.
        rows: float32 (n, len(CANDIDATE_FEATURES)) with n at least the number of candidates, written; rows without a
            candidate are zero.
    """
    table = _rows(v)
    by_age = _by_age(v, table)
    agents = _agents(v)
    _overall(v, table, agents, overall)
    best = -np.inf
    for k in range(c.count[0]):
        best = max(best, c.info[k].total)
    for k in range(rows.shape[0]):
        if k < c.count[0]:
            _candidate(v, table, by_age, agents, c, k, rows[k])
            rows[k, _BEHIND] = _squash((c.info[k].total - best) / v.head[0].age_scale)
        else:
            for x in range(rows.shape[1]):
                rows[k, x] = 0.0


@kernel
def features(v: View, c: Candidates, overall: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
    """As `describe`, for callers in Python."""
    describe(ref(v), ref(c), overall, rows)
