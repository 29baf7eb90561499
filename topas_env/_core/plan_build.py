"""What the planner believes: the state of the engine from a view alone, and scenarios of what is hidden."""

import math
from typing import Any

import numpy as np

from topas_env._core.jit import i64, inner
from topas_env._core.layout import DONE, READY, RUNNING, TOOL, WAITING, View
from topas_env._core.plan_guess import SINGLE_CALL, guess_physics, guess_stages, sample_calls, sample_output, uniform
from topas_env._core.plan_state import Board, Planner
from topas_env._core.world import DECODE, PREFILL

__all__ = ["build_scenario", "build_start"]


@inner
def build_start(v: View, q: Planner, guess: int, tool: float) -> None:
    """Writes the state of the engine as the view shows it.

    What the view does not show: prefixes that are resident or cached are taken to be ready; a request that has yielded
    nothing has all of its prompt to compute; of history only what ready requests would find is in memory.
    """
    h = v.head[0]
    b = q.start
    p = q.physics[0]
    if guess:
        guess_physics(v, q)
    p.budget = h.budget
    p.max_running = h.max_running
    guess_stages(v, q)
    b.head[0] = v.head[0]
    depth = v.task_stages.shape[1]
    c = b.clock[0]
    c.time = h.time
    c.area = 0.0
    c.area_time = h.time
    c.channel_free = h.time
    c.next_arrival = h.n_live
    c.n_unfinished = h.n_live
    c.n_events = 0
    c.used = 0
    c.n_cached = 0
    c.n_prefill = 0
    c.n_complete = 0
    c.dirty = 0
    c.leaf_head = -1
    c.leaf_tail = -1
    c.leaf_tokens = 0
    c.depth = depth
    c.record = -1
    c.stuck_call = -1
    most = 1
    for s in range(len(v.stages)):
        most = max(most, v.stages[s].n_succ)
    for f in range(len(v.workflows)):
        sources = 0
        for pos in range(v.workflows[f].n_stages):
            if v.stages[v.workflows[f].stage0 + pos].n_pred == 0:
                sources += 1
        most = max(most, sources)
    c.max_out = most
    for a in range(len(v.agents)):
        b.shown_agents[a] = v.agents[a]
        s = b.agents[a]
        s.in_memory = 1 if v.agents[a].resident or v.agents[a].cached else 0
        s.copied = 1
        s.n_running = 0
        s.left = 0
        s.ready_at = -math.inf
        s.touched = v.agents[a].last_used if v.agents[a].cached else h.time
        if s.in_memory:
            c.used += v.agents[a].prefix
        if v.agents[a].cached:
            c.n_cached += 1
    for i in range(h.n_live):
        row = v.live[i]
        t = v.tasks[row]
        b.live[i] = row
        b.shown_tasks[row] = t
        b.shown_tasks[row].key = i
        flow = v.workflows[t.workflow]
        left = 0
        for pos in range(flow.n_stages):
            b.shown_stages[row, pos] = v.task_stages[row, pos]
            state = b.stages[row, pos]
            state.call = 1 if v.task_stages[row, pos].status == TOOL else 0
            state.leaf = 0
            state.before = -1
            state.after = -1
            stage = v.stages[flow.stage0 + pos]
            state.preds_left = 0
            for k in range(stage.pred0, stage.pred0 + stage.n_pred):
                if v.task_stages[row, v.preds[k]].status != DONE:
                    state.preds_left += 1
            if v.task_stages[row, pos].status != DONE:
                left += 1
        b.tasks[row].left = left
        b.tasks[row].service = 0.0
    _ranks(v, q, b, tool)
    for i in range(h.n_running + h.n_ready):
        row = i64(v.running[i] if i < h.n_running else v.ready[i - h.n_running])
        r = b.shown_requests[row]
        b.shown_requests[row] = v.requests[row]
        key = b.shown_tasks[r.task].key
        r.rank = q.rank[key] * depth + r.pos
        s = b.requests[row]
        s.redo = 0
        s.last_token = math.nan
        s.phase = PREFILL
        s.work = 0
        if r.status == RUNNING:
            b.running[i] = row
            c.used += r.suffix + r.generated
            b.agents[r.agent].n_running += 1
            if r.generated > 0:
                s.phase = DECODE
            else:
                s.work = max(r.suffix - r.cached, 1)
                c.n_prefill += 1
        else:
            b.ready[i - h.n_running] = row
            if r.cached > 0:
                _leaf(b, i64(r.task), i64(r.pos), i64(r.cached), depth)
    first = len(v.tasks)
    c.n_free_tasks = len(b.shown_tasks) - first
    for i in range(c.n_free_tasks):
        b.free_tasks[i] = len(b.shown_tasks) - 1 - i
    first = len(v.requests)
    c.n_free_requests = len(b.shown_requests) - first
    for i in range(c.n_free_requests):
        b.free_requests[i] = len(b.shown_requests) - 1 - i


