"""What given candidates cost by the planner's plays: all of them, in every scenario, for the teacher of `learned`."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Candidates
from topas_env._core.jit import kernel
from topas_env._core.layout import View
from topas_env._core.orders import stage_paths
from topas_env._core.plan import play
from topas_env._core.plan_build import build_scenario, build_start
from topas_env._core.plan_state import Planner
from topas_env._core.ref import ref

__all__ = ["plan_costs"]


@kernel
def plan_costs(
    v: View,
    rates: NDArray[np.float64],
    o: NDArray[Any],
    bases: NDArray[np.int64],
    params: NDArray[Any],
    q: Planner,
    c: Candidates,
    some: NDArray[np.int64],
    costs: NDArray[np.float64],
) -> None:
    """Plays candidates on under every base policy in every scenario, none of them given up.

    Args:
        v: What may be seen.
        rates: float64 (n_workflows,), observed arrivals a second, zeros where nothing is known.
        o: PLAN (1,).
        bases: int64 (b,), codes of the base policies.
        params: PARAMS (1,) of the base policies.
        q: Room, large enough for the candidates `some`.
        c: Candidates.
        some: int64 (n,), those that are played.
        costs: float64 (n, b, scenarios), written, seconds.
    """
    view, planner = ref(v), ref(q)
    stage_paths(view, q.mean, q.path)
    q.allowed[:] = 1
    for k in range(len(some)):
        i = some[k]
        q.cands.info[k] = c.info[i]
        for a in range(c.prefixes.shape[1]):
            q.cands.prefixes[k, a] = c.prefixes[i, a]
        for m in range(c.info[i].n_kept + c.info[i].n_admitted):
            q.cands.rows[k, m] = c.rows[i, m]
            q.cands.credits[k, m] = 0.0
    q.cands.count[0] = len(some)
    seed = o[0].seed * 1000003 + o[0].counter
    build_start(view, planner, 1 - o[0].physics, o[0].tool)
    q.pace[:] = 0.0
    for x in range(o[0].scenarios):
        build_scenario(view, rates, planner, x, seed, o[0].arrivals, o[0].tool)
        for k in range(len(some)):
            for j in range(len(bases)):
                costs[k, j, x] = play(view, planner, o, params, k, x, bases[j], math.inf)
