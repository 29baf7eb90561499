"""A decision takes effect: preemptions, releases, incoming prefixes, admissions, and forced admission."""

import math

from topas_env._core.choice import Choice
from topas_env._core.decode import pass_time
from topas_env._core.engine import sample
from topas_env._core.estimates import reserved
from topas_env._core.jit import i64, lean
from topas_env._core.layout import RUNNING
from topas_env._core.lifecycle import next_event
from topas_env._core.memory import drop_leaf, drop_prefix, log, make_room, unadmit
from topas_env._core.own_pass import own_pass, take_copy
from topas_env._core.world import LOG_ADMIT, LOG_LOAD, LOG_RELEASE, LOG_RESIDENT, PREFILL, World

__all__ = ["apply"]


@lean
def _release(w: World, agent: int) -> None:
    """Takes a prefix out of the resident ones: a whole one stays cached where eviction is lazy."""
    c = w.clock[0]
    shown = w.v.agents[agent]
    state = w.agents[agent]
    log(w.clock, w.log, LOG_RELEASE, agent, i64(-1))
    whole = state.left == 0 and state.ready_at <= c.time
    if whole and not w.physics[0].eager:
        shown.resident = 0
        shown.cached = 1
        shown.last_used = state.touched
        c.n_cached += 1
    else:
        drop_prefix(w, agent)


@lean
def _enter(w: World, agent: int) -> bool:
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
def _load(w: World, agent: int) -> None:
    """Books the load of a prefix on the transfer channel, behind what is booked already."""
    c = w.clock[0]
    state = w.agents[agent]
    if state.in_memory and state.ready_at == math.inf:
        tokens = w.v.agents[agent].prefix
        state.ready_at = max(c.channel_free, c.time) + w.physics[0].load_token * tokens
        c.channel_free = state.ready_at
        c.loads += 1
        log(w.clock, w.log, LOG_LOAD, agent, i64(-1))


@lean
def _admit(w: World, row: int, credit: float) -> None:
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
    s.work = r.suffix - r.cached
    s.redo = 0
    if w.physics[0].rebuild_decode:
        s.redo = r.generated
    else:
        s.work += r.generated
    s.work = max(s.work, 1)
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
def _compact_ready(w: World) -> None:
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
def _force(w: World) -> int:
    """Admits the oldest ready request, with the other prefixes released where they leave no room for it.

    Returns:
        Prefixes that it makes incoming.
    """
    c = w.clock[0]
    v = w.v
    row = i64(v.ready[0])
    r = v.requests[row]
    agent = i64(r.agent)
    total = reserved(v.head[0], v.requests[row])
    for a in range(len(v.agents)):
        if v.agents[a].resident or a == agent:
            total += v.agents[a].prefix
    incoming = 0
    for a in range(len(v.agents)):
        if v.agents[a].resident and a != agent and total > v.head[0].budget:
            _release(w, a)
    if not v.agents[agent].resident and _enter(w, agent):
        incoming = 1
    _admit(w, row, 0.0)
    _compact_ready(w)
    make_room(w, i64(0))
    _load(w, agent)
    c.forced += 1
    return incoming


@lean
def apply(w: World, choice: Choice) -> None:
    """Carries a feasible decision out.

    Where it leaves nothing running and no event is pending, the oldest ready request is admitted by force and counted.
    """
    c = w.clock[0]
    v = w.v
    h = v.head[0]
    info = choice.info[0]
    n_ready, n_running = h.n_ready, h.n_running
    stall = w.physics[0].decision
    if stall > 0.0:
        if n_running > 0:
            pass_time(w.clock, w.v.head, stall)
        else:
            c.time += stall
    if w.physics[0].own_pass:
        own_pass(w, choice)
    for i in range(h.n_running):
        w.requests[v.running[i]].take_work = 0
    for i in range(info.n_kept):
        w.requests[choice.rows[i]].take_work = 1
    h.n_running = 0
    for i in range(n_running):
        row = i64(v.running[i])
        if w.requests[row].take_work:
            v.running[h.n_running] = row
            h.n_running += 1
        else:
            unadmit(w, row, i64(0))
    incoming = 0
    outgoing = 0
    for a in range(len(v.agents)):
        if v.agents[a].resident and not choice.prefixes[a]:
            outgoing += 1
            _release(w, a)
    for a in range(len(v.agents)):
        if choice.prefixes[a] and not v.agents[a].resident and _enter(w, a):
            incoming += 1
    admitted = info.n_admitted
    for i in range(info.n_kept, info.n_kept + admitted):
        _admit(w, i64(choice.rows[i]), choice.credits[i])
    if admitted > 0:
        _compact_ready(w)
    while make_room(w, i64(0)) == 1:
        pass
    for i in range(info.n_kept, info.n_kept + admitted):
        _load(w, i64(v.requests[choice.rows[i]].agent))
    for a in range(len(v.agents)):
        _load(w, a)
    if h.n_running == 0 and h.n_ready > 0 and next_event(w.clock, w.trace.arrival, w.events) == math.inf:
        incoming += _force(w)
        admitted += 1
    c.dirty = 0
    c.n_decisions += 1
    c.peak_used = max(c.peak_used, c.used)
    if c.record >= 1:
        d = w.decisions[c.n_decision_rows]
        c.n_decision_rows += 1
        d.time = c.time
        d.admitted = admitted
        d.preempted = n_running - info.n_kept
        d.incoming = incoming
        d.outgoing = outgoing
        d.ready = n_ready
        d.running = n_running
        d.resident_tokens = 0
        for a in range(len(v.agents)):
            if v.agents[a].resident:
                d.resident_tokens += v.agents[a].prefix
        d.used_tokens = c.used
        d.decision_s = stall
    sample(w)
