"""Memory of the engine: history leaves, eviction, retraction and the bookkeeping of requests that lose their place."""

import math
from typing import Any

from numpy.typing import NDArray

from topas_env._core.jit import i64, lean
from topas_env._core.layout import READY
from topas_env._core.reserve import raise_reserve
from topas_env._core.sglang_memory import drop_copy
from topas_env._core.world import (
    DECODE,
    LOG_EVICT,
    LOG_PREEMPT,
    LOG_RETRACT,
    World,
)

__all__ = [
    "add_leaf",
    "drop_leaf",
    "drop_prefix",
    "insert_ready",
    "integrate",
    "log",
    "make_room",
    "unadmit",
]


@lean
def log(clock: NDArray[Any], lines: NDArray[Any], kind: int, agent: int, call: int) -> None:
    """Writes a line of the full record, where there is one; `advance` keeps enough room free."""
    c = clock[0]
    if c.record >= 2:
        line = lines[c.n_log]
        line.time = c.time
        line.kind = kind
        line.agent = agent
        line.call = call
        c.n_log += 1


@lean
def integrate(clock: NDArray[Any], time: float) -> None:
    """Adds the unfinished tasks up to `time` to the integral."""
    c = clock[0]
    if time > c.area_time:
        c.area += c.n_unfinished * (time - c.area_time)
        c.area_time = time


@lean
def insert_ready(w: World, row: int) -> None:
    """Puts a request into the ready list, which is in (ready time, rank) order, and at the end of SGLang's queue."""
    h = w.v.head[0]
    requests = w.v.requests
    ready = w.v.ready
    new = requests[row]
    w.requests[row].place = w.clock[0].next_place
    w.clock[0].next_place += 1
    i = h.n_ready
    while i > 0:
        old = requests[ready[i - 1]]
        if old.ready < new.ready or (old.ready == new.ready and old.rank < new.rank):
            break
        ready[i] = ready[i - 1]
        i -= 1
    ready[i] = row
    h.n_ready += 1


