"""Requests and prefixes that come in: at once where a decision says so, or through SGLang's own checks.

Where the engine checks (`physics.checked`), the admissions of a decision are wishes: SGLang's pass takes them in order.
A new request reserves all that it asked for, and the first that does not fit ends the matter until the policy is asked
again. Of those that need a prefix which is not in memory one goes first; the others follow when it is there. A request
that has made no token since it was admitted is not preempted.
"""

import math

from topas_env._core.choice import Choice
from topas_env._core.jit import i64, lean
from topas_env._core.layout import RUNNING
from topas_env._core.memory import drop_leaf, log, make_room
from topas_env._core.sglang_memory import chunk_left, cost, on_device, room_left, take_copy, work_of
from topas_env._core.world import LOG_ADMIT, LOG_LOAD, LOG_RESIDENT, PREFILL, World

__all__ = ["admit", "admit_wanted", "compact_ready", "enter", "keep_new", "load", "want"]


@lean
def enter(w: World, agent: int) -> bool:
    """Makes a prefix resident; returns True where it has to be loaded or computed. Loads are booked later."""
    c = w.clock[0]
    shown = w.v.agents[agent]
    state = w.agents[agent]
    shown.resident = 1
    state.touched = c.time
    log(w.clock, w.log, LOG_RESIDENT, agent, i64(-1))
    if shown.cached:
        shown.cached = 0
        c.n_cached -= 1
        return False
    c.used += shown.prefix
    state.in_memory = 1
    if w.physics[0].tier and state.copied:
        state.left = 0
        state.ready_at = math.inf
    else:
        state.left = shown.prefix
        state.ready_at = -math.inf
        c.computes += 1
    return True


@lean
def load(w: World, agent: int) -> None:
    """Books the load of a prefix on the transfer channel, behind what is booked already."""
    c = w.clock[0]
    state = w.agents[agent]
    if state.in_memory and state.ready_at == math.inf:
        size = w.v.agents[agent].prefix
        state.ready_at = max(c.channel_free, c.time) + w.physics[0].load_token * size
        c.channel_free = state.ready_at
        c.loads += 1
        log(w.clock, w.log, LOG_LOAD, agent, i64(-1))


@lean
def admit(w: World, row: int, credit: float) -> None:
    """Admits a ready request; the caller takes it out of the ready list."""
    c = w.clock[0]
    v = w.v
    h = v.head[0]
    r = v.requests[row]
    s = w.requests[row]
    r.status = RUNNING
    r.admitted = c.time
    r.credit = credit
    v.task_stages[r.task, r.pos].status = RUNNING
    if w.stages[r.task, r.pos].leaf > 0:
        drop_leaf(w, i64(r.task), i64(r.pos))
    c.used += r.suffix + r.generated
    s.phase = PREFILL
    s.progress = r.generated
    s.work = work_of(w, row)
    s.redo = r.generated if w.physics[0].rebuild_decode else 0
    c.n_prefill += 1
    agent = w.agents[r.agent]
    if w.physics[0].own_pass:
        take_copy(w, row)
    agent.n_running += 1
    agent.touched = c.time
    v.running[h.n_running] = row
    h.n_running += 1
    result = w.results[s.call]
    if math.isnan(result.admitted):
        result.admitted = c.time
    result.readmitted = c.time
    result.cached = r.cached
    log(w.clock, w.log, LOG_ADMIT, i64(r.agent), s.call)


@lean
def compact_ready(w: World) -> None:
    """Removes admitted requests from the ready list."""
    h = w.v.head[0]
    j = 0
    for i in range(h.n_ready):
        row = w.v.ready[i]
        if w.v.requests[row].status != RUNNING:
            w.v.ready[j] = row
            j += 1
    h.n_ready = j


@lean
def keep_new(w: World, choice: Choice) -> None:
    """Keeps what a decision gives up before it has made a token: the plugin defers such preemptions.

    `take_work` says which running requests go on.
    """
    v = w.v
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        if not s.take_work and v.requests[row].generated <= s.progress:
            s.take_work = 1
            choice.prefixes[v.requests[row].agent] = 1


@lean
def want(w: World, choice: Choice) -> None:
    """Notes the admissions of a decision, in its order, in place of those that an earlier one left."""
    v = w.v
    info = choice.info[0]
    for i in range(v.head[0].n_ready):
        w.requests[v.ready[i]].wanted = 0
    for i in range(info.n_kept, info.n_kept + info.n_admitted):
        s = w.requests[choice.rows[i]]
        s.wanted = 1
        s.place = i
        s.offer = choice.credits[i]
    w.clock[0].n_wanted = info.n_admitted


@lean
def _next_wanted(w: World, place: int) -> int:
    """Returns the row of the first wanted request behind a place, -1 if there is none."""
    v = w.v
    best = i64(-1)
    for i in range(v.head[0].n_ready):
        row = i64(v.ready[i])
        s = w.requests[row]
        if s.wanted and s.place > place and (best < 0 or s.place < w.requests[best].place):
            best = row
    return int(best)


@lean
def admit_wanted(w: World) -> tuple[int, int]:
    """Admits what SGLang's pass lets in of the requests that are wanted.

    Returns:
        How many it admits, and how many prefixes come in with them.
    """
    c = w.clock[0]
    v = w.v
    h = v.head[0]
    room = room_left(w)
    incoming = 0
    first = i64(h.n_running)
    place = i64(-1)
    chunk = chunk_left(w)
    while chunk > 0:
        row = i64(_next_wanted(w, place))
        if row < 0:
            break
        s = w.requests[row]
        place = i64(s.place)
        agent = i64(v.requests[row].agent)
        alone = w.agents[agent].n_running == 0
        if not alone and not on_device(w, agent):
            continue
        need, work = cost(w, row, not alone)
        if h.n_running >= h.max_running or (need >= room and h.n_running > 0):
            for i in range(h.n_ready):
                w.requests[v.ready[i]].wanted = 0
            c.n_wanted = 0
            break
        room -= need
        chunk -= work
        if not v.agents[agent].resident and enter(w, agent):
            incoming += 1
        admit(w, row, s.offer)
        s.wanted = 0
        c.n_wanted -= 1
    admitted = i64(h.n_running - first)
    if admitted > 0:
        compact_ready(w)
        while make_room(w, i64(0)) == 1:
            pass
        for i in range(h.n_running):
            load(w, i64(v.requests[v.running[i]].agent))
    return admitted, incoming
