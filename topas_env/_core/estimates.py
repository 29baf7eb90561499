"""Service estimates and remaining paths (SCHEDULER.md sections 2 and 3; paper, equations 4 to 6).

A task's longest remaining path starts at a *source*: an unfinished stage whose predecessors are all done. A waiting
stage has an unfinished predecessor, and a hypothetical completion changes the residual of a ready stage only, which
is a source. So with `down` the longest path behind a source, drawn once, the path of one joint outcome is

    max over sources s of (Z_s or max(Z_s - D_s, 0)) + down_s

and all marginals of a task follow from two numbers a source and outcome: `full` (not completed) and `after`
(completed).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import inner, lean
from topas_env._core.layout import DONE, READY, WAITING, View

__all__ = ["GROUP", "READY_INFO", "Estimates", "call_estimate", "estimate", "refresh", "reserved"]

NOISE = 1e-9  # a marginal below this share of the path is zero


READY_INFO = np.dtype(
    [
        ("reserve", "i8"),  # d_r of SNAPSHOT.md
        ("group", "i8"),  # position of its task in `Estimates.groups`
        ("row", "i8"),  # of its stage in `full` and `after`
        ("following", "i8"),  # next ready request of the same task, or -1
        ("agent", "i8"),  # position among the active agents
        ("place", "i8"),  # in the order of task arrival, ready_s and id
        ("shared", "i8"),  # 1: its task has another ready or running request, so its worth changes while packing
        ("weight", "f8"),  # g of the task (paper, equation 12)
        ("worth", "f8"),  # weight * marginal / reserve, what GreedyPack goes by
        ("marginal", "f8"),  # progress with no hypothetical completion, seconds
    ],
    align=True,
)

GROUP = np.dtype(
    [
        ("task", "i8"),  # row in `View.tasks`
        ("first", "i8"),  # first ready request
        ("last", "i8"),
        ("row0", "i8"),  # first of its sources' rows
        ("n_rows", "i8"),
        ("outcomes", "i8"),  # joint outcomes, equally likely
        ("older", "i8"),  # the last distinct state before it, of the same workflow
        ("path", "f8"),  # expected longest remaining path, seconds
    ],
    align=True,
)


class Estimates(NamedTuple):
    """Paths of the tasks that have a ready request.

    Attributes:
        ready: READY_INFO (n_ready,), one for each position in `View.ready`.
        groups: GROUP (n_tasks,), the tasks in the order of their first ready request.
        full: float64 (rows, outcomes), path from a source that is not completed.
        after: float64 (rows, outcomes), path from it once its request is completed.
    """

    ready: NDArray[Any]
    groups: NDArray[Any]
    full: NDArray[np.float64]
    after: NDArray[np.float64]


@lean
def reserved(h: Any, r: Any) -> int:
    """Returns d_r of request `r` (REQUEST) under `h` (HEAD): its tokens beside its prefix (SNAPSHOT.md, Decision)."""
    left = max(r.max_new - r.generated, 0)
    if h.reserve_cap >= 0 and left > h.reserve_cap:
        left = h.reserve_cap
    return int(r.suffix + r.generated + np.int64(np.ceil(h.reserve_ratio * left)))


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
    """Writes the steps a_j of the R_d sequence for a workflow of `n_stages` stages (Roberts, 2018)."""
    root = 1.5
    for _ in range(64):
        power = root**n_stages
        move = (power * root - root - 1.0) / ((n_stages + 1) * power - 1.0)
        root -= move
        if abs(move) < 1e-16:
            break
    for j in range(n_stages):
        a = root ** -(j + 1.0)
        out[j] = a - np.floor(a)


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


@inner
def _task_paths(
    v: View,
    task: int,
    limit: int,
    scenarios: int,
    steps: NDArray[np.float64],
    row0: int,
    full: NDArray[np.float64],
    after: NDArray[np.float64],
) -> tuple[int, int]:
    """Fills the rows of one task's sources from `row0` on; returns the numbers of sources and of joint outcomes."""
    w = v.workflows[v.tasks[task].workflow]
    n = w.n_stages
    first = np.empty(n, np.int64)
    count = np.empty(n, np.int64)
    spent = np.empty(n)
    point = np.empty(n)
    joint = 1.0
    for j in range(n):
        if v.task_stages[task, j].status != DONE:
            first[j], count[j], spent[j], point[j] = _residual(v, task, j)
            joint *= count[j]
    exact = joint <= limit
    outcomes = int(joint) if exact else scenarios
    z = np.empty(n)
    down = np.empty(n)
    n_rows = 0
    for k in range(outcomes):
        left = k
        n_rows = 0
        for back in range(n - 1, -1, -1):
            j = v.topo[w.stage0 + back]
            state = v.task_stages[task, j]
            if state.status == DONE:
                continue
            if first[j] < 0:
                z[j] = point[j]
            else:
                if exact:
                    pick = left % count[j]
                    left //= count[j]
                else:
                    u = 0.5 + (k + 1) * steps[j]
                    pick = int(count[j] * (u - np.floor(u)))
                z[j] = v.ordered[w.stage0 + j, first[j] + pick] - spent[j]
            below = 0.0
            stage = v.stages[w.stage0 + j]
            for e in range(stage.succ0, stage.succ0 + stage.n_succ):
                s = v.succs[e]
                if v.task_stages[task, s].status != DONE:
                    below = max(below, z[s] + down[s])
            down[j] = below
            if state.status != WAITING:
                row = row0 + n_rows
                full[row, k] = z[j] + below
                if state.status == READY:
                    after[row, k] = (
                        max(z[j] - call_estimate(v.head[0], v.stats, v.requests[state.request]), 0.0) + below
                    )
                n_rows += 1
    return n_rows, outcomes