@lean
def add_leaf(w: World, task: int, pos: int, tokens: int) -> None:
    """Leaves the KV of a finished call in memory as the most recently used leaf."""
    c = w.clock[0]
    s = w.stages[task, pos]
    s.leaf = tokens
    s.used = c.time
    s.before = c.leaf_tail
    s.after = -1
    index = task * c.depth + pos
    if c.leaf_tail >= 0:
        w.stages[c.leaf_tail // c.depth, c.leaf_tail % c.depth].after = index
    else:
        c.leaf_head = index
    c.leaf_tail = index
    c.leaf_tokens += tokens
    c.used += tokens


@lean
def drop_leaf(w: World, task: int, pos: int) -> None:
    """Takes a stage's leaf out of memory; a ready request that would have used it finds nothing."""
    c = w.clock[0]
    s = w.stages[task, pos]
    if s.before >= 0:
        w.stages[s.before // c.depth, s.before % c.depth].after = s.after
    else:
        c.leaf_head = s.after
    if s.after >= 0:
        w.stages[s.after // c.depth, s.after % c.depth].before = s.before
    else:
        c.leaf_tail = s.before
    c.leaf_tokens -= s.leaf
    c.used -= s.leaf
    s.leaf = 0
    request = w.v.task_stages[task, pos].request
    if request >= 0 and w.v.requests[request].status == READY:
        w.v.requests[request].cached = 0


@lean
def drop_prefix(w: World, agent: int) -> None:
    """Evicts a prefix that no running request uses; with a host tier a whole one is copied there first."""
    c = w.clock[0]
    p = w.physics[0]
    shown = w.v.agents[agent]
    state = w.agents[agent]
    c.used -= shown.prefix
    if shown.cached:
        c.n_cached -= 1
    shown.cached = 0
    shown.resident = 0
    state.in_memory = 0
    whole = state.left == 0 and state.ready_at <= c.time
    if whole:
        c.evictions += 1
        if p.tier and shown.prefix > 0:
            c.channel_free = max(c.channel_free, c.time) + p.offload_token * shown.prefix
            state.copied = 1
    state.left = 0
    log(w.clock, w.log, LOG_EVICT, agent, i64(-1))


@lean
def _evict_one(w: World) -> bool:
    """Evicts the least recently used of cached prefixes and history leaves; of equals a leaf, so children go first."""
    c = w.clock[0]
    best = i64(-1)
    used = math.inf
    if c.n_cached > 0:
        for a in range(len(w.agents)):
            if w.v.agents[a].cached and w.agents[a].touched < used:
                used = w.agents[a].touched
                best = a
    if c.leaf_head >= 0:
        task = c.leaf_head // c.depth
        pos = c.leaf_head % c.depth
        if best < 0 or w.stages[task, pos].used <= used:
            drop_leaf(w, task, pos)
            return True
    if best < 0:
        return False
    drop_prefix(w, best)
    return True


@lean
def _evict_idle(w: World) -> bool:
    """Evicts the least recently used resident prefix without a running request."""
    best = i64(-1)
    used = math.inf
    for a in range(len(w.agents)):
        shown = w.v.agents[a]
        if shown.resident and shown.prefix > 0 and w.agents[a].n_running == 0 and w.agents[a].touched < used:
            used = w.agents[a].touched
            best = a
    if best < 0:
        return False
    drop_prefix(w, best)
    return True


@lean
def unadmit(w: World, row: int, retracted: int) -> None:
    """Takes a request that the caller removed from the running list back to the ready ones; its KV is gone.

    It keeps its place in the queue: the time at which it first became ready.
    """
    c = w.clock[0]
    r = w.v.requests[row]
    s = w.requests[row]
    c.used -= r.suffix + r.generated
    drop_copy(w, row)
    c.full = 0
    if s.phase != DECODE:
        c.n_prefill -= 1
    agent = w.agents[r.agent]
    agent.n_running -= 1
    agent.touched = c.time
    r.status = READY
    r.admitted = math.nan
    r.credit = 0.0
    r.cached = 0
    w.v.task_stages[r.task, r.pos].status = READY
    if retracted:
        c.retractions += 1
        w.results[s.call].retractions += 1
        log(w.clock, w.log, LOG_RETRACT, i64(r.agent), s.call)
    else:
        c.preemptions += 1
        w.results[s.call].preemptions += 1
        log(w.clock, w.log, LOG_PREEMPT, i64(r.agent), s.call)
    insert_ready(w, row)


@lean
def _victim(w: World) -> int:
    """Returns the place among the running requests of the one that memory takes: the last admitted.

    SGLang takes the one with least output, of equals the one with the longest prompt.
    """
    v = w.v
    n = v.head[0].n_running
    best = n - 1
    if w.physics[0].checked or w.physics[0].own_pass:
        for k in range(n - 1):
            x = v.requests[v.running[k]]
            y = v.requests[v.running[best]]
            longer = v.agents[x.agent].prefix + x.suffix > v.agents[y.agent].prefix + y.suffix
            if x.generated < y.generated or (x.generated == y.generated and longer):
                best = k
    return int(best)


@lean
def make_room(w: World, tokens: int) -> int:
    """Frees memory until `tokens` more fit: cached prefixes and leaves, idle resident prefixes, a running request.

    Returns:
        0: they fit; 1: a request was retracted, so the caller's need has changed; 2: they cannot fit.
    """
    c = w.clock[0]
    h = w.v.head[0]
    budget = w.physics[0].budget
    while c.used + tokens > budget:
        if _evict_one(w) or _evict_idle(w):
            continue
        if h.n_running < 2:
            if h.n_running == 1:
                c.stuck_call = w.requests[w.v.running[0]].call
            return 2
        k = i64(_victim(w))
        row = i64(w.v.running[k])
        h.n_running -= 1
        for i in range(k, h.n_running):
            w.v.running[i] = w.v.running[i + 1]
        unadmit(w, row, i64(1))
        raise_reserve(w)
        c.again = w.physics[0].own_pass > 0
        return 1
    return 0