@inner
def _leaf(b: Board, task: int, pos: int, tokens: int, depth: int) -> None:
    """Puts history that a ready request would find into memory; the oldest request's is taken to be the oldest."""
    c = b.clock[0]
    s = b.stages[task, pos]
    s.leaf = tokens
    s.used = b.head[0].time
    s.before = c.leaf_tail
    s.after = -1
    index = task * depth + pos
    if c.leaf_tail >= 0:
        b.stages[c.leaf_tail // depth, c.leaf_tail % depth].after = index
    else:
        c.leaf_head = index
    c.leaf_tail = index
    c.leaf_tokens += tokens
    c.used += tokens


@inner
def _ranks(v: View, q: Planner, b: Board, tool: float) -> None:
    """Numbers tasks in the order of their ids, so that views of one state from any source give the same plan.

    Stages that wait for a tool go on after `tool` seconds.
    """
    n = v.head[0].n_live
    ranks = np.empty(n, np.int64)
    for i in range(n):
        ranks[i] = v.tasks[v.live[i]].rank
    order = np.argsort(ranks)
    for k in range(n):
        q.rank[order[k]] = k
        row = v.live[order[k]]
        b.shown_tasks[row].rank = k
        for pos in range(v.workflows[v.tasks[row].workflow].n_stages):
            if v.task_stages[row, pos].status == TOOL:
                # All end at one time and come in order, so the list is a heap.
                e = b.events[b.clock[0].n_events]
                e.time = v.head[0].time + tool
                e.order = k * b.clock[0].depth + pos
                e.row = row
                e.pos = pos
                b.clock[0].n_events += 1
    for k in range(n, len(q.rank)):
        q.rank[k] = k


@inner
def build_scenario(v: View, rates: Any, q: Planner, x: int, seed: int, arrivals: int, tool: float) -> None:
    """Draws scenario x: lengths and numbers of calls of the present tasks, and tasks to come.

    Scenario 0 has every length at its conditional mean; of the others each pair is antithetic. Present tasks are
    numbered in the order of the view, so that the numbers drawn depend on what is seen and on nothing else.
    """
    h = v.head[0]
    now = h.time
    mirrored = x > 0 and x % 2 == 0
    stream = x - 1 if mirrored else x
    n = i64(h.n_live)
    rate = 0.0
    for f in range(len(rates)):
        rate += rates[f]
    total = n
    if rate > 0.0:
        total = n + arrivals
    time = now
    rows = i64(0)
    call = i64(0)
    most = q.calls.shape[1]
    calls = q.calls[x]
    for i in range(total):
        present = i < n
        if present:
            row = i64(v.live[i])
            q.arrival[x, i] = v.tasks[row].arrival
            q.workflow[x, i] = v.tasks[row].workflow
        else:
            row = i64(-1)
            gap = 1.0  # the mean scenario has its arrivals evenly spaced
            if x > 0:
                u = uniform(seed, stream, -1, i - n, 0)
                gap = -math.log(1.0 - u if mirrored else u)
            time += gap / rate
            q.arrival[x, i] = time
            u = uniform(seed, stream, -2, i - n, 0)
            aim = u * rate
            f = 0
            while f < len(rates) - 1 and aim >= rates[f]:
                aim -= rates[f]
                f += 1
            q.workflow[x, i] = f
        flow = v.workflows[q.workflow[x, i]]
        q.stage0[x, i] = rows
        for pos in range(flow.n_stages):
            stage = i64(flow.stage0 + pos)
            g = q.guess[stage]
            status = v.task_stages[row, pos].status if present else WAITING
            spent = v.task_stages[row, pos].service if present else 0.0
            q.first_call[x, rows] = call
            rows += 1
            u = -1.0
            if x > 0:
                u = uniform(seed, stream, i, pos, -1)
                if mirrored:
                    u = 1.0 - u
            count = 1
            if status == TOOL:
                count = 1 + sample_calls(v, q, stage, spent, 0, u)
            elif status != DONE:
                count = sample_calls(v, q, stage, spent, 1, u)
            room = most - call - (total - i) * v.task_stages.shape[1]
            count = max(min(count, room), 1)
            suffix = g.suffix
            history = i64(0)
            max_new = g.max_new
            generated = i64(0)
            request = i64(-1)
            if status in (READY, RUNNING):
                request = i64(v.task_stages[row, pos].request)
                r = v.requests[request]
                suffix = r.suffix
                max_new = r.max_new
                generated = r.generated
            for k in range(count):
                u = -1.0
                if x > 0:
                    u = uniform(seed, stream, i, pos, k)
                    if mirrored:
                        u = 1.0 - u
                data = calls[call]
                data.suffix = suffix
                data.history = history
                data.max_new = max_new
                data.output = sample_output(q, stage, generated, max_new, u)
                data.tool = tool if g.calls > SINGLE_CALL else 0.0
                if request >= 0:
                    q.outputs[x, request] = data.output
                    request = -1
                    generated = 0
                history = suffix + data.output
                suffix = history
                if suffix + max_new > h.budget // 2:
                    suffix = g.suffix
                    history = 0
                call += 1
    q.first_call[x, rows] = call
    q.n_tasks[x] = total
