"""Prefill batches: plan one in admission order, make room for the tokens that it yields, run it."""

from topas_env._core.decode import count_gap, decoding, pass_time, step_time
from topas_env._core.jit import i64, lean
from topas_env._core.memory import log, make_room
from topas_env._core.sglang_memory import drop_copy, end_copy, iterations
from topas_env._core.world import DECODE, LOG_FIRST_TOKEN, World

__all__ = ["run_prefill"]


@lean
def _plan(w: World) -> tuple[int, int, int]:
    """Shares the tokens of a batch out in admission order.

    Returns:
        Tokens in the batch, tokens of memory that its results need, and tokens of context of its requests.
    """
    v = w.v
    p = w.physics[0]
    c = w.clock[0]
    for a in range(len(w.agents)):
        w.agents[a].planned = 0
    room = p.chunk
    total = 0
    growth = 0
    context = 0
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        s.take_prefix = 0
        s.take_work = 0
        if s.phase == DECODE:
            if p.mixed and s.redo == 0:
                growth += 1
            continue
        agent = w.agents[v.requests[row].agent]
        if room <= 0 or agent.ready_at > c.time:
            continue
        if s.copy == 0:
            s.take_prefix = min(room, agent.left - agent.planned)
            agent.planned += s.take_prefix
        room -= s.take_prefix
        s.take_work = min(room, s.work)
        room -= s.take_work
        total += s.take_prefix + s.take_work
        if s.take_prefix + s.take_work > 0:
            r = v.requests[row]
            left = s.work - s.take_work
            if s.copy == 0:
                left += agent.left - agent.planned
            context += v.agents[r.agent].prefix + r.suffix + r.generated - left
        if s.take_work > 0 and s.take_work == s.work and s.redo == 0:
            growth += 1
    if total == 0:
        growth = 0
    return total, growth, context


@lean
def _yield_token(w: World, row: int) -> None:
    """Gives a request its next token at the end of a batch; a token that is decoded again is not new."""
    c = w.clock[0]
    s = w.requests[row]
    if s.redo > 0:
        s.redo -= 1
        return
    r = w.v.requests[row]
    r.generated += 1
    c.used += 1
    if r.generated == 1:
        w.results[s.call].first_token = c.time
        log(w.clock, w.log, LOG_FIRST_TOKEN, i64(r.agent), s.call)
    else:
        count_gap(w.itl, c.time - s.last_token, i64(1))
    s.last_token = c.time
    if r.generated >= s.output:
        c.n_complete += 1


@lean
def run_prefill(w: World) -> int:
    """Runs a prefill batch where one can run.

    Returns:
        0: there is none to run; 1: one ran; 2: the one running request does not fit.
    """
    c = w.clock[0]
    p = w.physics[0]
    v = w.v
    while True:
        tokens, growth, seen = _plan(w)
        if tokens == 0:
            return 0
        state = make_room(w, growth)
        if state == 2:
            return 2
        if state == 0:
            break
    base = p.prefill_base
    extra = 0.0
    if p.mixed:
        n, context, _ = decoding(w)
        if n > 0:
            base = max(p.prefill_base, p.step_base)
            extra = step_time(w.physics, n, context) - p.step_base
    pass_time(w.clock, w.v.head, base + p.prefill_token * tokens + p.prefill_kv * seen + extra)
    c.batches += 1
    c.prefilled += tokens
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        if s.phase == DECODE:
            drop_copy(w, row)
            if p.mixed:
                _yield_token(w, row)
            continue
        if s.take_prefix + s.take_work == 0:
            continue
        agent = w.agents[v.requests[row].agent]
        if s.take_prefix > 0:
            agent.left -= s.take_prefix
            if agent.left == 0:
                agent.whole_since = iterations(w.clock)
        s.work -= s.take_work
        if s.work == 0 and s.take_work > 0:
            end_copy(w, row)
            s.phase = DECODE
            c.n_prefill -= 1
            _yield_token(w, row)
    c.peak_used = max(c.peak_used, c.used)
    return 1
