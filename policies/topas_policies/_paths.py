"""Expected remaining paths of tasks, by the same estimates as TOPAS's."""

from topas_env import Snapshot

__all__ = ["remaining_paths"]


def remaining_paths(snapshot: Snapshot) -> dict[str, float]:
    """Returns the expected remaining path of every task with a ready request, seconds, by the task's id.

    It is L of SCHEDULER.md section 3 with no hypothetical completion.
    """
    # Imported here, so that numba loads with the first decision that needs it.
    from topas_env._core.choice import default_params
    from topas_env._core.estimates import estimate
    from topas_env._pack import pack

    view = pack(snapshot).v
    groups = estimate(view, default_params()).groups
    keys = view.tasks["key"][groups["task"]]
    return {snapshot.tasks[key].id: float(path) for key, path in zip(keys, groups["path"], strict=True)}
