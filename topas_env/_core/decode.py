"""Decode in closed form: many steps at once, up to the first thing that changes the batch."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, lean
from topas_env._core.memory import make_room
from topas_env._core.reserve import lower_reserve
from topas_env._core.sglang_memory import drop_copy
from topas_env._core.world import DECODE, ITL_BINS, ITL_LEAST_S, ITL_RATIO, World

__all__ = ["count_gap", "decoding", "pass_time", "run_decode", "step_time", "steps_time", "steps_until"]

_LOG_RATIO = math.log(ITL_RATIO)


@lean
def pass_time(clock: NDArray[Any], head: NDArray[Any], seconds: float) -> None:
    """Lets time pass with the running requests as they are."""
    c = clock[0]
    c.time += seconds
    c.busy += seconds
    c.batch_area += seconds * head[0].n_running


@lean
def count_gap(itl: NDArray[np.int64], seconds: float, count: int) -> None:
    """Adds gaps between output tokens to their histogram."""
    i = 0
    if seconds > ITL_LEAST_S:
        i = min(int(math.log(seconds / ITL_LEAST_S) / _LOG_RATIO), ITL_BINS - 1)
    itl[i] += count


@lean
def step_time(physics: NDArray[Any], n: int, context: int) -> float:
    """Returns the time of one decode step of n requests with so many tokens of context."""
    p = physics[0]
    return float(p.step_base + p.step_request * n + p.step_kv * context)


@lean
def steps_time(first: float, growth: float, k: float) -> float:
    """Returns the time of k steps, the first of which lasts `first` and each further one `growth` longer."""
    return k * first + growth * (0.5 * k * (k - 1))


@lean
def steps_until(first: float, growth: float, seconds: float) -> float:
    """Returns the least k of at least 1 for which k steps last at least `seconds`, as a float (it may be infinite)."""
    if seconds <= first:
        return 1.0
    if not seconds < math.inf or (first <= 0.0 and growth <= 0.0):
        return math.inf
    if growth > 0.0:
        b = first - 0.5 * growth
        k = float(np.ceil(2.0 * seconds / (b + math.sqrt(b * b + 2.0 * growth * seconds))))
    else:
        k = float(np.ceil(seconds / first))
    k = max(k, 1.0)
    if k > 1e15:
        return k
    while steps_time(first, growth, k) < seconds:  # the root is rounded: at most a step or two to either side
        k += 1.0
    while k > 1.0 and steps_time(first, growth, k - 1.0) >= seconds:
        k -= 1.0
    return float(k)


@lean
def decoding(w: World) -> tuple[int, int, int]:
    """Returns how many requests decode, their tokens of context, and how many of them get new tokens."""
    v = w.v
    n = 0
    context = 0
    new = 0
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        if s.phase == DECODE:
            r = v.requests[row]
            n += 1
            context += v.agents[r.agent].prefix + r.suffix + r.generated - s.redo
            if s.redo == 0:
                new += 1
    return n, context, new


@lean
def _count_steps(w: World, start: float, first: float, growth: float, k: int, new: int) -> None:
    """Adds the gaps of k steps to the histogram, each bin's share at once."""
    v = w.v
    stalled = 0
    for i in range(v.head[0].n_running):
        s = w.requests[v.running[i]]
        if s.phase == DECODE and s.redo == 0 and s.last_token != start:
            count_gap(w.itl, start + first - s.last_token, i64(1))
            stalled += 1
    if new > stalled:
        count_gap(w.itl, first, new - stalled)
    done = 1
    while done < k:
        gap = first + growth * done
        upto = k
        if growth > 0.0 and gap > ITL_LEAST_S:
            i = int(math.log(gap / ITL_LEAST_S) / _LOG_RATIO)
            edge = ITL_LEAST_S * math.exp((i + 1) * _LOG_RATIO)
            upto = min(k, max(done + 1, math.ceil((edge - first) / growth)))
        count_gap(w.itl, gap, new * (upto - done))
        done = upto


@lean
def run_decode(w: World, until: float) -> int:
    """Decodes up to the first completion, the end of memory, or the first boundary at or after `until`.

    Returns:
        0: nothing decodes; 1: it did; 2: the one running request does not fit.
    """
    c = w.clock[0]
    v = w.v
    while True:
        n, context, new = decoding(w)
        if n == 0:
            return 0
        state = make_room(w, new)
        if state == 2:
            return 2
        if state == 0:
            break
    k = i64(2**62)
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        if s.phase == DECODE:
            k = min(k, s.redo if s.redo > 0 else s.output - v.requests[row].generated)
    if new > 0:
        k = min(k, (w.physics[0].budget - c.used) // new)
    first = step_time(w.physics, n, context)
    growth = w.physics[0].step_kv * n
    if c.again or c.n_wanted > 0:  # SGLang tries to admit again after this step
        until = c.time
    limit = steps_until(first, growth, until - c.time)
    if limit < k:
        k = i64(limit)
    start = c.time
    seconds = steps_time(first, growth, float(k))
    pass_time(w.clock, w.v.head, seconds)
    if limit <= k and c.time < until:  # the sum was rounded below the event
        c.time = until
    if c.record >= 0:
        _count_steps(w, start, first, growth, k, new)
    c.steps += k
    lower_reserve(w.v.head, w.physics, k)
    c.used += k * new
    for i in range(v.head[0].n_running):
        row = v.running[i]
        s = w.requests[row]
        if s.phase != DECODE:
            continue
        drop_copy(w, row)
        if s.redo > 0:
            s.redo -= k
            continue
        r = v.requests[row]
        r.generated += k
        s.last_token = c.time
        if r.generated >= s.output:
            c.n_complete += 1
    c.peak_used = max(c.peak_used, c.used)
    return 1
