"""Expected remaining paths of tasks, for callers outside the kernels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.estimates import estimate
from topas_env._core.jit import kernel
from topas_env._core.layout import View
from topas_env._core.ref import ref

__all__ = ["remaining_paths"]


@kernel
def remaining_paths(v: View, params: NDArray[Any], out: NDArray[np.float64]) -> None:
    """Writes L with no hypothetical completion, seconds, of each row of `View.tasks` that has a ready request."""
    groups = estimate(ref(v), params).groups
    for g in range(groups.shape[0]):
        out[groups[g].task] = groups[g].path
