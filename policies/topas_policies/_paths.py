"""Expected remaining paths of tasks, by the same estimates as TOPAS's."""

import numpy as np

from topas_env import Snapshot

__all__ = ["remaining_path_s"]


def remaining_path_s(snapshot: Snapshot) -> dict[str, float]:
    """Returns the expected remaining path, seconds, of every task by its id; NaN for one without a ready request.

    It is L of SCHEDULER.md section 3 with no hypothetical completion.
    """
    # Imported here, so that numba loads with the first decision that needs it.
    from topas_env._core.choice import default_params
    from topas_env._core.paths import remaining_paths
    from topas_env._pack import pack

    length = np.full(len(snapshot.tasks), np.nan)
    remaining_paths(pack(snapshot).v, default_params(), length)
    return {task.id: path for task, path in zip(snapshot.tasks, length.tolist(), strict=True)}
