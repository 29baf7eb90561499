"""A whole run of a world under any base policy of the planner, its own ones included."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.apply import apply
from topas_env._core.choice import Choice
from topas_env._core.engine import advance
from topas_env._core.jit import kernel
from topas_env._core.orders import stage_paths
from topas_env._core.plan_moves import follow
from topas_env._core.ref import ref
from topas_env._core.world import POINT, World

__all__ = ["run_base"]


@kernel
def run_base(w: World, code: int, params: NDArray[Any], choice: Choice) -> int:
    """Runs a base policy to the end.

    Returns:
        What `advance` returns.
    """
    mean = np.empty(len(w.v.stages))
    path = np.empty(len(w.v.stages))
    allowed = np.ones(len(w.v.agents), np.uint8)
    here = ref(w)
    stage_paths(here.v, mean, path)  # once: they change slowly, and only the order hangs on them
    while True:
        state = advance(here)
        if state != POINT:
            return int(state)
        follow(here.v, code, params, mean, path, allowed, choice)
        apply(here, choice)
