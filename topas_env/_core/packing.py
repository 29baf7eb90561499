"""GreedyPack: the request allocations of one prefix set, each scored (SCHEDULER.md sections 4 and 5; paper, IV-E)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.estimates import refresh
from topas_env._core.jit import inner
from topas_env._core.problem import Problem

__all__ = ["Pool", "new_pool", "pack_set", "ties"]

TOLERANCE = 1e-9

SET = np.dtype(
    [
        ("start", "i8"),  # its allocation k, k = 0 .. n_picks, has the entry start + k
        ("n_picks", "i4"),
        ("n_preempted", "i4"),
        ("n_moved", "i4"),  # incoming plus outgoing prefixes of active agents
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
        ("pick", "i4"),  # ready position of pick k + 1
        ("waiting", "i4"),  # tasks that wait for an incoming prefix in allocation k
        ("gain", "f8"),  # summand of admit of pick k + 1
        ("admit", "f8"),  # sum of the gains of allocation k
        ("score", "f8"),  # NaN where allocation k is not emitted
    ],
    align=True,
)


class Pool(NamedTuple):
    """Every prefix set that was packed and every allocation that was emitted.

    Attributes:
        count: int64 (2,), numbers of sets and of entries in use.
        member: uint8 (sets, m), active agents of each set.
        sets: SET (sets,).
        entries: ENTRY (entries,).
    """

    count: NDArray[np.int64]
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


@inner
def ties(x: float, best: float) -> bool:
    """Tells whether x is as good as `best` within the tolerance of SCHEDULER.md section 6."""
    return x >= best - TOLERANCE * max(1.0, abs(best))


@inner
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
    s = pool.count[0]
    start = pool.count[1]
    pool.count[0] += 1
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
        pool.count[1] = start + 1
        return -np.inf
    represented = np.zeros(p.groups.shape[0], np.uint8)
    for k in range(p.running.shape[0]):
        if member[p.running[k].agent] and p.running[k].group >= 0:
            represented[p.running[k].group] = 1
    waits = np.zeros(p.groups.shape[0], np.uint8)
    left = np.empty(n_left, np.int32)
    value = np.empty(n_left)
    picked = np.zeros(p.ready.shape[0], np.uint8)
    marginal = np.empty(p.ready.shape[0])
    n_left = 0
    for a in range(m):
        if member[a]:
            for x in range(p.active[a].ready0, p.active[a].ready0 + p.active[a].n_ready):
                i = p.by_agent[x]
                left[n_left] = i
                marginal[i] = p.ready[i].marginal
                value[n_left] = p.ready[i].weight * marginal[i] / p.ready[i].reserve
                n_left += 1
    _emit(mine, first, n_open == 0)
    while n_left > 0:
        # What fits, once the cheapest requests of the other uncovered agents are reserved.
        best = -1.0
        chosen = -1
        for scan in range(2):
            for x in range(n_left):
                if value[x] <= best if scan == 0 else not ties(value[x], best):
                    continue
                r = p.ready[left[x]]
                others = n_open - opened[r.agent]
                if (
                    r.reserve + open_tokens - opened[r.agent] * p.active[r.agent].cheapest > room
                    or others >= slots
                    or (limits.most > 0 and mine.n_picks + 1 + others > limits.most)
                ):
                    continue
                if scan == 0:
                    best = value[x]
                elif chosen < 0:
                    chosen = x
                else:
                    rival = p.ready[left[chosen]]
                    ours = represented[r.group]
                    theirs = represented[rival.group]
                    if ours > theirs or (ours == theirs and r.place < rival.place):
                        chosen = x
            if best < 0.0:
                break
        if chosen < 0:
            break
        i = left[chosen]
        r = p.ready[i]
        entry = pool.entries[start + mine.n_picks]
        entry.pick = i
        entry.gain = r.weight * marginal[i]
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
        n_left -= 1
        left[chosen] = left[n_left]
        value[chosen] = value[n_left]
        _emit(mine, following, n_open == 0)
        if p.groups[r.group].first != p.groups[r.group].last:
            refresh(p.ready, p.groups[r.group], p.full, p.after, picked, marginal)
            for x in range(n_left):
                j = left[x]
                if p.ready[j].group == r.group:
                    value[x] = p.ready[j].weight * marginal[j] / p.ready[j].reserve
    pool.count[1] = start + mine.n_picks + 1
    return mine.best
