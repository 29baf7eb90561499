"""SGLang's own admission pass, for an engine without a policy: it decides, whatever the policy's kernel has written.

Requests are taken in the order of the waiting queue until one does not fit; where something ran before, no other pass
follows until a request has left (`batch_is_full`). A new request reserves all the tokens that it asked for. A prefix is
cached once the batch that computed it has been processed, which overlap scheduling does a step late: who is admitted
before computes the prefix for itself and holds that copy until its own prefill is processed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice
from topas_env._core.codes import LPM_QUEUE_LIMIT
from topas_env._core.jit import i64, lean
from topas_env._core.world import World

__all__ = ["ORDERS", "drop_copy", "end_copy", "iterations", "own_pass", "take_copy"]

ORDERS = {"": 0, "fcfs": 1, "lpm": 2}  # values of `physics.own_pass`
_LPM = ORDERS["lpm"]


@lean
def iterations(clock: NDArray[Any]) -> int:
    """Returns how many batches and steps the engine has run."""
    return int(clock[0].batches + clock[0].steps)


@lean
def _is_cached(w: World, agent: int) -> bool:
    """Tells whether a new request of the agent finds its prefix in memory, or a copy on the host."""
    p = w.physics[0]
    state = w.agents[agent]
    if not state.in_memory:
        return bool(p.tier and state.copied)
    return bool(state.left == 0 and (not p.overlap or iterations(w.clock) > state.whole_since))


@lean
def _tokens(w: World, row: int, new: bool) -> float:
    """Returns what a request takes beside its prefix: what it holds and what is reserved for it."""
    h = w.v.head[0]
    r = w.v.requests[row]
    left = max(r.max_new - r.generated, 0)
    if h.reserve_cap >= 0:
        left = min(left, h.reserve_cap)
    ratio = 1.0 if new else h.reserve_ratio
    return float(r.suffix + r.generated + w.requests[row].copy + ratio * left)


@lean
def _before(w: World, i: int, j: int) -> bool:
    """Tells whether request i goes before j; `take_prefix` holds the key, the greatest goes first."""
    x = w.requests[i]
    y = w.requests[j]
    return bool(x.take_prefix > y.take_prefix or (x.take_prefix == y.take_prefix and x.place < y.place))


@lean
def _insert(w: World, rows: NDArray[np.int64], i: int, row: int) -> None:
    """Puts a request where it belongs among the first i of `rows`."""
    while i > 0 and _before(w, row, i64(rows[i - 1])):
        rows[i] = rows[i - 1]
        i -= 1
    rows[i] = row


@lean
def _sort(w: World, rows: NDArray[np.int64]) -> None:
    """Sorts the waiting queue into `rows` and leaves it so, as SGLang does: of equals, who stood in front goes first.

    With lpm the longest match goes first; of the requests that miss the same prefix all but one come last.
    """
    v = w.v
    n = v.head[0].n_ready
    for i in range(n):
        row = i64(v.ready[i])
        w.requests[row].take_prefix = 0
        _insert(w, rows, i64(i), row)
    if w.physics[0].own_pass != _LPM or n > LPM_QUEUE_LIMIT:
        return
    for i in range(n):
        w.requests[rows[i]].place = i
    for a in range(len(v.agents)):
        w.agents[a].planned = 0
    for i in range(n):
        row = i64(rows[i])
        agent = i64(v.requests[row].agent)
        if _is_cached(w, agent):
            w.requests[row].take_prefix = v.agents[agent].prefix + v.requests[row].cached
        elif w.agents[agent].planned:
            w.requests[row].take_prefix = -1
        w.agents[agent].planned = 1
        _insert(w, rows, i64(i), row)
    for i in range(n):
        w.requests[rows[i]].place = i
    w.clock[0].next_place = n


@lean
def own_pass(w: World, choice: Choice) -> None:
    """Writes what SGLang's pass decides.

    What runs keeps its prefix in memory; nothing else does. A request with the engine to itself always fits.
    """
    v = w.v
    h = v.head[0]
    info = choice.info[0]
    room = float(h.budget)
    for a in range(len(v.agents)):
        choice.prefixes[a] = 0
    for i in range(h.n_running):
        row = i64(v.running[i])
        agent = i64(v.requests[row].agent)
        choice.rows[i] = row
        room -= _tokens(w, row, False)
        if not choice.prefixes[agent]:
            choice.prefixes[agent] = 1
            room -= v.agents[agent].prefix
    _sort(w, choice.rows[h.n_running : h.n_running + h.n_ready])
    total = h.n_running
    while total < h.max_running and total < h.n_running + h.n_ready:
        row = i64(choice.rows[total])
        agent = i64(v.requests[row].agent)
        need = _tokens(w, row, True)
        if not choice.prefixes[agent] or not _is_cached(w, agent):
            need += v.agents[agent].prefix
        if need >= room and total > 0:
            break
        room -= need
        choice.prefixes[agent] = 1
        total += 1
    info.n_kept = h.n_running
    info.n_admitted = total - h.n_running
    left_behind = info.n_admitted < h.n_ready
    w.clock[0].full = left_behind and h.n_running > 0
    w.clock[0].again = left_behind and h.n_running == 0


@lean
def take_copy(w: World, row: int) -> None:
    """Makes a request that is admitted compute a copy of its prefix where another one is still computing it."""
    agent = i64(w.v.requests[row].agent)
    if w.agents[agent].n_running > 0 and not _is_cached(w, agent):
        s = w.requests[row]
        s.copy = w.v.agents[agent].prefix
        s.work += s.copy
        w.clock[0].used += s.copy


@lean
def drop_copy(w: World, row: int) -> None:
    """Frees the copy of a request whose prefill has been processed."""
    s = w.requests[row]
    if s.copy > 0:
        w.clock[0].used -= s.copy
        s.copy = 0


@lean
def end_copy(w: World, row: int) -> None:
    """The prefill of a request with a copy is done; where its prefix was not whole, it is that copy now."""
    state = w.agents[w.v.requests[row].agent]
    if w.requests[row].copy > 0 and state.left > 0:
        state.left = 0
        state.whole_since = iterations(w.clock)
    if not w.physics[0].overlap:
        drop_copy(w, row)