@lean
def _row_of(v: View, task: int, pos: int) -> int:
    """Returns how many sources of the task come before stage `pos` in the order that `_task_paths` writes them."""
    w = v.workflows[v.tasks[task].workflow]
    n = 0
    for back in range(w.n_stages - 1, -1, -1):
        j = v.topo[w.stage0 + back]
        if j == pos:
            return n
        status = v.task_stages[task, j].status
        if status != DONE and status != WAITING:
            n += 1
    return -1


@inner
def refresh(
    ready: NDArray[Any],
    group: Any,
    full: NDArray[np.float64],
    after: NDArray[np.float64],
    picked: NDArray[np.uint8],
    marginal: NDArray[np.float64],
) -> float:
    """Recomputes the marginals of a task's ready requests after the completions `picked` (uint8 (n_ready,)).

    Returns:
        The expected longest remaining path of the task after these completions, seconds.
    """
    row0 = group.row0
    n_rows = group.n_rows
    taken = np.zeros(n_rows, np.uint8)
    gain = np.zeros(n_rows)
    i = group.first
    while i >= 0:
        taken[ready[i].row - row0] = picked[i]
        i = ready[i].following
    path = 0.0
    for k in range(group.outcomes):
        best = -1.0
        second = 0.0
        at = 0
        for r in range(n_rows):
            x = after[row0 + r, k] if taken[r] else full[row0 + r, k]
            if x > best:
                second = max(best, 0.0)
                best = x
                at = r
            elif x > second:
                second = x
        path += best
        if not taken[at]:
            gain[at] += best - max(second, after[row0 + at, k])
    i = group.first
    while i >= 0:
        if not picked[i]:
            r = ready[i].row - row0
            marginal[i] = gain[r] / group.outcomes if gain[r] >= NOISE * path else 0.0
        i = ready[i].following
    return path / group.outcomes


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
    most_rows = 0
    for i in range(n):
        row = v.ready[i]
        t = v.requests[row].task
        ready[i].reserve = reserved(v.head[0], v.requests[row])
        ready[i].following = -1
        g = local[t]
        if g < 0:
            g = n_tasks
            local[t] = g
            groups[g].task = t
            groups[g].first = i
            n_tasks += 1
            w = v.workflows[v.tasks[t].workflow]
            for j in range(w.n_stages):
                status = v.task_stages[t, j].status
                if status != DONE and status != WAITING:
                    most_rows += 1
        else:
            ready[groups[g].last].following = i
        groups[g].last = i
        ready[i].group = g
    width = max(limit, scenarios)
    full = np.empty((most_rows, width))
    after = np.empty((most_rows, width))
    steps = np.zeros((v.workflows.shape[0], v.task_stages.shape[1]))
    known = np.full(v.workflows.shape[0], -1, np.int64)
    used = 0
    for g in range(n_tasks):
        mine = groups[g]
        w_index = v.tasks[mine.task].workflow
        w = v.workflows[w_index]
        if known[w_index] < 0:
            _steps(w.n_stages, steps[w_index])
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
            continue
        mine.row0 = used
        mine.n_rows, mine.outcomes = _task_paths(v, mine.task, limit, scenarios, steps[w_index], used, full, after)
        used += mine.n_rows
        mine.older = known[w_index]
        known[w_index] = g
    marginal = np.zeros(n)
    nothing = np.zeros(n, np.uint8)
    for i in range(n):
        r = v.requests[v.ready[i]]
        ready[i].row = groups[ready[i].group].row0 + _row_of(v, r.task, r.pos)
    for g in range(n_tasks):
        groups[g].path = refresh(ready, groups[g], full, after, nothing, marginal)
    for i in range(n):
        ready[i].marginal = marginal[i]
    return Estimates(ready, groups[:n_tasks], full, after)
