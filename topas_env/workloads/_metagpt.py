"""The paper's two MetaGPT workloads (section V-A): metagpt-sop and metagpt-tl.

Known: the tokens of the roles' static prompts (PEERS.md), 26,627 prompt and 6,218 completion tokens and 4.71 files per
project (MetaGPT's own paper), the rates 0.15 and 0.0175 task/s, five roles in a pipeline, nine stages that alternate a
TeamLeader with four specialists. Chosen here:

* Both: queries, outputs, tool answers and waits are lognormal; the number of calls of a stage is 1 + geometric, cut at
  a limit, and a stage makes no call whose prompt would outgrow `context`, so that every request fits into the default
  pool. `max_new` is a fixed limit of the role, two and a half to three times its median output.
* metagpt-sop: the prompts restructured with the instructions in front (as published, only 41 to 63 tokens could be
  shared). A project of the published size (the plans below times 4.5: about 6,200 completion and 24,000 prompt tokens)
  at 0.15 task/s would ask for 13 times what such an engine has, so the projects here are small, about 1,390 completion
  and 9,900 prompt tokens, and utilisation is about 0.70. Engineer and QA engineer make several calls: the first writes
  about two files of the published 4.71, the second runs its tests and looks again.
* metagpt-tl: about 5,300 completion tokens, near the published project, ask for about 0.7 of the engine at 0.0175
  task/s. Prompts sum to about 75,000 tokens with the long static prefixes, 13,000 without. The order of stages is
  TeamLeader, ProductManager, TeamLeader, Architect, TeamLeader, ProjectManager, TeamLeader, Engineer2, TeamLeader. The
  whole static prompt is reusable, that is, without the timestamp that RoleZero puts near its start.
"""

from topas_env._workflow import Agent, Stage, Workflow
from topas_env.workloads._plan import StagePlan, WorkloadPlan

__all__ = ["metagpt_sop", "metagpt_tl"]


def _chain(name: str, steps: tuple[tuple[str, str], ...], prefixes: dict[str, int]) -> Workflow:
    """Returns a chain of (stage, agent) over agents with the given prefix tokens."""
    agents = tuple(Agent(agent, tokens) for agent, tokens in prefixes.items())
    names = [stage for stage, _ in steps]
    stages = tuple(Stage(stage, agent, (names[k - 1],) if k else ()) for k, (stage, agent) in enumerate(steps))
    return Workflow(name, agents, stages)


def metagpt_sop() -> WorkloadPlan:
    """Returns metagpt-sop: five roles, one after the other, of variable length, the last two with several calls."""
    prefixes = {"ProductManager": 1070, "Architect": 520, "ProjectManager": 590, "Engineer": 1250, "QaEngineer": 930}
    steps = (
        ("write-prd", "ProductManager"),
        ("design", "Architect"),
        ("tasks", "ProjectManager"),
        ("code", "Engineer"),
        ("test", "QaEngineer"),
    )
    plans = (
        StagePlan(query=250, output=220, max_new=600, query_sigma=0.4, output_sigma=0.35),
        StagePlan(query=450, output=220, max_new=600, query_sigma=0.3, output_sigma=0.35),
        StagePlan(query=500, output=160, max_new=450, query_sigma=0.3, output_sigma=0.35),
        StagePlan(600, 230, 630, 0.3, 0.45, call_mean=1.9, call_limit=4, observation=120, tool_s=0.5, context=2500),
        StagePlan(500, 175, 480, 0.3, 0.40, call_mean=1.6, call_limit=4, observation=150, tool_s=3.0, context=2500),
    )
    about = "MetaGPT's pipeline of five roles, variable lengths, ReAct rounds"
    return WorkloadPlan("metagpt-sop", about, _chain("metagpt-sop", steps, prefixes), plans, 0.15)


def metagpt_tl() -> WorkloadPlan:
    """Returns metagpt-tl: nine stages, the TeamLeader before, between and after four specialists."""
    prefixes = {
        "TeamLeader": 3641,
        "ProductManager": 4861,
        "Architect": 1672,
        "ProjectManager": 1126,
        "Engineer2": 8993,
    }
    steps = (
        ("assign-prd", "TeamLeader"),
        ("write-prd", "ProductManager"),
        ("assign-design", "TeamLeader"),
        ("design", "Architect"),
        ("assign-tasks", "TeamLeader"),
        ("tasks", "ProjectManager"),
        ("assign-code", "TeamLeader"),
        ("code", "Engineer2"),
        ("report", "TeamLeader"),
    )

    def lead(query: int) -> StagePlan:
        return StagePlan(query, 220, 600, 0.3, 0.4, 1.4, 3, observation=100, tool_s=0.3, context=3500)

    def specialist(query: int, output: int, mean: float, limit: int) -> StagePlan:
        longest = 5 * output // 2
        return StagePlan(query, output, longest, 0.3, 0.45, mean, limit, observation=150, tool_s=1.0, context=3500)

    plans = (
        lead(250),
        specialist(350, 480, 1.8, 4),
        lead(500),
        specialist(500, 480, 1.8, 4),
        lead(650),
        specialist(600, 340, 1.5, 3),
        lead(750),
        specialist(700, 460, 3.0, 6),
        lead(900),
    )
    about = "MetaGPT's TeamLeader alternating with four specialists, nine stages"
    return WorkloadPlan("metagpt-tl", about, _chain("metagpt-tl", steps, prefixes), plans, 0.0175)
