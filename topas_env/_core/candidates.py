"""The candidate post-decision states of one scheduling point: one list for TOPAS, the environment and learned policies.

Order (API.md): 0 the incumbent; then what each baseline, each `hold-` policy and each TOPAS variant would choose; the
best state of each prefix set by score; variants that keep idle prefixes; the rest by score. A state that stands twice
is listed once, at its first place; two states are the same when prefixes, requests and the order of admission are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.baselines import baseline_from
from topas_env._core.choice import Candidates, Choice
from topas_env._core.codes import CODES
from topas_env._core.decide import score_state
from topas_env._core.estimates import Estimates, estimate, reserved
from topas_env._core.jit import inner, kernel, lean
from topas_env._core.layout import View
from topas_env._core.orders import hold_order
from topas_env._core.packing import Pool
from topas_env._core.problem import Problem, reuse_counts, state_problem
from topas_env._core.ref import ref
from topas_env._core.search import best_state, search, write_choice

__all__ = ["candidates", "keep_if_new", "list_candidates", "same_state", "slot"]

_HOLD = CODES["hold-many"]
_TOPAS, _BASE, _REUSE, _AGING = (CODES[name] for name in ("topas", "topas-base", "topas-reuse", "topas-aging"))
_IDLE_VARIANTS = 6  # of so many first candidates a variant with idle prefixes is offered


@inner
def slot(c: Candidates, k: int) -> Choice:
    """Returns candidate k as a choice to write."""
    return Choice(c.info[k : k + 1], c.prefixes[k], c.rows[k], c.credits[k])


@lean
def same_state(c: Candidates, k: int, j: int) -> bool:
    """Returns whether candidates k and j have the same prefixes, requests and order of admission."""
    x = c.info[k]
    y = c.info[j]
    if x.n_kept != y.n_kept or x.n_admitted != y.n_admitted:
        return False
    for a in range(c.prefixes.shape[1]):
        if c.prefixes[k, a] != c.prefixes[j, a]:
            return False
    for i in range(x.n_kept + x.n_admitted):
        if c.rows[k, i] != c.rows[j, i]:
            return False
    return True


@lean
def keep_if_new(c: Candidates, origin: int) -> bool:
    """Takes what was written behind the last candidate into the list unless it is there; notes who would choose it."""
    k = c.count[0]
    for j in range(k):
        if same_state(c, k, j):
            c.info[j].origin |= origin
            return False
    c.info[k].origin = origin
    c.count[0] = k + 1
    return True


@inner
def _variants(
    v: View,
    params: NDArray[Any],
    e: Estimates,
    counts: NDArray[np.int64],
    p: Problem,
    pool: Pool,
    c: Candidates,
    limit: int,
) -> None:
    """Adds what TOPAS and its ablations would choose; `p` and `pool` are the search with the given parameters."""
    enumerated = p.active.shape[0] <= params[0].max_enumerated
    given = params[0]
    for aged in range(2):
        own = params.copy()
        if aged == 1 and given.rho == 0.0:
            continue
        own[0].rho = given.rho if aged == 0 else 0.0
        q = p if aged == 0 else state_problem(v, own, e, counts)
        found = pool if aged == 0 else search(q, given.max_enumerated)
        for plain in range(2):
            if c.count[0] >= limit:
                return
            if plain == 1 and given.beta == 0.0:
                continue
            if plain == 1 and not enumerated:
                own[0].beta = 0.0
                q = state_problem(v, own, e, counts)
                found = search(q, given.max_enumerated)
            s, k, states = best_state(q, found, plain == 1)
            code = _TOPAS + (1 if plain else 0) * (_AGING - _TOPAS) if aged == 0 else (_BASE if plain else _REUSE)
            out = slot(c, c.count[0])
            write_choice(v, q, found, s, k, out)
            out.info[0].n_scored = states
            if aged + plain > 0:
                score_state(v, p, given.beta, counts, out)
            keep_if_new(c, 1 << code)


@inner
def _set_bests(v: View, p: Problem, pool: Pool, c: Candidates, limit: int) -> None:
    """Adds the best allocation of each prefix set, the best set first."""
    done = np.zeros(pool.used[0], np.uint8)
    while c.count[0] < limit:
        top = -1
        for s in range(pool.used[0]):
            if not done[s] and pool.sets[s].best > -np.inf and (top < 0 or pool.sets[s].best > pool.sets[top].best):
                top = s
        if top < 0:
            return
        done[top] = 1
        mine = pool.sets[top]
        at = 0
        for k in range(mine.n_picks + 1):
            if pool.entries[mine.start + k].score == mine.best:
                at = k
        write_choice(v, p, pool, top, at, slot(c, c.count[0]))
        keep_if_new(c, 0)


@inner
def _idle(v: View, p: Problem, beta: float, counts: NDArray[np.int64], c: Candidates, limit: int) -> None:
    """Adds variants of the first candidates that keep idle prefixes in memory as far as the budget allows."""
    wanted = 0
    for a in range(v.agents.shape[0]):
        wanted += v.agents[a].resident + v.agents[a].cached
    first = min(c.count[0], _IDLE_VARIANTS)
    for j in range(first):
        if c.count[0] >= limit or wanted == 0:
            return
        info = c.info[j]
        out = slot(c, c.count[0])
        room = p.limits[0].budget
        for a in range(v.agents.shape[0]):
            out.prefixes[a] = c.prefixes[j, a]
            if out.prefixes[a]:
                room -= v.agents[a].prefix
        for i in range(info.n_kept + info.n_admitted):
            row = c.rows[j, i]
            out.rows[i] = row
            room -= reserved(v.head[0], v.requests[row])
        added = False
        while True:
            # The prefix that most waiting stages are about to need; of equals the largest, which costs most to load.
            best = -1
            for a in range(v.agents.shape[0]):
                x = v.agents[a]
                better = best < 0 or (counts[a], x.prefix) > (counts[best], v.agents[best].prefix)
                if better and (x.resident or x.cached) and not out.prefixes[a] and x.prefix <= room:
                    best = a
            if best < 0:
                break
            out.prefixes[best] = 1
            room -= v.agents[best].prefix
            added = True
        if added:
            out.info[0].n_kept = info.n_kept
            out.info[0].n_admitted = info.n_admitted
            out.info[0].n_preempted = info.n_preempted
            for i in range(info.n_kept):
                out.credits[i] = 0.0
            score_state(v, p, beta, counts, out)
            keep_if_new(c, 0)


@inner
def _rest(v: View, p: Problem, pool: Pool, c: Candidates, limit: int) -> None:
    """Adds further allocations by score until the list is full."""
    score = np.empty(pool.used[1])
    owner = np.empty(pool.used[1], np.int64)
    for s in range(pool.used[0]):
        mine = pool.sets[s]
        for k in range(mine.n_picks + 1):
            x = pool.entries[mine.start + k].score
            score[mine.start + k] = -np.inf if np.isnan(x) else x
            owner[mine.start + k] = s
    while c.count[0] < limit:
        top = 0
        for i in range(1, score.shape[0]):
            if score[i] > score[top]:
                top = i
        if score.shape[0] == 0 or score[top] == -np.inf:
            return
        score[top] = -np.inf
        s = owner[top]
        write_choice(v, p, pool, s, top - pool.sets[s].start, slot(c, c.count[0]))
        keep_if_new(c, 0)


@inner
def list_candidates(v: View, params: NDArray[Any], c: Candidates) -> None:
    """Fills the list of candidate states; there is always one, the incumbent.

    The last row of `c` is scratch: with room for n rows the list holds at most n - 1.
    """
    limit = c.info.shape[0] - 1
    beta = params[0].beta
    counts = reuse_counts(v)
    e = estimate(v, params)
    p = state_problem(v, params, e, counts)
    pool = search(p, params[0].max_enumerated)
    c.count[0] = 0
    write_choice(v, p, pool, -1, 0, slot(c, 0))
    c.count[0] = 1
    if v.head[0].n_ready + v.head[0].n_running == 0:
        return
    for code in range(_TOPAS):
        if c.count[0] < limit:
            out = slot(c, c.count[0])
            if code < _HOLD:
                baseline_from(v, code, params[0].gate, e, out)
            else:
                hold_order(v, code, out)
            score_state(v, p, beta, counts, out)
            keep_if_new(c, 1 << code)
    _variants(v, params, e, counts, p, pool, c, limit)
    _set_bests(v, p, pool, c, limit)
    _idle(v, p, beta, counts, c, limit)
    _rest(v, p, pool, c, limit)


@kernel
def candidates(v: View, params: NDArray[Any], c: Candidates) -> None:
    """As `list_candidates`, for callers in Python."""
    list_candidates(ref(v), params, ref(c))
