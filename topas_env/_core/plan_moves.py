"""The states that the planner chooses between: some of the environment's list, and base policies' choices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.candidates import list_candidates, same_state, slot
from topas_env._core.choice import Candidates, Choice
from topas_env._core.codes import CODES
from topas_env._core.decide import choose
from topas_env._core.jit import i64, inner, lean
from topas_env._core.layout import View
from topas_env._core.orders import FIRST_OWN, NOBODY, order
from topas_env._core.plan_state import Planner
from topas_env._core.ref import ref

__all__ = ["follow", "keeps_idle", "list_states"]

_TOPAS = CODES["topas"]


@lean
def _take(c: Candidates) -> int:
    """Takes what was written behind the last candidate into the list unless it is there; returns where it stands."""
    k = i64(c.count[0])
    for j in range(k):
        if same_state(c, k, j):
            return j
    if k + 1 < c.info.shape[0]:
        c.count[0] = k + 1
        return k
    return -1


@lean
def keeps_idle(v: View, c: Candidates, k: int) -> bool:
    """Returns whether candidate k keeps a prefix that none of its requests uses."""
    info = c.info[k]
    for a in range(c.prefixes.shape[1]):
        if not c.prefixes[k, a]:
            continue
        used = False
        for i in range(info.n_kept + info.n_admitted):
            if v.requests[c.rows[k, i]].agent == a:
                used = True
                break
        if not used:
            return True
    return False


@inner
def follow(
    v: View,
    code: int,
    params: NDArray[Any],
    mean: NDArray[np.float64],
    path: NDArray[np.float64],
    allowed: NDArray[np.uint8],
    out: Choice,
) -> None:
    """Writes what any base policy does, one of the planner's own or a compiled one; baselines have no credits.

    Args:
        v: What may be seen.
        code: From `CODES` or from `own_code`.
        params: PARAMS (1,).
        mean: From `stage_paths`.
        path: From `stage_paths`.
        allowed: uint8 (n_agents,), 1 for every agent.
        out: Written.
    """
    if code >= FIRST_OWN:
        order(v, code, mean, path, allowed, 1 << 60, out)
    else:
        choose(v, code, params, out)
        if code < _TOPAS:
            out.credits[:] = 0.0


@inner
def list_states(
    v: View, listed: int, bases: NDArray[np.int64], params: NDArray[Any], q: Planner, own: NDArray[np.int64]
) -> None:
    """Fills the list: the state that admits nobody, `listed` of the environment's list, every base policy's choice.

    Writes into `own` where each base policy's choice stands.
    """
    c = q.cands
    c.count[0] = 0
    if listed > 0:
        list_candidates(v, params, ref(Candidates(c.count, c.info[: listed + 1], c.prefixes, c.rows, c.credits)))
    else:
        out = slot(c, 0)
        order(v, NOBODY, q.mean, q.path, q.allowed, 0, out)
        c.count[0] = 1
    q.allowed[:] = 1
    for j in range(len(bases)):
        follow(v, bases[j], params, q.mean, q.path, q.allowed, slot(c, c.count[0]))
        own[j] = _take(c)
