"""The paper's three synthetic workloads (section V-A): chain-3, dag-4 and dag-10-wide.

The paper prints their names, their shapes in words, fixed query and generation lengths, and the rate 0.15 task/s of
chain-3 (figure 1). The rest is chosen here, for the pool of 18,560 tokens of the default profile:

* Prefixes of 6,000 to 7,000 tokens, 0.32 to 0.38 of the pool. With one resident about 12,000 tokens are left to
  requests, with two about 5,600: co-residency of two prefixes roughly halves the batch, as in table I. Three do
  not fit.
* A query of about 500 tokens and an output of 315 to 370, for which the client asks 420. A request holds about 800
  tokens, a batch under one prefix about 15 of them, under two about 7.
* Rates: 0.15 is the paper's; 0.10 and 0.04 give about the same number of requests per second (0.45, 0.40, 0.40), so
  that only topology and number of prefixes differ. `utilisation` is then 0.75, 0.75 and 0.72 on the default profile.
* "Increasing numbers of prefix namespaces and concurrently ready agents": 3, 4 and 10 agents, every stage its own; 1, 2
  and 8 of one task ready together.
* dag-10-wide is one source, eight parallel branches and one join: ten stages, the widest shape that is still connected
  at both ends. Its branches differ a little in length, so that there is one longest branch and not an eightfold tie.
"""

from topas_env._workflow import Agent, Stage, Workflow
from topas_env.workloads._plan import StagePlan, WorkloadPlan

__all__ = ["chain_3", "dag_4", "dag_10_wide"]

_MAX_NEW = 420


def chain_3() -> WorkloadPlan:
    """Returns chain-3: A, then B, then C, of equal cost (the paper calls it the equal-cost chain)."""
    agents = (Agent("A", 6400), Agent("B", 6400), Agent("C", 6400))
    stages = (Stage("a", "A", ()), Stage("b", "B", ("a",)), Stage("c", "C", ("b",)))
    plan = StagePlan(query=480, output=320, max_new=_MAX_NEW)
    about = "chain of three agents of equal cost, fixed lengths"
    return WorkloadPlan("chain-3", about, Workflow("chain-3", agents, stages), (plan, plan, plan), 0.15)


def dag_4() -> WorkloadPlan:
    """Returns dag-4: plan, then code and test side by side, then review, which joins them."""
    agents = (Agent("Planner", 6200), Agent("Coder", 7000), Agent("Tester", 6000), Agent("Reviewer", 6600))
    stages = (
        Stage("plan", "Planner", ()),
        Stage("code", "Coder", ("plan",)),
        Stage("test", "Tester", ("plan",)),
        Stage("review", "Reviewer", ("code", "test")),
    )
    plans = (
        StagePlan(query=460, output=330, max_new=_MAX_NEW),
        StagePlan(query=500, output=370, max_new=_MAX_NEW),
        StagePlan(query=480, output=340, max_new=_MAX_NEW),
        StagePlan(query=540, output=330, max_new=_MAX_NEW),
    )
    about = "fork and join: plan, two branches, review"
    return WorkloadPlan("dag-4", about, Workflow("dag-4", agents, stages), plans, 0.10)


def dag_10_wide() -> WorkloadPlan:
    """Returns dag-10-wide: a source, eight parallel branches with an agent each, and a join."""
    branches = [f"branch-{k}" for k in range(1, 9)]
    prefixes = (6000, 6100, 6200, 6300, 6400, 6500, 6600, 6700)
    agents = (
        Agent("Source", 6200),
        *(Agent(f"Branch-{k}", p) for k, p in enumerate(prefixes, 1)),
        Agent("Join", 6500),
    )
    stages = (
        Stage("source", "Source", ()),
        *(Stage(b, b.capitalize(), ("source",)) for b in branches),
        Stage("join", "Join", tuple(branches)),
    )
    plans = (
        StagePlan(query=460, output=330, max_new=_MAX_NEW),
        *(StagePlan(query=480, output=315 + 6 * k, max_new=_MAX_NEW) for k in range(8)),
        StagePlan(query=620, output=330, max_new=_MAX_NEW),
    )
    about = "a source, eight parallel branches, a join: ten agents"
    return WorkloadPlan("dag-10-wide", about, Workflow("dag-10-wide", agents, stages), plans, 0.04)
