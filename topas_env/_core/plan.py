"""The planner: candidate states, each played forward in the simulator on what the view shows and on sampled truths."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.apply import apply
from topas_env._core.choice import Choice
from topas_env._core.decide import score_given
from topas_env._core.engine import advance
from topas_env._core.jit import inner, kernel, lean
from topas_env._core.layout import View
from topas_env._core.orders import FIRST_OWN, stage_paths
from topas_env._core.plan_build import build_scenario, build_start
from topas_env._core.plan_moves import follow, keeps_idle, list_states
from topas_env._core.plan_state import Planner
from topas_env._core.ref import ref
from topas_env._core.run import now_s
from topas_env._core.short import add_parts
from topas_env._core.trace import Trace
from topas_env._core.world import POINT, World

__all__ = ["plan", "play"]


@inner
def _world(v: View, q: Planner, x: int) -> World:
    """Returns the world of scenario x: the work board on the view's workflows and service statistics."""
    b = q.work
    return World(
        View(
            b.head, b.shown_agents, v.workflows, v.stages, v.preds, v.succs, v.topo, v.stats, v.totals, v.ordered,
            v.calls, v.call_outputs, b.shown_tasks, b.shown_stages, b.shown_requests, b.running, b.ready, b.live,
        ),
        Trace(q.arrival[x][: q.n_tasks[x]], q.workflow[x], q.rank, q.stage0[x], q.first_call[x], q.calls[x]),
        q.physics, b.clock, b.agents, b.tasks, b.stages, b.requests, b.events, b.free_tasks, b.free_requests,
        q.task_totals, q.rank, q.results, q.jct, q.itl, q.decisions, q.wall, q.log, q.samples, q.sample_tokens,
    )  # fmt: skip


@lean
def _reset(q: Planner, x: int) -> None:
    """Puts the work board back to the start, with the hidden lengths of scenario x."""
    b = q.work
    a = q.start
    h = a.head[0]
    depth = a.clock[0].depth
    b.head[0] = a.head[0]
    b.clock[0] = a.clock[0]
    for i in range(len(a.agents)):
        b.agents[i] = a.agents[i]
        b.shown_agents[i] = a.shown_agents[i]
    for i in range(h.n_live):
        row = a.live[i]
        b.live[i] = row
        b.shown_tasks[row] = a.shown_tasks[row]
        b.tasks[row] = a.tasks[row]
        for pos in range(depth):
            b.shown_stages[row, pos] = a.shown_stages[row, pos]
            b.stages[row, pos] = a.stages[row, pos]
    for i in range(h.n_running + h.n_ready):
        if i < h.n_running:
            row = a.running[i]
            b.running[i] = row
        else:
            row = a.ready[i - h.n_running]
            b.ready[i - h.n_running] = row
        b.shown_requests[row] = a.shown_requests[row]
        b.requests[row] = a.requests[row]
        r = a.shown_requests[row]
        b.requests[row].output = q.outputs[x, row]
        b.requests[row].call = q.first_call[x, q.stage0[x, a.shown_tasks[r.task].key] + r.pos]
    for i in range(a.clock[0].n_events):
        b.events[i] = a.events[i]
    for i in range(a.clock[0].n_free_tasks):
        b.free_tasks[i] = a.free_tasks[i]
    for i in range(a.clock[0].n_free_requests):
        b.free_requests[i] = a.free_requests[i]


@lean
def _left(w: World, counted: int) -> int:
    """Returns how many counted tasks are unfinished; live tasks are in the order of their keys."""
    low, high = 0, w.v.head[0].n_live
    while low < high:
        middle = (low + high) // 2
        if w.v.tasks[w.v.live[middle]].key < counted:
            low = middle + 1
        else:
            high = middle
    return low + max(counted - w.clock[0].next_arrival, 0)


