"""Queues that finish with the prefixes that are there before they fetch another: `hold-` policies and the planner's.

A code holds the parts of such a policy: what goes first, whether requests of prefixes in use go before all others, how
many requests must be able to run before another prefix is fetched, and whether what does not fit is passed over.
"""

import numpy as np
from numpy.typing import NDArray

from topas_env._core.baselines import keep_running, match
from topas_env._core.choice import Choice
from topas_env._core.codes import CODES
from topas_env._core.estimates import reserved
from topas_env._core.jit import i64, inner, lean
from topas_env._core.layout import DONE, View

__all__ = ["FIRST_OWN", "KEYS", "NOBODY", "hold_order", "order", "own_code", "stage_paths"]

FIRST_OWN = 1000  # codes of compiled policies are below

# What goes first within a class; of equals what became ready first.
KEYS = ("ready", "arrival", "depth", "path", "left", "many", "match", "few")
_READY, _ARRIVAL, _DEPTH, _PATH, _LEFT, _MANY, _MATCH, _FEW = range(8)
_MATCH_LIMIT = 1e9  # above any match: fewer stages left go before longer matches


def own_code(key: str, *, hold: bool, gate: int = 1, skip: bool = False) -> int:
    """Returns the code of a base policy of the planner's own.

    Args:
        key: One of `KEYS`.
        hold: Requests of prefixes that running or just admitted requests use go before the others.
        gate: A further prefix is fetched for so many requests at least, unless nothing would run.
        skip: Pass over what does not fit; else it ends the walk.
    """
    return FIRST_OWN + KEYS.index(key) + 8 * hold + 16 * skip + 32 * gate


NOBODY = own_code("ready", hold=False)  # for where nobody is admitted, so that any order will do


@lean
def stage_paths(v: View, mean: NDArray[np.float64], path: NDArray[np.float64]) -> None:
    """Writes each stage's expected service and its longest path to a sink, seconds, float64 (n_stages,) each."""
    h = v.head[0]
    for f in range(len(v.workflows)):
        base = v.workflows[f].stage0
        n = v.workflows[f].n_stages
        for i in range(n - 1, -1, -1):
            s = base + v.topo[base + i]
            stage = v.stages[s]
            stat = v.stats[s]
            total = 0.0
            if stat.n_totals > 0:
                for k in range(stat.n_totals):
                    total += v.ordered[s, k]
                total /= stat.n_totals
            elif not np.isnan(stage.profile):
                total = stage.profile
            elif stat.n_calls > 0:
                total = stat.mean_call
            else:
                total = h.decode_token * 256.0
            mean[s] = total
            longest = 0.0
            for k in range(stage.succ0, stage.succ0 + stage.n_succ):
                longest = max(longest, path[base + v.succs[k]])
            path[s] = total + longest


@lean
def _left(v: View, task: int, mean: NDArray[np.float64]) -> float:
    """Returns the expected service of a task's unfinished stages."""
    flow = v.workflows[v.tasks[task].workflow]
    total = 0.0
    for pos in range(flow.n_stages):
        shown = v.task_stages[task, pos]
        if shown.status != DONE:
            total += max(mean[flow.stage0 + pos] - shown.service, 0.1 * mean[flow.stage0 + pos])
    return total


@lean
def _open_stages(v: View, task: int) -> int:
    """Returns how many stages of a task are not finished."""
    n = 0
    for pos in range(v.workflows[v.tasks[task].workflow].n_stages):
        n += v.task_stages[task, pos].status != DONE
    return n


@lean
def _before(v: View, keys: NDArray[np.float64], i: int, j: int) -> bool:
    """Tells whether ready request i goes before j within a class: by key, then by ready time, then by id."""
    if keys[i] != keys[j]:
        return keys[i] < keys[j]
    x = v.requests[v.ready[i]]
    y = v.requests[v.ready[j]]
    return x.ready < y.ready or (x.ready == y.ready and x.rank < y.rank)


