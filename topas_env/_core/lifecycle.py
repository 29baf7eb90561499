"""The life of tasks: arrival, calls that become ready, finish and wait for tools, stages and tasks that end."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, lean
from topas_env._core.layout import DONE, HISTORY_LIMIT, READY, TOOL, WAITING
from topas_env._core.memory import add_leaf, insert_ready, integrate, log
from topas_env._core.service import observe_call, observe_stage, ring_mean
from topas_env._core.sglang_memory import drop_copy
from topas_env._core.world import LOG_FINISH, PREFILL, World

__all__ = ["complete_requests", "next_event", "process_events"]


@lean
def next_event(clock: NDArray[Any], arrival: NDArray[np.float64], events: NDArray[Any]) -> float:
    """Returns the time of the next arrival or end of a tool wait, infinity if there is none."""
    c = clock[0]
    time = math.inf
    if c.next_arrival < len(arrival):
        time = arrival[c.next_arrival]
    if c.n_events > 0 and events[0].time < time:
        time = events[0].time
    return time


@lean
def _before(events: NDArray[Any], i: int, j: int) -> bool:
    """Compares two events of the heap."""
    a = events[i]
    b = events[j]
    return bool(a.time < b.time or (a.time == b.time and a.order < b.order))


@lean
def _swap(events: NDArray[Any], i: int, j: int) -> None:
    a = events[i]
    b = events[j]
    time, order, row, pos = a.time, a.order, a.row, a.pos
    a.time, a.order, a.row, a.pos = b.time, b.order, b.row, b.pos
    b.time, b.order, b.row, b.pos = time, order, row, pos


@lean
def _push_event(clock: NDArray[Any], events: NDArray[Any], time: float, order: int, task: int, pos: int) -> None:
    """Notes the end of a tool wait."""
    c = clock[0]
    i = c.n_events
    e = events[i]
    e.time = time
    e.order = order
    e.row = task
    e.pos = pos
    c.n_events += 1
    while i > 0 and _before(events, i, (i - 1) // 2):
        _swap(events, i, (i - 1) // 2)
        i = (i - 1) // 2


@lean
def _pop_event(clock: NDArray[Any], events: NDArray[Any]) -> None:
    """Removes the first event."""
    c = clock[0]
    c.n_events -= 1
    n = c.n_events
    _swap(events, i64(0), n)
    i = i64(0)
    while True:
        least = i
        if 2 * i + 1 < n and _before(events, 2 * i + 1, least):
            least = 2 * i + 1
        if 2 * i + 2 < n and _before(events, 2 * i + 2, least):
            least = 2 * i + 2
        if least == i:
            return
        _swap(events, i, least)
        i = least


@lean
def _make_ready(w: World, task: int, pos: int, time: float) -> None:
    """Makes the request of the next call of a stage."""
    c = w.clock[0]
    v = w.v
    t = v.tasks[task]
    state = w.stages[task, pos]
    c.n_free_requests -= 1
    row = i64(w.free_requests[c.n_free_requests])
    call = w.trace.first_call[w.trace.stage0[t.key] + pos] + state.call
    data = w.trace.calls[call]
    stage = v.workflows[t.workflow].stage0 + pos
    r = v.requests[row]
    r.task = task
    r.pos = pos
    r.stage = stage
    r.agent = v.stages[stage].agent
    r.status = READY
    r.rank = w.base[t.key] * c.depth + pos
    r.ready = time
    r.admitted = math.nan
    r.suffix = data.suffix
    r.cached = min(data.history, state.leaf)
    r.generated = 0
    r.max_new = data.max_new
    r.credit = 0.0
    s = w.requests[row]
    s.phase = PREFILL
    s.call = call
    s.output = max(data.output, 1)
    if w.physics[0].overlap:  # SGLang learns one step late that a stop token ended it; `max_new` it sees coming
        s.output = max(s.output, min(s.output + 1, data.max_new))
    s.work = 0
    s.redo = 0
    s.last_token = math.nan
    shown = v.task_stages[task, pos]
    shown.status = READY
    shown.request = row
    w.results[call].ready = time
    c.dirty = 1
    insert_ready(w, row)


@lean
def _arrive(w: World) -> None:
    """Lets the next task arrive: its stages without predecessors become ready."""
    c = w.clock[0]
    v = w.v
    h = v.head[0]
    key = c.next_arrival
    time = w.trace.arrival[key]
    integrate(w.clock, time)
    c.next_arrival += 1
    c.n_unfinished += 1
    c.n_free_tasks -= 1
    row = i64(w.free_tasks[c.n_free_tasks])
    t = v.tasks[row]
    t.workflow = w.trace.workflow[key]
    t.rank = w.trace.rank[key]
    t.arrival = time
    t.key = key
    v.live[h.n_live] = row
    h.n_live += 1
    flow = v.workflows[t.workflow]
    w.tasks[row].left = flow.n_stages
    w.tasks[row].service = 0.0
    for pos in range(i64(flow.n_stages)):
        shown = v.task_stages[row, pos]
        shown.status = WAITING
        shown.request = -1
        shown.service = 0.0
        state = w.stages[row, pos]
        state.call = 0
        state.preds_left = v.stages[flow.stage0 + pos].n_pred
        state.leaf = 0
    for pos in range(i64(flow.n_stages)):
        if w.stages[row, pos].preds_left == 0:
            _make_ready(w, row, pos, time)


@lean
def _finish_task(w: World, task: int, time: float) -> None:
    """Records the completion time of a task and frees its row."""
    c = w.clock[0]
    h = w.v.head[0]
    t = w.v.tasks[task]
    integrate(w.clock, time)
    c.n_unfinished -= 1
    w.jct[t.key] = time - t.arrival
    if c.record >= 0:
        w.task_totals[c.next_total] = w.tasks[task].service
        c.next_total = (c.next_total + 1) % HISTORY_LIMIT
        c.n_totals = min(c.n_totals + 1, HISTORY_LIMIT)
        scale = ring_mean(w.task_totals, c.n_totals, c.next_total)
        if scale > 0.0:
            h.age_scale = scale
    low, high = 0, h.n_live
    while high - low > 1:
        middle = (low + high) // 2
        if w.v.tasks[w.v.live[middle]].key <= t.key:
            low = middle
        else:
            high = middle
    h.n_live -= 1
    for i in range(low, h.n_live):
        w.v.live[i] = w.v.live[i + 1]
    w.free_tasks[c.n_free_tasks] = task
    c.n_free_tasks += 1


@lean
def _finish_stage(w: World, task: int, pos: int, time: float) -> None:
    """Ends a stage: its successors may become ready, its task may be finished."""
    v = w.v
    stage = i64(v.workflows[v.tasks[task].workflow].stage0 + pos)
    shown = v.task_stages[task, pos]
    shown.status = DONE
    if w.clock[0].record >= 0:
        observe_stage(v, stage, shown.service)
    w.tasks[task].left -= 1
    if w.tasks[task].left == 0:
        _finish_task(w, task, time)
        return
    data = v.stages[stage]
    for k in range(data.succ0, data.succ0 + data.n_succ):
        following = w.stages[task, v.succs[k]]
        following.preds_left -= 1
        if following.preds_left == 0:
            _make_ready(w, task, i64(v.succs[k]), time)


@lean
def _go_on(w: World, task: int, pos: int, time: float) -> None:
    """Goes on with a stage after a call and its tool wait."""
    t = w.v.tasks[task]
    row = w.trace.stage0[t.key] + pos
    if w.trace.first_call[row] + w.stages[task, pos].call < w.trace.first_call[row + 1]:
        _make_ready(w, task, pos, time)
    else:
        _finish_stage(w, task, pos, time)


@lean
def process_events(w: World) -> bool:
    """Handles all arrivals and ends of tool waits up to now, in order; returns False if room runs out before."""
    c = w.clock[0]
    while True:
        if next_event(w.clock, w.trace.arrival, w.events) > c.time:
            return True
        if c.n_free_tasks < 1 or c.n_free_requests < c.max_out:
            return False
        arrives = c.next_arrival < len(w.trace.arrival)
        if c.n_events == 0 or (arrives and w.trace.arrival[c.next_arrival] <= w.events[0].time):
            _arrive(w)
        else:
            e = w.events[0]
            time, task, pos = e.time, i64(e.row), i64(e.pos)
            _pop_event(w.clock, w.events)
            _go_on(w, task, pos, time)


@lean
def _complete(w: World, row: int) -> None:
    """Completes a request that was taken from the running list."""
    c = w.clock[0]
    v = w.v
    r = v.requests[row]
    s = w.requests[row]
    task, pos = i64(r.task), i64(r.pos)
    service = c.time - r.admitted
    c.used -= r.suffix + r.generated
    drop_copy(w, row)
    output = min(r.generated, max(w.trace.calls[s.call].output, 1))
    tokens = r.suffix + output
    agent = w.agents[r.agent]
    agent.n_running -= 1
    agent.touched = c.time
    c.full = 0
    w.results[s.call].finish = c.time
    log(w.clock, w.log, LOG_FINISH, i64(r.agent), s.call)
    if c.record >= 0:
        observe_call(v, i64(r.stage), service, output)
    shown = v.task_stages[task, pos]
    shown.service += service
    shown.request = -1
    w.tasks[task].service += service
    w.free_requests[c.n_free_requests] = row
    c.n_free_requests += 1
    c.dirty = 1
    state = w.stages[task, pos]
    state.call += 1
    wait = w.trace.calls[s.call].tool + w.physics[0].latency
    more = w.trace.first_call[w.trace.stage0[v.tasks[task].key] + pos + 1] > s.call + 1
    if more and not w.physics[0].eager:
        add_leaf(w, task, pos, tokens)
    if wait > 0.0:
        shown.status = TOOL
        _push_event(w.clock, w.events, c.time + wait, v.tasks[task].rank * c.depth + pos, task, pos)
    else:
        _go_on(w, task, pos, c.time)


@lean
def complete_requests(w: World) -> bool:
    """Completes the running requests that have all their output; returns False if room runs out before."""
    c = w.clock[0]
    v = w.v
    h = v.head[0]
    i = 0
    while c.n_complete > 0:
        row = i64(v.running[i])
        if v.requests[row].generated < w.requests[row].output:
            i += 1
            continue
        if c.n_free_requests < c.max_out:
            return False
        h.n_running -= 1
        for k in range(i, h.n_running):
            v.running[k] = v.running[k + 1]
        c.n_complete -= 1
        _complete(w, row)
    return True
