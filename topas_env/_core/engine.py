"""The engine's loop: events, completions and one iteration after the other, up to the next scheduling point."""

import math

from topas_env._core.admit import admit_wanted
from topas_env._core.decode import pass_time, run_decode
from topas_env._core.jit import lean
from topas_env._core.lifecycle import complete_requests, next_event, process_events
from topas_env._core.memory import integrate
from topas_env._core.prefill import run_prefill
from topas_env._core.reserve import reset_reserve
from topas_env._core.world import DECODE, END, GROW, PAUSED, POINT, STUCK, World

__all__ = ["advance", "iterate", "sample"]


@lean
def _has_room(w: World) -> bool:
    """Tells whether the arrays that one round of the loop and one decision write to are long enough."""
    c = w.clock[0]
    h = w.v.head[0]
    if c.n_events + h.n_running >= len(w.events):
        return False
    if c.record >= 1 and c.n_decision_rows >= len(w.decisions):
        return False
    if c.record >= 2:
        lines = 4 * h.n_running + 2 * h.n_ready + 4 * len(w.agents) + 64
        if c.n_log + lines > len(w.log) or c.n_samples + 2 > len(w.samples):
            return False
    return True


@lean
def sample(w: World) -> None:
    """Writes down the memory of each agent, where everything is recorded."""
    c = w.clock[0]
    if c.record < 2:
        return
    k = c.n_samples
    w.samples[k].time = c.time
    w.samples[k].used = c.used
    w.samples[k].leaves = c.leaf_tokens
    for a in range(len(w.agents)):
        w.sample_tokens[k, a, 0] = w.v.agents[a].prefix if w.agents[a].in_memory else 0
        w.sample_tokens[k, a, 1] = 0
    for i in range(w.v.head[0].n_running):
        r = w.v.requests[w.v.running[i]]
        w.sample_tokens[k, r.agent, 1] += r.suffix + r.generated
    c.n_samples += 1


@lean
def _next_load(w: World) -> float:
    """Returns when the next load of a prefix that a running request waits for is done, infinity if there is none."""
    time = math.inf
    if w.clock[0].n_prefill > 0:
        for i in range(w.v.head[0].n_running):
            row = w.v.running[i]
            if w.requests[row].phase != DECODE:
                done = w.agents[w.v.requests[row].agent].ready_at
                if w.clock[0].time < done < time:
                    time = done
    return time


@lean
def iterate(w: World) -> int:
    """Handles what has happened and runs at most one iteration of the engine.

    Returns:
        PAUSED, go on; or what `advance` returns.
    """
    c = w.clock[0]
    h = w.v.head[0]
    if not _has_room(w) or not process_events(w) or not complete_requests(w):
        return GROW
    event = next_event(w.clock, w.trace.arrival, w.events)
    if event <= c.time:
        return PAUSED
    h.time = c.time
    if c.next_arrival == len(w.trace.arrival) and h.n_live == 0:
        integrate(w.clock, c.time)
        return END
    if h.n_ready > 0 and ((c.dirty and not c.full) or (h.n_running == 0 and event == math.inf)):
        if not _has_room(w):
            return GROW
        integrate(w.clock, c.time)
        return POINT
    if c.n_wanted > 0:
        admit_wanted(w)
    if h.n_running == 0:
        reset_reserve(w.v.head, w.physics)
        sample(w)
        c.time = event
        return PAUSED
    state = 0
    if c.n_prefill > 0:
        state = run_prefill(w)
    if state == 0:
        until = min(event, _next_load(w))
        state = run_decode(w, until)
        if state == 0:  # every running request waits for a load
            pass_time(w.clock, w.v.head, until - c.time)
            c.time = max(c.time, until)
    c.dirty |= c.again
    c.again = 0
    sample(w)
    return STUCK if state == 2 else PAUSED


@lean
def advance(w: World) -> int:
    """Runs the engine to the next scheduling point.

    Returns:
        POINT, a decision is wanted; END; GROW, the caller gives the world more room and calls again; STUCK,
        `clock.stuck_call` alone does not fit the budget.
    """
    state = PAUSED
    while state == PAUSED:
        state = iterate(w)
    return int(state)