@inner
def order(
    v: View,
    code: int,
    mean: NDArray[np.float64],
    path: NDArray[np.float64],
    allowed: NDArray[np.uint8],
    most: int,
    out: Choice,
) -> None:
    """Writes what the planner's own base policy does.

    Args:
        v: What may be seen.
        code: From `own_code`.
        mean: From `stage_paths`.
        path: From `stage_paths`.
        allowed: uint8 (n_agents,), 0 for agents whose requests are left alone.
        most: So many requests are admitted at most.
        out: Written, without its score.
    """
    parts = code - FIRST_OWN
    key = parts % 8
    hold = (parts // 8) % 2
    skip = (parts // 16) % 2
    gate = parts // 32
    h = v.head[0]
    n = h.n_ready
    n_agents = len(v.agents)
    info = out.info[0]
    room = keep_running(v, out)
    total = info.n_kept
    need = np.empty(n, np.int64)
    keys = np.empty(n)
    state = np.zeros(n, np.uint8)  # 1: admitted or passed over
    count = np.zeros(n_agents, np.int64)
    least = np.full(n_agents, 1 << 60, np.int64)
    for i in range(n):
        r = v.requests[v.ready[i]]
        need[i] = reserved(v.head[0], v.requests[v.ready[i]])
        if not allowed[r.agent]:
            state[i] = 1
            continue
        count[r.agent] += 1
        least[r.agent] = min(least[r.agent], need[i])
    for i in range(n):
        if state[i]:
            continue
        r = v.requests[v.ready[i]]
        x = 0.0
        if key == _ARRIVAL:
            x = v.tasks[r.task].arrival
        elif key == _DEPTH:
            x = -float(v.stages[r.stage].depth)
        elif key == _PATH:
            x = path[r.stage] - min(v.task_stages[r.task, r.pos].service, 0.9 * mean[r.stage])
        elif key == _LEFT:
            x = _left(v, i64(r.task), mean)
        elif key == _MANY:
            x = -float(count[r.agent])
        elif key == _MATCH:
            x = -match(v, v.ready[i])
        elif key == _FEW:
            x = _MATCH_LIMIT * _open_stages(v, i64(r.task)) - match(v, v.ready[i])
        keys[i] = x
    while total < h.max_running and total - info.n_kept < most:
        head = -1
        mine = 0
        for i in range(n):
            if state[i]:
                continue
            other = 1 if hold and not out.prefixes[v.requests[v.ready[i]].agent] else 0
            if head < 0 or other < mine or (other == mine and _before(v, keys, i, head)):
                head = i
                mine = other
        if head < 0:
            break
        row = v.ready[head]
        agent = v.requests[row].agent
        fetch = 0 if out.prefixes[agent] else v.agents[agent].prefix
        if fetch > 0 and gate > 1 and total > 0:
            could = 0
            if room > fetch:
                could = min(count[agent], (room - fetch) // max(least[agent], 1))
            if could < gate:
                for i in range(n):
                    if v.requests[v.ready[i]].agent == agent:
                        state[i] = 1
                continue
        if need[head] + fetch > room:
            if not skip:
                break
            state[head] = 1
            continue
        room -= need[head] + fetch
        out.prefixes[agent] = 1
        out.rows[total] = row
        out.credits[total] = 0.0
        state[head] = 1
        total += 1
    info.n_admitted = total - info.n_kept


_HOLD_MANY = own_code("many", hold=True)
_HOLD_DEPTH = own_code("depth", hold=True)
_HOLD_MANY_CODE = CODES["hold-many"]


@inner
def hold_order(v: View, code: int, out: Choice) -> None:
    """Writes what `hold-many` or `hold-depth` does, by its code in `CODES`; neither looks at services."""
    none = np.empty(0)
    everyone = np.ones(len(v.agents), np.uint8)
    order(v, _HOLD_MANY if code == _HOLD_MANY_CODE else _HOLD_DEPTH, none, none, everyone, 1 << 60, out)
