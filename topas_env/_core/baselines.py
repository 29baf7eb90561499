"""The baselines: an order of the queue each, and SGLang's head-of-line rule (policies/topas_policies/_baselines.py)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice
from topas_env._core.codes import CODES, LPM_QUEUE_LIMIT
from topas_env._core.estimates import Estimates, estimate, reserved
from topas_env._core.jit import inner, lean
from topas_env._core.layout import View
from topas_env._core.marginals import GROUP, READY_INFO, new_paths

__all__ = ["baseline", "baseline_from", "keep_running", "match"]

_LPM, _PARROT, _LAS, _SPF, _SRPT, _GATED = (
    CODES[name] for name in ("lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm")
)


@lean
def match(v: View, row: int) -> float:
    """Returns how many tokens of the request's prompt lie in the KV cache."""
    r = v.requests[row]
    agent = v.agents[r.agent]
    return float(r.cached + (agent.prefix if agent.resident or agent.cached else 0))


@lean
def _keys(v: View, code: int, gate: int, e: Estimates, first: NDArray[np.float64], second: NDArray[np.float64]) -> None:
    """Writes the sort keys of the ready requests; ties of both go by ready time and id."""
    n = v.head[0].n_ready
    last_stages = 0
    for i in range(n):
        row = v.ready[i]
        r = v.requests[row]
        first[i] = 0.0
        second[i] = 0.0
        if code == _PARROT:
            second[i] = v.tasks[r.task].arrival
        elif code == _LAS:
            w = v.workflows[v.tasks[r.task].workflow]
            for j in range(w.n_stages):
                second[i] += v.task_stages[r.task, j].service
        elif code == _SPF:
            second[i] = -v.stages[r.stage].depth
        elif code == _SRPT:
            second[i] = e.groups[e.ready[i].group].path
        elif code in (_LPM, _GATED):
            if n <= LPM_QUEUE_LIMIT:
                second[i] = -match(v, row)
            if code == _GATED and v.stages[r.stage].n_succ == 0:
                first[i] = -1.0
                last_stages += 1
    if code == _GATED and last_stages < gate:
        for i in range(n):
            first[i] = 0.0


@lean
def keep_running(v: View, out: Choice) -> int:
    """Writes the state in which the running requests go on and none is admitted; returns the tokens that are left."""
    h = v.head[0]
    info = out.info[0]
    for a in range(out.prefixes.shape[0]):
        out.prefixes[a] = 0
    room = h.budget
    for k in range(h.n_running):
        row = v.running[k]
        agent = v.requests[row].agent
        if not out.prefixes[agent]:
            out.prefixes[agent] = 1
            room -= v.agents[agent].prefix
        room -= reserved(v.head[0], v.requests[row])
        out.rows[k] = row
        out.credits[k] = 0.0
    info.n_kept = h.n_running
    info.n_preempted = 0
    info.n_scored = 1
    info.origin = 0
    info.n_admitted = 0
    return int(room)


@inner
def baseline_from(v: View, code: int, gate: int, e: Estimates, out: Choice) -> None:
    """Writes what baseline `code` does; only srpt looks at the estimates."""
    h = v.head[0]
    n = h.n_ready
    info = out.info[0]
    room = keep_running(v, out)
    total = info.n_kept
    first = np.empty(n)
    second = np.empty(n)
    _keys(v, code, gate, e, first, second)
    done = np.zeros(n, np.uint8)
    while total < h.max_running:
        # The head of the queue: few are admitted at a time, so a scan costs less than a sort.
        head = -1
        for i in range(n):
            if done[i]:
                continue
            if head < 0:
                head = i
            elif first[i] != first[head]:
                if first[i] < first[head]:
                    head = i
            elif second[i] != second[head]:
                if second[i] < second[head]:
                    head = i
            else:
                mine = v.requests[v.ready[i]]
                his = v.requests[v.ready[head]]
                if mine.ready < his.ready or (mine.ready == his.ready and mine.rank < his.rank):
                    head = i
        if head < 0:
            break
        row = v.ready[head]
        agent = v.requests[row].agent
        need = reserved(v.head[0], v.requests[row]) + (0 if out.prefixes[agent] else v.agents[agent].prefix)
        if need > room:
            break
        room -= need
        out.prefixes[agent] = 1
        out.rows[total] = row
        out.credits[total] = 0.0
        done[head] = 1
        total += 1
    info.n_admitted = total - info.n_kept


@inner
def baseline(v: View, code: int, params: NDArray[Any], out: Choice) -> None:
    """Writes what the baseline of a code decides, without its score."""
    if code == _SRPT:
        baseline_from(v, code, params[0].gate, estimate(v, params), out)
    else:
        e = Estimates(np.empty(0, READY_INFO), np.empty(0, GROUP), new_paths(0, 0, 0, 0))
        baseline_from(v, code, params[0].gate, e, out)
