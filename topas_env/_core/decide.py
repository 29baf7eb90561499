"""Any compiled policy by its code, and the score of any given state."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.baselines import baseline
from topas_env._core.choice import Choice
from topas_env._core.codes import CODES
from topas_env._core.estimates import estimate
from topas_env._core.jit import inner, kernel, lean
from topas_env._core.layout import View
from topas_env._core.marginals import complete
from topas_env._core.orders import hold_order
from topas_env._core.problem import Problem, reuse_counts, state_problem
from topas_env._core.ref import ref
from topas_env._core.search import topas

__all__ = ["choose", "decide", "score", "score_given", "score_state"]

_HOLD, _TOPAS = CODES["hold-many"], CODES["topas"]  # baselines are below, then the two hold policies


@inner
def choose(v: View, code: int, params: NDArray[Any], out: Choice) -> None:
    """Writes the decision of the compiled policy `code`; all but TOPAS leave the terms as they are."""
    if code < _HOLD:
        baseline(v, code, params, out)
    elif code < _TOPAS:
        hold_order(v, code, out)
    else:
        topas(v, params, out)


@kernel
def decide(v: View, code: int, params: NDArray[Any], out: Choice) -> None:
    """As `choose`, for callers in Python."""
    choose(ref(v), code, params, out)


@lean
def score_state(v: View, p: Problem, beta: float, counts: NDArray[np.int64], out: Choice) -> None:
    """Fills terms and credits of the state that `out` names, whose prefixes may be idle (SCHEDULER.md section 4)."""
    h = v.head[0]
    info = out.info[0]
    incoming = 0
    outgoing = 0
    info.reuse = 0.0
    for a in range(v.agents.shape[0]):
        x = v.agents[a]
        if out.prefixes[a]:
            info.reuse += beta * counts[a] * h.load_token * x.prefix
            if not x.resident and not x.cached:
                incoming += x.prefix
        elif x.resident:
            outgoing += x.prefix
    info.redo = 0.0
    info.revoke = 0.0
    at = 0
    for k in range(h.n_running):
        row = v.running[k]
        if at < info.n_kept and out.rows[at] == row:
            at += 1
        else:
            r = v.requests[row]
            info.redo += h.rebuild_token * r.generated
            info.revoke += r.credit
    p.limits[0].turn += 1
    turn = p.limits[0].turn
    n_waits = 0
    info.admit = 0.0
    for k in range(info.n_kept, info.n_kept + info.n_admitted):
        i = p.position[out.rows[k]]
        r = p.ready[i]
        group = p.groups[r.group]
        agent = v.agents[v.requests[out.rows[k]].agent]
        out.credits[k] = r.weight * (r.now_marginal if group.pass_of_done == turn else r.marginal)
        info.admit += out.credits[k]
        if not agent.resident and not agent.cached and group.waits != turn:
            group.waits = turn
            n_waits += 1
        complete(ref(p.paths), p.ready, p.groups, i, turn)
    info.move = (h.offload_token * outgoing + h.load_token * incoming) * n_waits
    info.total = info.admit - info.move - info.redo - info.revoke + info.reuse


@inner
def score_given(v: View, params: NDArray[Any], out: Choice) -> None:
    """Fills terms and credits of the state that `out` names by its prefixes, rows and counts.

    The admitted rows must be ready ones, once each, in order of admission.
    """
    counts = reuse_counts(v)
    score_state(v, state_problem(v, params, estimate(v, params), counts), params[0].beta, counts, out)


@kernel
def score(v: View, params: NDArray[Any], out: Choice) -> None:
    """As `score_given`, for callers in Python."""
    score_given(ref(v), params, out)