@inner
def play(v: View, q: Planner, o: NDArray[Any], params: NDArray[Any], k: int, x: int, code: int, bound: float) -> float:
    """Plays candidate k in scenario x under a base policy; returns its cost, infinity once that is above `bound`.

    The cost is the time that counted tasks stay unfinished from now on, and the tail's weight. A play is given up also
    where it is far behind the best one's cost at the same number of finished tasks.
    """
    w = ref(_world(v, q, x))
    _reset(q, x)
    now = q.start.head[0].time
    counted = min(q.start.head[0].n_live + o[0].counted, q.n_tasks[x])
    stop = now + o[0].horizon
    c = w.clock[0]
    w.jct[:counted] = math.nan
    cands = q.cands
    apply(w, Choice(cands.info[k : k + 1], cands.prefixes[k], cands.rows[k], cands.credits[k]))
    spent = 0.0
    last = now
    present = q.start.head[0].n_live
    done = 0
    q.pace[1, 0] = 0.0
    hopeful = o[0].tail == 0.0
    slack = o[0].lose * bound
    while True:
        state = advance(w)
        left = _left(w, present)
        spent += (present - done) * (c.time - last)
        if present - left > done:  # tasks end between points; close enough for a comparison
            for m in range(done + 1, present - left + 1):
                q.pace[1, m] = spent
            done = present - left
            if hopeful and 3 * done > present and spent - q.pace[0, done] > slack:
                return math.inf
        last = c.time
        if state != POINT or _left(w, counted) == 0 or c.time >= stop:
            break
        if hopeful and spent > bound:
            return math.inf
        follow(w.v, code, params, q.mean, q.path, q.allowed, q.choice)
        apply(w, q.choice)
    cost = 0.0
    scale = q.start.head[0].age_scale
    for i in range(counted):
        begin = q.arrival[x, i]
        jct = w.jct[i]
        if math.isnan(jct):
            jct = max(min(c.time, stop) - begin, 0.0)
        cost += jct - max(now - begin, 0.0) + o[0].tail * jct * jct / scale
    return cost


@lean
def _lead(q: Planner) -> None:
    """The play that just ended is the best so far: others are compared with its pace."""
    for m in range(q.pace.shape[1]):
        q.pace[0, m] = q.pace[1, m]


