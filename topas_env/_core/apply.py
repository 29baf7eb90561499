"""A decision takes effect: preemptions, releases, incoming prefixes, admissions, and forced admission."""

import math

from topas_env._core.admit import admit, admit_wanted, compact_ready, enter, keep_new, load, want
from topas_env._core.choice import Choice
from topas_env._core.decode import pass_time
from topas_env._core.engine import sample
from topas_env._core.estimates import reserved
from topas_env._core.jit import i64, lean
from topas_env._core.lifecycle import next_event
from topas_env._core.memory import drop_prefix, log, make_room, unadmit
from topas_env._core.own_pass import own_pass
from topas_env._core.world import LOG_RELEASE, World

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
    if not v.agents[agent].resident and enter(w, agent):
        incoming = 1
    admit(w, row, 0.0)
    compact_ready(w)
    make_room(w, i64(0))
    load(w, agent)
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
    checked = w.physics[0].checked
    if checked:
        keep_new(w, choice)
    h.n_running = 0
    for i in range(n_running):
        row = i64(v.running[i])
        if w.requests[row].take_work:
            v.running[h.n_running] = row
            h.n_running += 1
        else:
            unadmit(w, row, i64(0))
    preempted = n_running - h.n_running
    incoming = 0
    outgoing = 0
    for a in range(len(v.agents)):
        if v.agents[a].resident and not choice.prefixes[a]:
            outgoing += 1
            _release(w, a)
    for a in range(len(v.agents)):
        wanted = choice.prefixes[a] and not v.agents[a].resident and (v.agents[a].cached or not checked)
        if wanted and enter(w, a):
            incoming += 1
    admitted = info.n_admitted
    if checked:
        want(w, choice)
        admitted, more = admit_wanted(w)
        incoming += more
    else:
        for i in range(info.n_kept, info.n_kept + admitted):
            admit(w, i64(choice.rows[i]), choice.credits[i])
        if admitted > 0:
            compact_ready(w)
        while make_room(w, i64(0)) == 1:
            pass
        for i in range(info.n_kept, info.n_kept + admitted):
            load(w, i64(v.requests[choice.rows[i]].agent))
    for a in range(len(v.agents)):
        load(w, a)
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
        d.preempted = preempted
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
