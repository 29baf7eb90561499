"""The search over prefix sets, and TOPAS as its best state (SCHEDULER.md section 6; paper, Algorithm 1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice
from topas_env._core.estimates import estimate
from topas_env._core.jit import inner, lean
from topas_env._core.layout import View
from topas_env._core.marginals import mix
from topas_env._core.packing import TOLERANCE, Pool, new_pool, pack_set, ties
from topas_env._core.problem import Problem, reuse_counts, state_problem
from topas_env._core.ref import ref

__all__ = ["best_state", "empty", "incumbent_score", "search", "topas", "write_choice"]


@lean
def _hash(member: NDArray[np.uint8]) -> int:
    """Returns a 63-bit hash of a set of active agents."""
    code = 0
    for a in range(member.shape[0]):
        if member[a]:
            code ^= mix(a)
    return code


@inner
def _evaluate(
    p: Problem, pool: Pool, keys: NDArray[np.int64], slots: NDArray[np.int64], member: NDArray[np.uint8]
) -> float:
    """Packs a set once and returns Phi; the empty set has Phi minus infinity."""
    empty = True
    for a in range(member.shape[0]):
        if member[a]:
            empty = False
            break
    if empty:
        return -np.inf
    code = _hash(member)
    at = code % keys.shape[0]
    while slots[at] >= 0:
        if keys[at] == code:
            return float(pool.sets[slots[at]].best)
        at = (at + 1) % keys.shape[0]
    keys[at] = code
    slots[at] = pool.used[0]
    return pack_set(p, pool, member)


@inner
def _repair(
    p: Problem, pool: Pool, keys: NDArray[np.int64], slots: NDArray[np.int64], member: NDArray[np.uint8]
) -> None:
    """Evaluates every set that drops one agent of `member`, or swaps one for another active agent."""
    m = member.shape[0]
    trial = member.copy()
    for a in range(m):
        if not member[a]:
            continue
        trial[a] = 0
        _evaluate(p, pool, keys, slots, trial)
        for b in range(m):
            if not member[b]:
                trial[b] = 1
                _evaluate(p, pool, keys, slots, trial)
                trial[b] = 0
        trial[a] = 1


@lean
def _improves(x: float, y: float) -> bool:
    if y == -np.inf:
        return x > y
    return x > y + TOLERANCE * max(1.0, abs(y))


@inner
def _grow(p: Problem, pool: Pool, keys: NDArray[np.int64], slots: NDArray[np.int64], member: NDArray[np.uint8]) -> None:
    """Grows `member` in place by single additions, and once by a pair."""
    m = member.shape[0]
    paired = False
    phi = _evaluate(p, pool, keys, slots, member)
    scores = np.empty(m * m)
    while True:
        best = -np.inf
        for a in range(m):
            if not member[a]:
                member[a] = 1
                scores[a] = _evaluate(p, pool, keys, slots, member)
                best = max(best, scores[a])
                member[a] = 0
        if _improves(best, phi):
            for a in range(m):
                if not member[a] and ties(scores[a], best):
                    member[a] = 1
                    phi = scores[a]
                    break
            continue
        if paired:
            return
        paired = True
        best = -np.inf
        for a in range(m):
            for b in range(a + 1, m):
                if not member[a] and not member[b]:
                    member[a] = 1
                    member[b] = 1
                    scores[a * m + b] = _evaluate(p, pool, keys, slots, member)
                    best = max(best, scores[a * m + b])
                    member[a] = 0
                    member[b] = 0
        if not _improves(best, phi):
            return
        found = False
        for a in range(m):
            for b in range(a + 1, m):
                if not found and not member[a] and not member[b] and ties(scores[a * m + b], best):
                    member[a] = 1
                    member[b] = 1
                    phi = scores[a * m + b]
                    found = True


@inner
def search(p: Problem, most: int) -> Pool:
    """Packs every prefix set that the hierarchical search looks at; up to `most` active agents, every set."""
    here = ref(p)
    m = p.active.shape[0]
    member = np.zeros(m, np.uint8)
    if m <= most:
        pool = new_pool(p, (1 << m) - 1)
        there = ref(pool)
        for code in range(1, 1 << m):
            for a in range(m):
                member[a] = (code >> a) & 1
            pack_set(here, there, member)
        return pool
    start = np.zeros(m, np.uint8)
    for k in range(p.running.shape[0]):
        start[p.running[k].agent] = 1
    sets = 4 * m * m + 4 * m
    pool = new_pool(p, sets)
    there = ref(pool)
    keys = np.empty(2 * sets + 1, np.int64)
    slots = np.full(2 * sets + 1, -1, np.int64)
    _evaluate(here, there, keys, slots, start)
    _repair(here, there, keys, slots, start)
    for a in range(m):
        member[a] = start[a]
    _grow(here, there, keys, slots, member)
    _repair(here, there, keys, slots, member)
    return pool


@lean
def incumbent_score(p: Problem) -> float:
    """Returns the score of going on with the running requests and the prefixes of their agents."""
    total = 0.0
    for a in range(p.active.shape[0]):
        if p.active[a].n_running > 0:
            total += p.active[a].reuse
    return total


@lean
def write_choice(v: View, p: Problem, pool: Pool, s: int, k: int, out: Choice) -> None:
    """Writes allocation k of set s, with its terms; s = -1 is the incumbent."""
    for a in range(out.prefixes.shape[0]):
        out.prefixes[a] = 0
    info = out.info[0]
    n = 0
    for a in range(p.active.shape[0]):
        if pool.member[s, a] == 1 if s >= 0 else p.active[a].n_running > 0:
            out.prefixes[p.active[a].agent] = 1
    for r in range(p.running.shape[0]):
        if out.prefixes[p.active[p.running[r].agent].agent]:
            out.rows[n] = v.running[r]
            out.credits[n] = 0.0
            n += 1
    info.n_kept = n
    info.n_preempted = p.running.shape[0] - n
    info.n_admitted = k
    info.n_scored = 0
    info.origin = 0
    info.admit = 0.0
    info.move = 0.0
    info.redo = 0.0
    info.revoke = 0.0
    info.reuse = incumbent_score(p)
    if s >= 0:
        mine = pool.sets[s]
        for x in range(k):
            entry = pool.entries[mine.start + x]
            out.rows[n] = v.ready[entry.pick]
            out.credits[n] = entry.gain
            n += 1
        last = pool.entries[mine.start + k]
        info.admit = last.admit
        info.move = mine.move_s * last.waiting
        info.redo = mine.redo
        info.revoke = mine.revoke
        info.reuse = mine.reuse
    info.total = info.admit - info.move - info.redo - info.revoke + info.reuse


@lean
def _incumbent_moves(p: Problem) -> int:
    """Returns how many prefixes of active agents move when the running requests go on."""
    moved = 0
    for a in range(p.active.shape[0]):
        if p.active[a].n_running > 0:
            moved += p.active[a].incoming
        else:
            moved += p.active[a].resident
    return moved


@lean
def _before(p: Problem, pool: Pool, s: int, k: int, t: int, j: int) -> bool:
    """Tells whether allocation k of set s wins the tie against allocation j of set t; t = -1 is the incumbent.

    Allocations of one set differ in their admissions, so a tie never comes down to the request ids.
    """
    mine = pool.sets[s]
    preempted = pool.sets[t].n_preempted if t >= 0 else 0
    if mine.n_preempted != preempted:
        return mine.n_preempted < preempted
    moved = pool.sets[t].n_moved if t >= 0 else _incumbent_moves(p)
    if mine.n_moved != moved:
        return mine.n_moved < moved
    if k != j:
        return k > j
    # Sorted lists of names: the first agent that only one of them has decides; a list that ends is smaller.
    differ = -1
    ours = False
    longer = False
    for a in range(p.active.shape[0]):
        in_s = pool.member[s, a] == 1
        in_t = pool.member[t, a] == 1 if t >= 0 else p.active[a].n_running > 0
        if differ < 0 and in_s != in_t:
            differ = a
            ours = in_s
        elif differ >= 0 and (in_t if ours else in_s):
            longer = True
    return ours if longer else not ours


@lean
def _score(mine: Any, entry: Any, plain: bool) -> float:
    """Returns the score of an allocation of a set, with beta = 0 where `plain`; NaN where it is not emitted."""
    if not plain or np.isnan(entry.score):
        return float(entry.score)
    return float(entry.admit - mine.move_s * entry.waiting - mine.redo - mine.revoke)


@lean
def best_state(p: Problem, pool: Pool, plain: bool) -> tuple[int, int, int]:
    """Returns the best state as (set, picks, distinct states); set -1 is the incumbent, -2 means there is none.

    With `plain` it is the best one by the score without reuse (beta = 0), which steers nothing where every set is
    packed.
    """
    running = p.running.shape[0] > 0
    stay = -np.inf
    if running:
        stay = 0.0 if plain else incumbent_score(p)
    best = stay
    states = 1 if running else 0
    for s in range(pool.used[0]):
        mine = pool.sets[s]
        if not plain:
            best = max(best, mine.best)
        elif mine.best > -np.inf:
            for k in range(mine.n_picks + 1):
                score = _score(pool.sets[s], pool.entries[mine.start + k], plain)
                if score > best:  # not true of NaN
                    best = score
    at_set = -1 if running and ties(stay, best) else -2
    at_picks = 0
    for s in range(pool.used[0]):
        mine = pool.sets[s]
        if mine.best == -np.inf:
            continue
        # The incumbent's own set emits the incumbent again before its first pick: one state, counted once.
        own = running
        for a in range(p.active.shape[0]):
            if (pool.member[s, a] == 1) != (p.active[a].n_running > 0):
                own = False
        for k in range(mine.n_picks + 1):
            score = _score(pool.sets[s], pool.entries[mine.start + k], plain)
            if np.isnan(score) or (own and k == 0):
                continue
            states += 1
            if ties(score, best) and (at_set == -2 or _before(p, pool, s, k, at_set, at_picks)):
                at_set = s
                at_picks = k
    return at_set, at_picks, states


@lean
def empty(out: Choice) -> None:
    """Writes the empty state."""
    for a in range(out.prefixes.shape[0]):
        out.prefixes[a] = 0
    info = out.info[0]
    info.n_kept = 0
    info.n_admitted = 0
    info.n_preempted = 0
    info.n_scored = 0
    info.origin = 0
    info.admit = 0.0
    info.move = 0.0
    info.redo = 0.0
    info.revoke = 0.0
    info.reuse = 0.0
    info.total = 0.0


@inner
def topas(v: View, params: NDArray[Any], out: Choice) -> None:
    """Writes the state with the largest score; an empty choice where nothing is ready or running."""
    if v.head[0].n_ready + v.head[0].n_running == 0:
        empty(out)
        return
    p = state_problem(v, params, estimate(v, params), reuse_counts(v))
    pool = search(p, params[0].max_enumerated)
    s, k, states = best_state(p, pool, False)
    write_choice(v, p, pool, s, k, out)
    out.info[0].n_scored = states
