"""The workloads that ship: the paper's five, by name."""

from collections.abc import Callable
from functools import cache

from topas_env.workloads._metagpt import metagpt_sop, metagpt_tl
from topas_env.workloads._plan import StagePlan, WorkloadPlan, poisson_arrivals
from topas_env.workloads._synthetic import chain_3, dag_4, dag_10_wide

__all__ = ["StagePlan", "WorkloadPlan", "plan", "plan_names", "poisson_arrivals"]

_PLANS: dict[str, Callable[[], WorkloadPlan]] = {
    "chain-3": chain_3,
    "dag-4": dag_4,
    "dag-10-wide": dag_10_wide,
    "metagpt-sop": metagpt_sop,
    "metagpt-tl": metagpt_tl,
}


def plan_names() -> tuple[str, ...]:
    """Returns the names of the shipped workloads, in the order of the paper."""
    return tuple(_PLANS)


@cache
def plan(name: str) -> WorkloadPlan:
    """Returns a shipped workload by name. Raises KeyError for an unknown one."""
    return _PLANS[name]()
