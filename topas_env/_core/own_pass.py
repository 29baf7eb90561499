"""SGLang's own admission pass, for an engine without a policy: it decides, whatever the policy's kernel has written.

Requests are taken in the order of the waiting queue until the batch has its tokens or one does not fit the memory. In
the latter case, if something ran before, no other pass follows until a request has left (`batch_is_full`). A new
request reserves all the tokens that it asked for.
"""

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice
from topas_env._core.codes import LPM_QUEUE_LIMIT
from topas_env._core.jit import i64, lean
from topas_env._core.sglang_memory import chunk_left, cost, is_cached, on_device, room_left
from topas_env._core.world import World

__all__ = ["ORDERS", "own_pass"]

ORDERS = {"": 0, "fcfs": 1, "lpm": 2}  # values of `physics.own_pass`
_LPM = ORDERS["lpm"]
_SHARED_TOKENS = 32  # IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD


@lean
def _before(w: World, i: int, j: int) -> bool:
    """Tells whether request i goes before j."""
    x = w.requests[i]
    y = w.requests[j]
    return bool(x.key > y.key or (x.key == y.key and x.place < y.place))


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

    With lpm the longest match goes first, and a copy on the host counts; of the requests whose prefix is not on the
    device all but one come last.
    """
    v = w.v
    n = v.head[0].n_ready
    for i in range(n):
        row = i64(v.ready[i])
        w.requests[row].key = 0
        w.agents[v.requests[row].agent].touched = w.clock[0].time  # the match that SGLang makes for each
        _insert(w, rows, i64(i), row)
    if w.physics[0].own_pass != _LPM or n > LPM_QUEUE_LIMIT:
        return
    for a in range(len(v.agents)):
        w.agents[a].planned = 0
    for i in range(n):
        row = i64(rows[i])
        agent = i64(v.requests[row].agent)
        shared = v.agents[agent].prefix >= _SHARED_TOKENS
        if shared and w.agents[agent].planned and not on_device(w, agent):
            w.requests[row].key = -1
        elif is_cached(w, agent):
            w.requests[row].key = v.agents[agent].prefix + v.requests[row].cached
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
    room = room_left(w)
    for a in range(len(v.agents)):
        choice.prefixes[a] = w.agents[a].n_running > 0
    for i in range(h.n_running):
        choice.rows[i] = v.running[i]
    _sort(w, choice.rows[h.n_running : h.n_running + h.n_ready])
    total = h.n_running
    chunk = chunk_left(w)
    while total < h.max_running and total < h.n_running + h.n_ready and chunk > 0:
        row = i64(choice.rows[total])
        agent = i64(v.requests[row].agent)
        need, work = cost(w, row, choice.prefixes[agent] > 0)
        if need >= room and total > 0:
            break
        room -= need
        chunk -= work
        choice.prefixes[agent] = 1
        total += 1
    info.n_kept = h.n_running
    info.n_admitted = total - h.n_running
    left_behind = info.n_admitted < h.n_ready
    at_once = chunk <= 0 or h.n_running == 0
    w.clock[0].full = left_behind and not at_once
    w.clock[0].again = left_behind and at_once