@inner
def _finals(
    v: View,
    rates: NDArray[np.float64],
    o: NDArray[Any],
    bases: NDArray[np.int64],
    params: NDArray[Any],
    q: Planner,
    home: int,
    home_base: int,
    seed: int,
    stop: float,
) -> int:
    """Plays the cheapest pairs of candidate and base policy, and the best base policy's own choice, in more scenarios.

    Half of them are dropped after each second scenario. Returns the index of the best candidate.
    """
    report = q.report[0]
    option = o[0]
    buffer = np.zeros(2, np.int64)
    n = q.cands.count[0]
    most = max(option.finalists, 2)
    pairs = np.empty((most, 2), np.int64)
    sums = np.empty(most)
    pairs[0, 0] = home
    pairs[0, 1] = home_base
    sums[0] = q.cost[home, home_base, 0] * (1.0 - option.margin)
    q.cost[home, home_base, 0] = math.inf
    count = 1
    while count < most:
        low = math.inf
        for k in range(n):
            for j in range(len(bases)):
                if q.cost[k, j, 0] < low:
                    low = q.cost[k, j, 0]
                    pairs[count, 0] = k
                    pairs[count, 1] = j
        if low == math.inf:
            break
        sums[count] = low
        q.cost[pairs[count, 0], pairs[count, 1], 0] = math.inf
        count += 1
    best = home
    x = 1
    while count > 1 and x < option.scenarios and report.plays + count <= option.rollouts:
        build_scenario(v, rates, q, x, seed, option.arrivals, option.tool)
        for i in range(count):
            if option.budget < math.inf and now_s(buffer) >= stop:
                return int(best)
            cost = play(v, q, o, params, pairs[i, 0], x, bases[pairs[i, 1]], math.inf)
            if pairs[i, 0] == home and pairs[i, 1] == home_base:
                cost *= 1.0 - option.margin
            sums[i] += cost
            report.plays += 1
        x += 1
        for i in range(1, count):  # in the order of their sums; of equals the earlier stays first
            for m in range(i, 0, -1):
                if sums[m] >= sums[m - 1] * (1.0 - 1e-9):
                    break
                sums[m], sums[m - 1] = sums[m - 1], sums[m]
                for d in range(2):
                    pairs[m, d], pairs[m - 1, d] = pairs[m - 1, d], pairs[m, d]
        best = pairs[0, 0]
        report.base = bases[pairs[0, 1]]
        report.cost = sums[0] / x
        count = max(count // 2, 2) if x % 2 == 1 else count
    return int(best)


@inner
def _race(
    v: View, rates: NDArray[np.float64], o: NDArray[Any], bases: NDArray[np.int64], params: NDArray[Any], q: Planner
) -> int:
    """Spends the plays and returns the index of the best candidate.

    First each base policy's own choice under that policy; then the other candidates in the list's order under the base
    policies, the best so far first; a play stops once it cannot come near the best. Then the best few go on in
    further scenarios.
    """
    report = q.report[0]
    option = o[0]
    buffer = np.zeros(2, np.int64)
    stop = now_s(buffer) + option.budget if option.budget < math.inf else math.inf
    seed = option.seed * 1000003 + option.counter
    n_b = len(bases)
    own = np.zeros(n_b, np.int64)
    list_states(v, option.listed, bases, params, q, own)
    report.candidates = q.cands.count[0]
    if q.cands.count[0] == 1:
        return 0
    build_start(v, q, 1 - option.physics, option.tool)
    build_scenario(v, rates, q, 0, seed, option.arrivals, option.tool)
    q.cost[:] = math.inf
    rank = np.empty(n_b)
    top = math.inf
    best = 0
    leader = 0
    for j in range(n_b):
        rank[j] = math.inf
        if j == 0 or (report.plays < option.rollouts and now_s(buffer) < stop):
            x = play(v, q, o, params, own[j], 0, bases[j], top * (1.0 + option.lose))
            report.plays += 1
            q.cost[own[j], j, 0] = x
            rank[j] = x
            if x < top * (1.0 - 1e-9):
                top = x
                best = own[j]
                leader = j
                _lead(q)
    report.first = top
    home = best
    home_base = leader
    parts = bases[leader] if bases[leader] >= FIRST_OWN else option.parts
    add_parts(v, parts, q.mean, q.path, q.allowed, q.cands, q.cands.info.shape[0] - 1)
    n = q.cands.count[0]
    report.candidates = n
    order_of = np.argsort(rank)
    half = option.rollouts
    if option.scenarios > 1:
        half = min(half, max(n_b, half - 2 * option.finalists))
    for i in range(min(n_b, option.second)):
        j = home_base if i == 0 else order_of[i]
        if i > 0 and j == home_base:
            j = order_of[0]
        for k in range(n):
            if report.plays >= half or (option.budget < math.inf and now_s(buffer) >= stop):
                break
            if q.cost[k, j, 0] < math.inf:
                continue
            info = q.cands.info[k]
            if info.n_preempted > 0 and (option.preempt == 0 or (option.preempt == 1 and info.origin == 0)):
                continue
            if not option.idle and keeps_idle(v, q.cands, k):
                continue
            x = play(v, q, o, params, k, 0, bases[j], top * (1.0 + option.lose))
            report.plays += 1
            q.cost[k, j, 0] = x
            if x < top * (1.0 - 1e-9) and x < report.first * (1.0 - option.margin):
                top = x
                best = k
                leader = j
                _lead(q)
    report.cost = top
    report.base = bases[leader]
    if option.scenarios < 2:
        return int(best)
    return _finals(v, rates, o, bases, params, q, home, home_base, seed, stop)


@lean
def _blind(v: View, least: int) -> bool:
    """Returns whether most ready requests are of stages without a profile that fewer than `least` tasks finished."""
    unknown = 0
    for i in range(v.head[0].n_ready):
        s = v.requests[v.ready[i]].stage
        if math.isnan(v.stages[s].profile) and v.stats[s].n_totals < least:
            unknown += 1
    return 2 * unknown > v.head[0].n_ready


@kernel
def plan(
    v: View,
    rates: NDArray[np.float64],
    o: NDArray[Any],
    bases: NDArray[np.int64],
    params: NDArray[Any],
    q: Planner,
    out: Choice,
) -> None:
    """Writes the planner's decision.

    Args:
        v: What may be seen.
        rates: float64 (n_workflows,), observed arrivals a second, zeros where nothing is known.
        o: PLAN (1,).
        bases: int64 (n,), codes of the base policies, most promising first.
        params: PARAMS (1,) of candidates and base policies.
        q: Room, large enough.
        out: The decision.
    """
    report = q.report[0]
    report.candidates = 1
    report.plays = 0
    report.base = bases[0]
    report.cost = 0.0
    report.first = 0.0
    view, planner = ref(v), ref(q)
    stage_paths(view, q.mean, q.path)
    report.chosen = 0
    if _blind(view, o[0].least):
        report.base = o[0].fallback
        follow(view, o[0].fallback, params, planner.mean, planner.path, planner.allowed, out)
    else:
        best = _race(view, rates, o, bases, params, planner)
        report.chosen = best
        info = q.cands.info[best]
        out.info[0] = q.cands.info[best]
        for a in range(len(out.prefixes)):
            out.prefixes[a] = q.cands.prefixes[best, a]
        for i in range(info.n_kept + info.n_admitted):
            out.rows[i] = q.cands.rows[best, i]
            out.credits[i] = 0.0
    if out.info[0].n_admitted > 0:
        score_given(view, params, out)
