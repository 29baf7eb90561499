"""Service estimates and paths of tasks with a ready request (SCHEDULER.md sections 2 and 3; paper, eq. 4 to 6)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, inner, lean
from topas_env._core.layout import DONE, READY, WAITING, View
from topas_env._core.marginals import GROUP, READY_INFO, Paths, first_marginals, new_paths
from topas_env._core.ref import ref

__all__ = ["Estimates", "call_estimate", "estimate", "reserved"]


class Estimates(NamedTuple):
    """Paths of the tasks that have a ready request.

    Attributes:
        ready: READY_INFO (n_ready,), one for each position in `View.ready`.
        groups: GROUP (n_tasks,), the tasks in the order of their first ready request.
        paths: Their paths.
    """

    ready: NDArray[Any]
    groups: NDArray[Any]
    paths: Paths


@lean
def to_come(h: Any, r: Any) -> int:
    """Returns the tokens that request `r` may still generate, as far as they are reserved for."""
    left = max(r.max_new - r.generated, 0)
    if h.reserve_cap >= 0 and left > h.reserve_cap:
        left = h.reserve_cap
    return int(left)


@lean
def reserved(h: Any, r: Any) -> int:
    """Returns d_r of request `r` (REQUEST) under `h` (HEAD): its tokens beside its prefix (SNAPSHOT.md, Decision)."""
    return int(r.suffix + r.generated + np.int64(np.ceil(h.reserve_ratio * to_come(h, r))))


@lean
def call_estimate(h: Any, stats: NDArray[Any], r: Any) -> float:
    """Returns D_r, the expected LLM service of request `r` in seconds; `stats` is `View.stats`."""
    stat = stats[r.stage]
    if stat.n_calls > 0:
        return float(stat.mean_call)
    return float(h.prefill_base + h.prefill_token * (r.suffix - r.cached) + h.decode_token * r.max_new)


@lean
def _agent_estimate(v: View, agent: int) -> float:
    """Returns the mean D_r over the requests of an agent, or the base cost of a prefill where there is none."""
    total = 0.0
    n = 0
    for k in range(v.head[0].n_running + v.head[0].n_ready):
        row = v.running[k] if k < v.head[0].n_running else v.ready[k - v.head[0].n_running]
        if v.requests[row].agent == agent:
            total += call_estimate(v.head[0], v.stats, v.requests[row])
            n += 1
    return total / n if n > 0 else float(v.head[0].prefill_base)


@lean
def _residual(v: View, task: int, pos: int) -> tuple[int, int, float, float]:
    """Returns the residual service of an unfinished stage as (first, count, spent, point).

    With first >= 0 it is the `count` values ordered[stage, first:] - spent; else a point mass at `point`.
    """
    state = v.task_stages[task, pos]
    stage = v.workflows[v.tasks[task].workflow].stage0 + pos
    stat = v.stats[stage]
    spent = state.service
    if stat.n_totals > 0:
        if spent <= 0.0:
            return 0, stat.n_totals, 0.0, 0.0
        low = 0
        high = stat.n_totals
        while low < high:
            mid = (low + high) // 2
            if v.ordered[stage, mid] > spent:
                high = mid
            else:
                low = mid + 1
        if low < stat.n_totals:
            return low, stat.n_totals - low, spent, 0.0
    else:
        total = v.stages[stage].profile
        if np.isnan(total):
            total = (
                call_estimate(v.head[0], v.stats, v.requests[state.request])
                if state.request >= 0
                else _agent_estimate(v, v.stages[stage].agent)
            )
        if spent <= 0.0 or total > spent:
            return -1, 1, 0.0, total - spent
    if stat.n_calls > 0:
        return -1, 1, 0.0, stat.mean_call
    if state.request >= 0:
        return -1, 1, 0.0, call_estimate(v.head[0], v.stats, v.requests[state.request])
    return -1, 1, 0.0, v.head[0].prefill_base


@lean
def _steps(n_stages: int, out: NDArray[np.float64]) -> None:
    """Writes draw k of stage j as out[j, k], in [0, 1): the R_d sequence for `n_stages` stages (Roberts, 2018)."""
    root = 1.5
    for _ in range(64):
        power = root**n_stages
        move = (power * root - root - 1.0) / ((n_stages + 1) * power - 1.0)
        root -= move
        if abs(move) < 1e-16:
            break
    for j in range(n_stages):
        a = root ** -(j + 1.0)
        step = a - np.floor(a)
        draws = out[j]
        for k in range(draws.shape[0]):
            u = 0.5 + (k + 1) * step
            draws[k] = u - np.floor(u)


@lean
def _same_state(v: View, a: int, b: int, n_stages: int) -> bool:
    """Tells whether two tasks of one workflow have equal residuals and equal estimates of their requests."""
    for j in range(n_stages):
        x = v.task_stages[a, j]
        y = v.task_stages[b, j]
        if x.status != y.status or x.service != y.service or (x.request < 0) != (y.request < 0):
            return False
        if x.request >= 0 and call_estimate(v.head[0], v.stats, v.requests[x.request]) != call_estimate(
            v.head[0], v.stats, v.requests[y.request]
        ):
            return False
    return True


SPREAD = np.dtype(
    [
        ("first", "i8"),  # of `View.ordered`, -1 for a point mass
        ("count", "i8"),
        ("spent", "f8"),
        ("point", "f8"),
        ("row", "i8"),  # among the rows of its task
        ("fresh", "i8"),  # 1: nothing of it and of what follows it was served, so every such task has the same draws
        ("at", "i8"),  # row of `Draws.z` and `Draws.down`
    ],
    align=True,
)


class Draws(NamedTuple):
    """Draws of the residuals, and scratch.

    Attributes:
        uniform: float64 (workflows, stages of one, scenarios), in [0, 1).
        known: int64 (stages,), 1 where the draws of an unserved stage are in its row of `z` and `down`.
        z: float64 (stages + stages of one, outcomes), residual of a stage: first the unserved ones, then those of
            the task at hand.
        down: float64, the same for the longest path behind it.
        spread: SPREAD (stages of one,), of the task at hand.
    """

    uniform: NDArray[np.float64]
    known: NDArray[np.int64]
    z: NDArray[np.float64]
    down: NDArray[np.float64]
    spread: NDArray[Any]


@lean
def _residuals(v: View, task: int, d: Draws, limit: int) -> int:
    """Fills `spread` for the unfinished stages of a task.

    Returns:
        The number of joint outcomes where all of them are enumerated, else 0.
    """
    w = v.workflows[v.tasks[task].workflow]
    joint = 1.0
    for j in range(w.n_stages):
        if v.task_stages[task, j].status != DONE:
            x = d.spread[j]
            x.first, x.count, x.spent, x.point = _residual(v, task, j)
            joint *= x.count
    if joint <= limit:
        return int(joint)
    return 0


@lean
def _draw(v: View, stage: int, x: Any, period: int, u: NDArray[np.float64], z: NDArray[np.float64]) -> None:
    """Writes the residual of one stage in each joint outcome; `period` is 0 where they are not enumerated."""
    if x.first < 0:
        for k in range(z.shape[0]):
            z[k] = x.point
        return
    values = v.ordered[stage]
    first = x.first
    count = x.count
    spent = x.spent
    if period == 0:
        for k in range(z.shape[0]):
            z[k] = values[first + int(count * u[k])] - spent
    elif count == 1:
        for k in range(z.shape[0]):
            z[k] = values[first] - spent
    else:
        for k in range(z.shape[0]):
            z[k] = values[first + (k // period) % count] - spent


@lean
def _stage_paths(v: View, task: int, j: int, d: Draws, period: int, outcomes: int) -> None:
    """Writes the residual of a stage and the longest path behind it, unless they are there."""
    w = v.tasks[task].workflow
    stage0 = v.workflows[w].stage0
    stage = v.stages[stage0 + j]
    x = d.spread[j]
    fresh = period == 0 and x.first >= 0 and x.spent == 0.0
    for e in range(stage.succ0, stage.succ0 + stage.n_succ):
        s = v.succs[e]
        fresh = fresh and v.task_stages[task, s].status != DONE and d.spread[s].fresh == 1
    x.fresh = 1 if fresh else 0
    x.at = stage0 + j if fresh else d.known.shape[0] + j
    if fresh and d.known[stage0 + j]:
        return
    _draw(v, stage0 + j, d.spread[j], period, d.uniform[w, j], d.z[x.at, :outcomes])
    below = d.down[x.at, :outcomes]
    for k in range(outcomes):
        below[k] = 0.0
    for e in range(stage.succ0, stage.succ0 + stage.n_succ):
        s = v.succs[e]
        if v.task_stages[task, s].status != DONE:
            next_z = d.z[d.spread[s].at]
            next_down = d.down[d.spread[s].at]
            for k in range(outcomes):
                path = next_z[k] + next_down[k]
                longest = below[k]
                below[k] = path if path > longest else longest  # noqa: FURB136
    if fresh:
        d.known[stage0 + j] = 1


@lean
def _write_row(
    full: NDArray[np.float64],
    after: NDArray[np.float64],
    z: NDArray[np.float64],
    below: NDArray[np.float64],
    estimate: float,
    outcomes: int,
) -> None:
    """Writes the path from a source in each outcome, and what it is once a request of `estimate` seconds is done."""
    for k in range(outcomes):
        left = z[k] - estimate
        full[k] = z[k] + below[k]
        after[k] = (left if left > 0.0 else 0.0) + below[k]  # noqa: FURB136


@lean
def _task_paths(v: View, task: int, mine: Any, limit: int, d: Draws, paths: Paths) -> None:
    """Fills the rows of one task's sources from `mine.row0` on, and their number and that of the joint outcomes."""
    w = v.workflows[v.tasks[task].workflow]
    outcomes = _residuals(v, task, d, limit)
    period = 1 if outcomes > 0 else 0
    if period == 0:
        outcomes = d.uniform.shape[2]
    n_rows = 0
    for back in range(w.n_stages - 1, -1, -1):
        j = v.topo[w.stage0 + back]
        state = v.task_stages[task, j]
        if state.status == DONE:
            continue
        _stage_paths(v, task, i64(j), d, period, outcomes)
        x = d.spread[j]
        period *= x.count
        if state.status == WAITING:
            continue
        x.row = n_rows
        row = mine.row0 + n_rows
        estimate = call_estimate(v.head[0], v.stats, v.requests[state.request]) if state.status == READY else 0.0
        _write_row(paths.table[0, row], paths.table[1, row], d.z[x.at], d.down[x.at], estimate, outcomes)
        n_rows += 1
    mine.n_rows = n_rows
    mine.outcomes = outcomes


