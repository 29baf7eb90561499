"""A decision given as bits over fixed rows of agents and requests (`action_mode="state"`), and features of these rows.

Rows of agents are in the order of `View.agents`. Rows of requests: running ones in snapshot order, then ready ones by
task arrival and id. Bits of rows that hold nothing are ignored; what has no row (more agents or requests than rows)
stays as it is.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice
from topas_env._core.estimates import call_estimate, estimate, reserved
from topas_env._core.jit import inner
from topas_env._core.layout import RUNNING, View
from topas_env._core.problem import reuse_counts

__all__ = [
    "AGENT_ROW_FEATURES",
    "REQUEST_ROW_FEATURES",
    "ROW_LIMIT",
    "VIOLATIONS",
    "choice_from_bits",
    "request_rows",
    "row_features",
]

# What `choice_from_bits` returns: an index into this list.
VIOLATIONS = (
    "",
    "the agent of every request is in prefixes",
    "requests that run <= max_running_requests",
    "prefix tokens + reserved tokens <= kv_budget_tokens",
)
_NO_PREFIX, _SLOTS, _BUDGET = 1, 2, 3

ROW_LIMIT = 4.0  # no feature of a row is above it, and none is negative

AGENT_ROW_FEATURES = (
    "exists",
    "prefix_share",  # of the KV budget
    "resident",
    "cached",
    "load_s",  # time to load the prefix; log1p, as are all times below
    "running",  # requests; log1p
    "running_share",  # what they reserve, of the budget
    "ready",  # requests; log1p
    "cheapest_share",  # least reserve of a ready request, of the budget
    "coming",  # waiting stages whose only unfinished predecessor runs; log1p
)

REQUEST_ROW_FEATURES = (
    "exists",
    "running",
    "agent",  # (row of its agent + 1) / agents
    "reserved_share",  # d_r, of the KV budget
    "suffix_share",
    "cached_share",
    "generated_share",
    "waited_s",  # since it became ready
    "ran_s",  # since its admission
    "task_age_s",
    "estimate_s",  # D_r
    "progress_s",  # marginal progress of its task's longest path; 0 while it runs
    "credit_s",
    "depth",  # of its stage, log1p
)


@inner
def request_rows(v: View, order: NDArray[np.int64]) -> int:
    """Fills `order` with the requests of the rows and returns how many requests have no row."""
    h = v.head[0]
    n = h.n_running + h.n_ready
    full = np.empty(n, np.int64)
    full[: h.n_running] = v.running[: h.n_running]
    for i in range(h.n_ready):
        row = v.ready[i]
        r = v.requests[row]
        arrival = v.tasks[r.task].arrival
        j = h.n_running + i
        while j > h.n_running:
            q = v.requests[full[j - 1]]
            other = v.tasks[q.task].arrival
            if other < arrival or (other == arrival and q.rank < r.rank):
                break
            full[j] = full[j - 1]
            j -= 1
        full[j] = row
    fit = min(n, order.shape[0])
    order[:fit] = full[:fit]
    order[fit:] = -1
    return int(n - fit)


@inner
def choice_from_bits(
    v: View,
    order: NDArray[np.int64],
    prefix_bits: NDArray[np.int8],
    request_bits: NDArray[np.int8],
    choice: Choice,
    sides: NDArray[np.int64],
) -> int:
    """Turns bits into a choice.

    Args:
        v: What the scheduler sees.
        order: From `request_rows`.
        prefix_bits: int8 (rows of agents,).
        request_bits: int8 (rows of requests,).
        choice: Filled, its score left out.
        sides: Both sides of the violated constraint; for the first one the request's row and its agent.

    Returns:
        0 if the decision is feasible, else an index into `VIOLATIONS`.
    """
    h = v.head[0]
    n_agents = v.agents.shape[0]
    used = 0
    grows = False  # becomes resident what was not
    for a in range(n_agents):
        inside = prefix_bits[a] != 0 if a < prefix_bits.shape[0] else v.agents[a].resident != 0
        choice.prefixes[a] = 1 if inside else 0
        if inside:
            used += v.agents[a].prefix
            grows |= v.agents[a].resident == 0
    wanted = np.zeros(v.requests.shape[0], np.uint8)
    for k in range(h.n_running):
        wanted[v.running[k]] = 1
    rows = 0
    for i in range(order.shape[0]):
        if order[i] >= 0:
            wanted[order[i]] = 1 if request_bits[i] != 0 else 0
            rows += 1
    kept = 0
    for k in range(h.n_running):
        if wanted[v.running[k]]:
            choice.rows[kept] = v.running[k]
            kept += 1
    total = kept
    for i in range(rows):
        if request_bits[i] != 0 and v.requests[order[i]].status != RUNNING:
            choice.rows[total] = order[i]
            total += 1
    info = choice.info[0]
    info.n_kept = kept
    info.n_admitted = total - kept
    info.n_preempted = h.n_running - kept
    for i in range(total):
        row = choice.rows[i]
        choice.credits[i] = 0.0
        used += reserved(v.head[0], v.requests[row])
        if choice.prefixes[v.requests[row].agent] == 0:
            sides[0] = row
            sides[1] = v.requests[row].agent
            return _NO_PREFIX
    if total == h.n_running and kept == total and not grows:
        return 0
    if total > h.max_running:
        sides[0] = total
        sides[1] = h.max_running
        return _SLOTS
    if used > h.budget:
        sides[0] = used
        sides[1] = h.budget
        return _BUDGET
    return 0


@inner
def _share(tokens: float, budget: float) -> float:
    return float(min(tokens / budget, ROW_LIMIT))


@inner
def _log(x: float) -> float:
    return float(min(math.log1p(max(x, 0.0)) / 4.0, ROW_LIMIT))


@inner
def row_features(
    v: View, params: NDArray[Any], order: NDArray[np.int64], agents: NDArray[np.float32], requests: NDArray[np.float32]
) -> None:
    """Fills float32 (rows of agents, features) and (rows of requests, features); rows that hold nothing are 0."""
    h = v.head[0]
    agents[:] = 0.0
    requests[:] = 0.0
    n_agents = min(v.agents.shape[0], agents.shape[0])
    counts = reuse_counts(v)
    for a in range(n_agents):
        out = agents[a]
        agent = v.agents[a]
        out[0] = 1.0
        out[1] = _share(agent.prefix, h.budget)
        out[2] = agent.resident
        out[3] = agent.cached
        out[4] = _log(h.load_token * agent.prefix)
        out[9] = _log(counts[a])
    for k in range(h.n_running):
        a = v.requests[v.running[k]].agent
        if a < n_agents:
            agents[a, 5] += 1.0
            agents[a, 6] += reserved(v.head[0], v.requests[v.running[k]]) / h.budget
    for i in range(h.n_ready):
        a = v.requests[v.ready[i]].agent
        if a < n_agents:
            share = _share(reserved(v.head[0], v.requests[v.ready[i]]), h.budget)
            if agents[a, 7] == 0.0 or share < agents[a, 8]:
                agents[a, 8] = share
            agents[a, 7] += 1.0
    for a in range(n_agents):
        agents[a, 5] = _log(agents[a, 5])
        agents[a, 6] = min(agents[a, 6], ROW_LIMIT)
        agents[a, 7] = _log(agents[a, 7])
    e = estimate(v, params)
    progress = np.zeros(v.requests.shape[0])
    for i in range(h.n_ready):
        progress[v.ready[i]] = e.ready[i].marginal
    for i in range(order.shape[0]):
        row = order[i]
        if row < 0:
            continue
        r = v.requests[row]
        out = requests[i]
        out[0] = 1.0
        out[1] = 1.0 if r.status == RUNNING else 0.0
        out[2] = (r.agent + 1.0) / v.agents.shape[0]
        out[3] = _share(reserved(v.head[0], v.requests[row]), h.budget)
        out[4] = _share(r.suffix, h.budget)
        out[5] = _share(r.cached, h.budget)
        out[6] = _share(r.generated, h.budget)
        out[7] = _log(h.time - r.ready)
        out[8] = _log(h.time - r.admitted) if r.status == RUNNING else 0.0
        out[9] = _log(h.time - v.tasks[r.task].arrival)
        out[10] = _log(call_estimate(v.head[0], v.stats, v.requests[row]))
        out[11] = _log(progress[row])
        out[12] = _log(r.credit)
        out[13] = _log(v.stages[r.stage].depth)
