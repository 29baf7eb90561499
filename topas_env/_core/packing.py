"""GreedyPack: the request allocations of one prefix set, each scored (SCHEDULER.md sections 4 and 5; paper, IV-E)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, inner, lean
from topas_env._core.marginals import complete, restart
from topas_env._core.problem import Problem

__all__ = ["Pool", "new_pool", "pack_set", "ties"]

TOLERANCE = 1e-9

SET = np.dtype(
    [
        ("start", "i8"),  # its allocation k, k = 0 .. n_picks, has the entry start + k
        ("n_picks", "i8"),
        ("n_preempted", "i8"),
        ("n_moved", "i8"),  # incoming plus outgoing prefixes of active agents
        ("best", "f8"),  # Phi, minus infinity where nothing was emitted
        ("redo", "f8"),
        ("revoke", "f8"),
        ("reuse", "f8"),
        ("move_s", "f8"),  # T_move
    ],
    align=True,
)

ENTRY = np.dtype(
    [
        ("pick", "i8"),  # ready position of pick k + 1
        ("waiting", "i8"),  # tasks that wait for an incoming prefix in allocation k
        ("gain", "f8"),  # summand of admit of pick k + 1
        ("admit", "f8"),  # sum of the gains of allocation k
        ("score", "f8"),  # NaN where allocation k is not emitted
    ],
    align=True,
)


class Pool(NamedTuple):
    """Every prefix set that was packed and every allocation that was emitted.

    Attributes:
        used: int64 (2,), numbers of sets and of entries in use.
        member: uint8 (sets, m), active agents of each set.
        sets: SET (sets,).
        entries: ENTRY (entries,).
    """

    used: NDArray[np.int64]
    member: NDArray[np.uint8]
    sets: NDArray[Any]
    entries: NDArray[Any]


@inner
def new_pool(p: Problem, sets: int) -> Pool:
    """Returns room for `sets` prefix sets."""
    most = min(p.ready.shape[0], max(p.limits[0].slots, 0)) + 1
    return Pool(
        np.zeros(2, np.int64),
        np.empty((sets, p.active.shape[0]), np.uint8),
        np.empty(sets, SET),
        np.empty(sets * most, ENTRY),
    )


@lean
def ties(x: float, best: float) -> bool:
    """Tells whether x is as good as `best` within the tolerance of SCHEDULER.md section 6."""
    return x >= best - TOLERANCE * max(1.0, abs(best))


@lean
def _emit(mine: Any, entry: Any, covered: bool) -> None:
    if covered:
        entry.score = entry.admit - mine.move_s * entry.waiting - mine.redo - mine.revoke + mine.reuse
        mine.best = max(mine.best, entry.score)
    else:
        entry.score = np.nan


@lean
def _open_set(p: Problem, pool: Pool, member: NDArray[np.uint8]) -> int:
    """Enters the set `member` into the pool with what does not depend on its admissions.

    Returns:
        The number of its agents, which stand in `p.inside`; -1 where it can hold no state.
    """
    limits = p.limits[0]
    s = pool.used[0]
    pool.used[0] += 1
    mine = pool.sets[s]
    mine.start = pool.used[1]
    mine.n_picks = 0
    mine.best = -np.inf
    mine.n_preempted = 0
    mine.n_moved = 0
    mine.redo = 0.0
    mine.revoke = 0.0
    mine.reuse = 0.0
    limits.room = limits.budget
    limits.free_slots = limits.slots
    limits.open_tokens = 0
    limits.n_open = 0
    in_tokens = 0
    out_tokens = limits.resident_tokens
    possible = True
    n_inside = 0
    for a in range(p.active.shape[0]):
        agent = p.active[a]
        pool.member[s, a] = member[a]
        if not member[a]:
            mine.n_preempted += agent.n_running
            mine.redo += agent.redo
            mine.revoke += agent.revoke
            mine.n_moved += agent.resident
            continue
        p.inside[n_inside] = a
        n_inside += 1
        limits.room -= agent.prefix + agent.kept
        limits.free_slots -= agent.n_running
        mine.reuse += agent.reuse
        if agent.resident:
            out_tokens -= agent.prefix
        if agent.incoming:
            in_tokens += agent.prefix
            mine.n_moved += 1
        agent.head = agent.ready0
        agent.open = 0
        if agent.n_running == 0:
            if agent.cheapest < 0:
                possible = False
            agent.open = 1
            limits.open_tokens += agent.cheapest
            limits.n_open += 1
    mine.move_s = limits.offload * out_tokens + limits.load * in_tokens
    first = pool.entries[mine.start]
    first.admit = 0.0
    first.waiting = 0
    if (
        not possible
        or limits.room < limits.open_tokens
        or limits.free_slots < limits.n_open
        or (limits.most > 0 and (mine.n_preempted > limits.most or limits.n_open > limits.most))
    ):
        first.score = np.nan
        pool.used[1] = mine.start + 1
        return -1
    return n_inside


@lean
def _space(limits: Any, agent: Any, picks: int) -> int:
    """Returns the tokens that a request of the agent may take once the other open agents have their cheapest; or -1."""
    others = limits.n_open - agent.open
    if others >= limits.free_slots or (limits.most > 0 and picks + 1 + others > limits.most):
        return -1
    return int(limits.room - limits.open_tokens + agent.open * agent.cheapest)


@lean
def _join(p: Problem, member: NDArray[np.uint8], group: int, n_tied: int) -> int:
    """Ties the other requests of a task that enters the batch: their worth changes now; returns how many there are."""
    turn = p.limits[0].turn
    p.groups[group].present = turn
    j = p.groups[group].first
    while j >= 0:
        r = p.ready[j]
        if member[r.agent] and r.picked != turn:
            t = p.tied[n_tied]
            t.ready = j
            t.agent = r.agent
            t.reserve = r.reserve
            t.worth = r.now_worth
            r.tied = n_tied
            n_tied += 1
        j = r.following
    return n_tied


@lean
def _untie(p: Problem, x: int, n_tied: int) -> int:
    """Takes entry x out of the tied ones; returns their number."""
    p.ready[p.tied[x].ready].tied = -1
    n_tied -= 1
    if x < n_tied:
        t = p.tied[x]
        last = p.tied[n_tied]
        t.ready = last.ready
        t.agent = last.agent
        t.reserve = last.reserve
        t.worth = last.worth
        p.ready[t.ready].tied = x
    return n_tied


@lean
def _best_worth(p: Problem, n_inside: int, n_tied: int, picks: int) -> tuple[float, int]:
    """Returns the greatest worth of what still fits, -1 where nothing does, and how many tied requests still fit.

    The room that an agent's requests see never grows from pick to pick: what does not fit is passed over for good.
    """
    limits = p.limits[0]
    turn = limits.turn
    best = -1.0
    for y in range(n_inside):
        agent = p.active[p.inside[y]]
        end = agent.ready0 + agent.n_ready
        space = _space(limits, p.active[p.inside[y]], picks)
        agent.space = space
        if agent.cheapest > space:
            agent.head = end
        while agent.head < end:
            r = p.ready[p.by_agent[agent.head]]
            if r.reserve <= space and p.groups[r.group].present != turn:
                best = max(best, r.worth)
                break
            agent.head += 1
    x = 0
    while x < n_tied:
        t = p.tied[x]
        if t.reserve > p.active[t.agent].space:
            n_tied = _untie(p, x, n_tied)
        else:
            best = max(best, t.worth)
            x += 1
    return best, n_tied


@lean
def _choose(p: Problem, n_inside: int, n_tied: int, best: float) -> int:
    """Returns the request with the greatest worth; of equals those of tasks in the batch come first, then by place."""
    turn = p.limits[0].turn
    least = best - TOLERANCE * max(1.0, abs(best))
    i = -1
    for x in range(n_tied):
        if p.tied[x].worth >= least:
            j = p.tied[x].ready
            if i < 0 or p.ready[j].place < p.ready[i].place:
                i = j
    if i >= 0:
        return int(i)
    for y in range(n_inside):
        agent = p.active[p.inside[y]]
        for x in range(agent.head, agent.ready0 + agent.n_ready):
            j = p.by_agent[x]
            r = p.ready[j]
            if r.worth < least:
                break
            if r.reserve <= agent.space and p.groups[r.group].present != turn and (i < 0 or r.place < p.ready[i].place):
                i = j
    return int(i)


@lean
def _pick(p: Problem, pool: Pool, member: NDArray[np.uint8], mine: Any, i: int, n_tied: int) -> int:
    """Admits ready request i and writes the next allocation; returns the number of tied requests."""
    limits = p.limits[0]
    turn = limits.turn
    r = p.ready[i]
    group = p.groups[r.group]
    agent = p.active[r.agent]
    joins = group.present != turn
    entry = pool.entries[mine.start + mine.n_picks]
    entry.pick = i
    entry.gain = r.weight * (r.marginal if joins else r.now_marginal)
    mine.n_picks += 1
    following = pool.entries[mine.start + mine.n_picks]
    following.admit = entry.admit + entry.gain
    following.waiting = entry.waiting
    if agent.incoming and group.waits != turn:
        group.waits = turn
        following.waiting += 1
    limits.room -= r.reserve
    limits.free_slots -= 1
    if agent.open:
        agent.open = 0
        limits.open_tokens -= agent.cheapest
        limits.n_open -= 1
    complete(p.paths, p.ready, p.groups, i, turn)
    if joins:
        return int(_join(p, member, i64(r.group), n_tied))
    n_tied = _untie(p, i64(r.tied), n_tied)
    j = group.first
    while j >= 0:
        if p.ready[j].tied >= 0:
            p.tied[p.ready[j].tied].worth = p.ready[j].now_worth
        j = p.ready[j].following
    return n_tied


@lean
def pack_set(p: Problem, pool: Pool, member: NDArray[np.uint8]) -> float:
    """Packs the set `member` (uint8 (m,)), adds its allocations to the pool and returns Phi.

    The requests of tasks that are not in the batch keep their worth: each agent's lie sorted, and its best that still
    fits is at `head`. The others are *tied* to what runs or was picked, and are looked through one by one.
    """
    limits = p.limits[0]
    mine = pool.sets[pool.used[0]]
    n_inside = _open_set(p, pool, member)
    if n_inside < 0:
        return -np.inf
    limits.turn += 1
    n_tied = 0
    for k in range(p.running.shape[0]):
        g = i64(p.running[k].group)
        if g >= 0 and member[p.running[k].agent] and p.groups[g].present != limits.turn:
            restart(p.ready, p.groups[g])
            n_tied = _join(p, member, g, n_tied)
    _emit(mine, pool.entries[mine.start], limits.n_open == 0)
    while True:
        best, n_tied = _best_worth(p, n_inside, n_tied, mine.n_picks)
        if best < 0.0:
            break
        n_tied = _pick(p, pool, member, pool.sets[pool.used[0] - 1], _choose(p, n_inside, n_tied, best), n_tied)
        _emit(mine, pool.entries[mine.start + mine.n_picks], limits.n_open == 0)
    for x in range(n_tied):
        p.ready[p.tied[x].ready].tied = -1
    pool.used[1] = mine.start + mine.n_picks + 1
    return mine.best
