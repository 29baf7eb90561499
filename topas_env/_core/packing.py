"""GreedyPack: the request allocations of one prefix set, each scored (SCHEDULER.md sections 4 and 5; paper, IV-E)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.estimates import refresh
from topas_env._core.jit import inner, lean
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


@inner
def pack_set(p: Problem, pool: Pool, member: NDArray[np.uint8]) -> float:
    """Packs the set `member` (uint8 (m,)), adds its allocations to the pool and returns Phi."""
    m = p.active.shape[0]
    limits = p.limits[0]
    s = pool.used[0]
    start = pool.used[1]
    pool.used[0] += 1
    for a in range(m):
        pool.member[s, a] = member[a]
    mine = pool.sets[s]
    mine.start = start
    mine.n_picks = 0
    mine.best = -np.inf
    mine.n_preempted = 0
    mine.n_moved = 0
    mine.redo = 0.0
    mine.revoke = 0.0
    mine.reuse = 0.0
    room = limits.budget
    slots = limits.slots
    in_tokens = 0
    out_tokens = limits.resident_tokens
    open_tokens = 0  # the cheapest requests of uncovered agents
    n_open = 0
    n_left = 0
    possible = True
    opened = np.zeros(m, np.uint8)
    for a in range(m):
        agent = p.active[a]
        if not member[a]:
            mine.n_preempted += agent.n_running
            mine.redo += agent.redo
            mine.revoke += agent.revoke
            mine.n_moved += agent.resident
            continue
        room -= agent.prefix + agent.kept
        slots -= agent.n_running
        mine.reuse += agent.reuse
        n_left += agent.n_ready
        if agent.resident:
            out_tokens -= agent.prefix
        if agent.incoming:
            in_tokens += agent.prefix
            mine.n_moved += 1
        if agent.n_running == 0:
            if agent.cheapest < 0:
                possible = False
            opened[a] = 1
            open_tokens += agent.cheapest
            n_open += 1
    mine.move_s = limits.offload * out_tokens + limits.load * in_tokens
    first = pool.entries[start]
    first.admit = 0.0
    first.waiting = 0
    if (
        not possible
        or room < open_tokens
        or slots < n_open
        or (limits.most > 0 and (mine.n_preempted > limits.most or n_open > limits.most))
    ):
        first.score = np.nan
        pool.used[1] = start + 1
        return -np.inf
    represented = np.zeros(p.groups.shape[0], np.uint8)
    for k in range(p.running.shape[0]):
        if member[p.running[k].agent] and p.running[k].group >= 0:
            represented[p.running[k].group] = 1
    waits = np.zeros(p.groups.shape[0], np.uint8)
    picked = np.zeros(p.ready.shape[0], np.uint8)
    inside = np.empty(m, np.int64)
    head = np.empty(m, np.int64)
    n_inside = 0
    shared = np.empty(n_left, np.int64)
    worth = np.empty(n_left)
    marginal = np.empty(p.ready.shape[0])
    n_shared = 0
    for a in range(m):
        if member[a]:
            inside[n_inside] = a
            n_inside += 1
            agent = p.active[a]
            head[a] = agent.ready0
            for x in range(agent.ready0 + agent.n_alone, agent.ready0 + agent.n_ready):
                i = p.by_agent[x]
                shared[n_shared] = i
                worth[n_shared] = p.ready[i].worth
                marginal[i] = p.ready[i].marginal
                n_shared += 1
    _emit(mine, first, n_open == 0)
    while True:
        # What fits once the cheapest requests of the other uncovered agents are reserved. The room that an agent's
        # requests see never grows from pick to pick, so what does not fit is passed over for good.
        best = -1.0
        for y in range(n_inside):
            a = inside[y]
            agent = p.active[a]
            others = n_open - opened[a]
            space = room - open_tokens + opened[a] * agent.cheapest
            end = agent.ready0 + agent.n_alone
            if (
                others >= slots
                or agent.cheapest > space
                or (limits.most > 0 and mine.n_picks + 1 + others > limits.most)
            ):
                head[a] = end
            while head[a] < end:
                i = p.by_agent[head[a]]
                if not picked[i] and p.ready[i].reserve <= space:
                    best = max(best, p.ready[i].worth)
                    break
                head[a] += 1
        x = 0
        while x < n_shared:
            r = p.ready[shared[x]]
            others = n_open - opened[r.agent]
            if (
                r.reserve + open_tokens - opened[r.agent] * p.active[r.agent].cheapest > room
                or others >= slots
                or (limits.most > 0 and mine.n_picks + 1 + others > limits.most)
            ):
                n_shared -= 1
                shared[x] = shared[n_shared]
                worth[x] = worth[n_shared]
            else:
                best = max(best, worth[x])
                x += 1
        if best < 0.0:
            break
        chosen = -1
        for x in range(n_shared):
            if ties(worth[x], best):
                if chosen < 0:
                    chosen = x
                else:
                    r = p.ready[shared[x]]
                    rival = p.ready[shared[chosen]]
                    ours = represented[r.group]
                    theirs = represented[rival.group]
                    if ours > theirs or (ours == theirs and r.place < rival.place):
                        chosen = x
        i = shared[chosen] if chosen >= 0 else -1
        if i < 0 or not represented[p.ready[i].group]:
            for y in range(n_inside):
                a = inside[y]
                space = room - open_tokens + opened[a] * p.active[a].cheapest
                for x in range(head[a], p.active[a].ready0 + p.active[a].n_alone):
                    j = p.by_agent[x]
                    if not ties(p.ready[j].worth, best):
                        break
                    if not picked[j] and p.ready[j].reserve <= space and (i < 0 or p.ready[j].place < p.ready[i].place):
                        i = j
                        chosen = -1
        r = p.ready[i]
        gain = r.weight * (marginal[i] if r.shared else r.marginal)
        entry = pool.entries[start + mine.n_picks]
        entry.pick = i
        entry.gain = gain
        mine.n_picks += 1
        following = pool.entries[start + mine.n_picks]
        following.admit = entry.admit + entry.gain
        following.waiting = entry.waiting
        if p.active[r.agent].incoming and not waits[r.group]:
            waits[r.group] = 1
            following.waiting += 1
        room -= r.reserve
        slots -= 1
        if opened[r.agent]:
            opened[r.agent] = 0
            open_tokens -= p.active[r.agent].cheapest
            n_open -= 1
        picked[i] = 1
        represented[r.group] = 1
        if chosen >= 0:
            n_shared -= 1
            shared[chosen] = shared[n_shared]
            worth[chosen] = worth[n_shared]
        _emit(mine, following, n_open == 0)
        if p.groups[r.group].first != p.groups[r.group].last:
            refresh(p.ready, p.groups[r.group], p.full, p.after, picked, marginal)
            for x in range(n_shared):
                j = shared[x]
                if p.ready[j].group == r.group:
                    worth[x] = p.ready[j].weight * marginal[j] / p.ready[j].reserve
    pool.used[1] = start + mine.n_picks + 1
    return mine.best
