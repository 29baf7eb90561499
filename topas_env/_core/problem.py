"""One decision as TOPAS sees it: active agents, and what sets of them cost and bring (paper, equations 8 to 13)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.estimates import Estimates, reserved
from topas_env._core.jit import inner, lean
from topas_env._core.layout import DONE, WAITING, View
from topas_env._core.marginals import Paths

__all__ = ["Problem", "aging", "reuse_counts", "state_problem"]


ACTIVE = np.dtype(
    [
        ("agent", "i8"),  # index in `View.agents`
        ("n_running", "i8"),
        ("ready0", "i8"),  # its ready requests are by_agent[ready0 : ready0 + n_ready]
        ("n_ready", "i8"),
        ("prefix", "i8"),
        ("resident", "u1"),
        ("incoming", "u1"),  # neither resident nor cached
        ("cheapest", "i8"),  # least d_r of its ready requests, -1 where there is none
        ("kept", "i8"),  # sum of d_r of its running requests
        ("reuse", "f8"),  # seconds that keeping the prefix is worth
        ("redo", "f8"),  # cost of preempting its running requests, seconds
        ("revoke", "f8"),  # credit lost by it, seconds
        # While one prefix set is packed:
        ("head", "i8"),  # its requests before this position of by_agent are out of the question
        ("space", "i8"),  # what one of its requests may take
        ("open", "i8"),  # 1: a member of the set that covers no request yet
    ],
    align=True,
)

RUNNING_INFO = np.dtype([("agent", "i8"), ("group", "i8")], align=True)  # group: -1 if its task has no ready request

TIED = np.dtype([("ready", "i8"), ("agent", "i8"), ("reserve", "i8"), ("worth", "f8")], align=True)

LIMITS = np.dtype(
    [
        ("resident_tokens", "i8"),  # of all resident prefixes, idle ones too
        ("budget", "i8"),
        ("slots", "i8"),
        ("most", "i8"),  # K, 0 for no cap
        ("load", "f8"),
        ("offload", "f8"),
        ("turn", "i8"),  # the number of passes: sets that were packed and states that were scored
        # While one prefix set is packed:
        ("room", "i8"),
        ("free_slots", "i8"),
        ("open_tokens", "i8"),  # the cheapest requests of its open agents
        ("n_open", "i8"),
    ],
    align=True,
)


class Problem(NamedTuple):
    """A decision in terms of its m active agents (those with a ready or running request), in sorted order of names.

    Attributes:
        limits: LIMITS (1,).
        active: ACTIVE (m,).
        ready: READY_INFO (n_ready,).
        running: RUNNING_INFO (n_running,).
        by_agent: int64 (n_ready,), positions in `ready` grouped by agent, each group by worth.
        inside: int64 (m,), room for the members of one set.
        tied: TIED (n_ready,), room for its tied requests.
        position: int64 (capacity of requests,), position in `ready` of each row that is ready.
        groups: GROUP (n_tasks,), as in `Estimates`.
        paths: As in `Estimates`.
    """

    limits: NDArray[Any]
    active: NDArray[Any]
    ready: NDArray[Any]
    running: NDArray[Any]
    by_agent: NDArray[np.int64]
    inside: NDArray[np.int64]
    tied: NDArray[Any]
    position: NDArray[np.int64]
    groups: NDArray[Any]
    paths: Paths


@lean
def aging(v: View, task: int, rho: float) -> float:
    """Returns g of a task (paper, equation 12)."""
    age = v.head[0].time - v.tasks[task].arrival
    return float(1.0 + rho * np.log(1.0 + age / v.head[0].age_scale))


@inner
def reuse_counts(v: View) -> NDArray[np.int64]:
    """Counts n_a of every agent: waiting stages whose only unfinished predecessor has a running request.

    Returns:
        int64 (n_agents,), a number of stages for each agent.
    """
    counts = np.zeros(v.agents.shape[0], np.int64)
    for k in range(v.head[0].n_running):
        r = v.requests[v.running[k]]
        stage = v.stages[r.stage]
        for e in range(stage.succ0, stage.succ0 + stage.n_succ):
            s = v.succs[e]
            if v.task_stages[r.task, s].status != WAITING:
                continue
            target = v.stages[v.workflows[stage.workflow].stage0 + s]
            unfinished = 0
            for p in range(target.pred0, target.pred0 + target.n_pred):
                if v.task_stages[r.task, v.preds[p]].status != DONE:
                    unfinished += 1
            if unfinished == 1:
                counts[target.agent] += 1
    return counts


@lean
def _earlier(v: View, i: int, j: int) -> bool:
    """Tells whether ready request i comes before j by task arrival, ready time and id."""
    x = v.requests[v.ready[i]]
    y = v.requests[v.ready[j]]
    if v.tasks[x.task].arrival != v.tasks[y.task].arrival:
        return v.tasks[x.task].arrival < v.tasks[y.task].arrival
    if x.ready != y.ready:
        return x.ready < y.ready
    return x.rank < y.rank


@inner
def _places(v: View, ready: NDArray[Any]) -> None:
    """Writes each ready request's place in the order of task arrival, ready time and id (Shell's sort)."""
    n = ready.shape[0]
    order = np.empty(n, np.int64)
    for i in range(n):
        order[i] = i
    gap = 1
    while gap < n:
        gap = 3 * gap + 1
    while gap > 1:
        gap //= 3
        for i in range(gap, n):
            x = order[i]
            j = i
            while j >= gap and _earlier(v, x, order[j - gap]):
                order[j] = order[j - gap]
                j -= gap
            order[j] = x
    for j in range(n):
        ready[order[j]].place = j


@lean
def _by_worth(ready: NDArray[Any], order: NDArray[np.int64]) -> None:
    """Sorts positions: by worth, the greatest first, equals by place."""
    n = order.shape[0]
    gap = 1
    while gap < n:
        gap = 3 * gap + 1
    while gap > 1:
        gap //= 3
        for i in range(gap, n):
            x = order[i]
            mine = ready[x]
            j = i
            while j >= gap:
                his = ready[order[j - gap]]
                before = mine.worth > his.worth if mine.worth != his.worth else mine.place < his.place
                if not before:
                    break
                order[j] = order[j - gap]
                j -= gap
            order[j] = x


@inner
def state_problem(v: View, params: NDArray[Any], e: Estimates, counts: NDArray[np.int64]) -> Problem:
    """Gathers one decision: `counts` is `reuse_counts(v)`, `e` is `estimate(v, params)`, which is left as it is."""
    h = v.head[0]
    p = params[0]
    n_agents = v.agents.shape[0]
    local = np.full(n_agents, -1, np.int64)
    for k in range(h.n_running):
        local[v.requests[v.running[k]].agent] = 0
    for i in range(h.n_ready):
        local[v.requests[v.ready[i]].agent] = 0
    limits = np.zeros(1, LIMITS)
    limits[0].budget = h.budget
    limits[0].slots = h.max_running
    limits[0].most = p.max_changes
    limits[0].load = h.load_token
    limits[0].offload = h.offload_token
    active = np.zeros(n_agents, ACTIVE)
    m = 0
    for a in range(n_agents):
        x = v.agents[a]
        if x.resident:
            limits[0].resident_tokens += x.prefix
        if local[a] == 0:
            local[a] = m
            active[m].agent = a
            active[m].prefix = x.prefix
            active[m].resident = x.resident
            active[m].incoming = 1 if x.resident == 0 and x.cached == 0 else 0
            active[m].cheapest = -1
            active[m].reuse = p.beta * counts[a] * h.load_token * x.prefix
            m += 1
    groups = np.full(v.tasks.shape[0], -1, np.int64)
    for g in range(e.groups.shape[0]):
        groups[e.groups[g].task] = g
    running = np.zeros(h.n_running, RUNNING_INFO)
    for k in range(h.n_running):
        row = v.running[k]
        r = v.requests[row]
        running[k].agent = local[r.agent]
        running[k].group = groups[r.task]
        mine = active[local[r.agent]]
        mine.kept += reserved(v.head[0], v.requests[row])
        mine.n_running += 1
        mine.redo += h.rebuild_token * r.generated
        mine.revoke += r.credit
    ready = e.ready.copy()
    _places(v, ready)
    for i in range(h.n_ready):
        r = v.requests[v.ready[i]]
        ready[i].agent = local[r.agent]
        ready[i].weight = aging(v, r.task, p.rho)
        ready[i].worth = ready[i].weight * ready[i].marginal / ready[i].reserve
        ready[i].now_marginal = ready[i].marginal
        ready[i].now_worth = ready[i].worth
        mine = active[local[r.agent]]
        mine.n_ready += 1
        if mine.cheapest < 0 or ready[i].reserve < mine.cheapest:
            mine.cheapest = ready[i].reserve
    position = np.empty(v.requests.shape[0], np.int64)
    for i in range(h.n_ready):
        position[v.ready[i]] = i
    for x in range(1, m):
        active[x].ready0 = active[x - 1].ready0 + active[x - 1].n_ready
    by_agent = np.empty(h.n_ready, np.int64)
    fill = np.zeros(m, np.int64)
    for i in range(h.n_ready):
        x = ready[i].agent
        by_agent[active[x].ready0 + fill[x]] = i
        fill[x] += 1
    for x in range(m):
        _by_worth(ready, by_agent[active[x].ready0 : active[x].ready0 + active[x].n_ready])
    inside = np.empty(m, np.int64)
    tied = np.empty(h.n_ready, TIED)
    return Problem(
        limits, active[:m], ready, running, by_agent, inside, tied, position, e.groups.copy(), e.paths
    )  # fmt: skip