@lean
def _rows_of(v: View, task: int, spread: NDArray[Any]) -> None:
    """Writes for each source of the task how many come before it in the order that `_task_paths` writes them."""
    w = v.workflows[v.tasks[task].workflow]
    n = 0
    for back in range(w.n_stages - 1, -1, -1):
        j = v.topo[w.stage0 + back]
        status = v.task_stages[task, j].status
        if status not in (DONE, WAITING):
            spread[j].row = n
            n += 1


@inner
def estimate(v: View, params: NDArray[Any]) -> Estimates:
    """Returns the paths and first marginals of all tasks that have a ready request."""
    limit = params[0].exact_limit
    scenarios = params[0].scenarios
    n = v.head[0].n_ready
    local = np.full(v.tasks.shape[0], -1, np.int64)
    ready = np.zeros(n, READY_INFO)
    groups = np.zeros(n, GROUP)
    n_tasks = 0
    rows = 0
    widest = 0
    for i in range(n):
        row = v.ready[i]
        t = v.requests[row].task
        ready[i].reserve = reserved(v.head[0], v.requests[row])
        ready[i].following = -1
        ready[i].tied = -1
        g = local[t]
        if g < 0:
            g = n_tasks
            local[t] = g
            groups[g].task = t
            groups[g].first = i
            n_tasks += 1
            w = v.workflows[v.tasks[t].workflow]
            sources = 0
            for j in range(w.n_stages):
                status = v.task_stages[t, j].status
                if status not in (DONE, WAITING):
                    sources += 1
            rows += sources
            widest = max(widest, sources)
        else:
            ready[groups[g].last].following = i
        groups[g].last = i
        ready[i].group = g
    depth = v.task_stages.shape[1]
    width = max(limit, scenarios)
    n_stages = v.stages.shape[0]
    paths = new_paths(rows, widest, width, n)
    d = Draws(
        np.empty((v.workflows.shape[0], depth, scenarios)),
        np.zeros(n_stages, np.int64),
        np.empty((n_stages + depth, width)),
        np.empty((n_stages + depth, width)),
        np.empty(depth, SPREAD),
    )
    known = np.full(v.workflows.shape[0], -1, np.int64)
    used = 0
    for g in range(n_tasks):
        mine = groups[g]
        w_index = v.tasks[mine.task].workflow
        w = v.workflows[w_index]
        if known[w_index] < 0:
            _steps(w.n_stages, d.uniform[w_index])
        # Tasks in the same state (fresh ones in a long queue) share their rows; the last few distinct states are tried.
        like = known[w_index]
        tries = 0
        while like >= 0 and tries < 8 and not _same_state(v, groups[like].task, mine.task, w.n_stages):
            like = groups[like].older
            tries += 1
        if like >= 0 and tries < 8:
            mine.row0 = groups[like].row0
            mine.n_rows = groups[like].n_rows
            mine.outcomes = groups[like].outcomes
            mine.path = groups[like].path
            _rows_of(v, mine.task, d.spread)
        else:
            mine.row0 = used
            _task_paths(v, mine.task, groups[g], limit, ref(d), ref(paths))
            first_marginals(ref(paths), groups[g])
            used += mine.n_rows
            mine.older = known[w_index]
            known[w_index] = g
        i = mine.first
        while i >= 0:
            ready[i].row = mine.row0 + d.spread[v.requests[v.ready[i]].pos].row
            ready[i].marginal = paths.sources[ready[i].row].first
            i = ready[i].following
    return Estimates(ready, groups[:n_tasks], paths)
