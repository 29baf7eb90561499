"""Generated workflows of any shape, to train on: two to eight stages, each with an agent of its own.

Prefixes, queries and outputs lie around those of the paper's synthetic workloads, so two or three prefixes fill the
pool of the default profile.
"""

import functools

import numpy as np

from topas_env._workflow import Agent, Stage, Workflow
from topas_env._workload import GeneratedSpec
from topas_env.workloads import StagePlan, WorkloadPlan

__all__ = ["RANDOM_DAG", "SHAPES", "random_dag"]

RANDOM_DAG = "random-dag"
"""Its name in a configuration."""

SHAPES = 64
_RATE = 0.05


@functools.lru_cache(maxsize=SHAPES)
def random_dag(number: int) -> GeneratedSpec:
    """Returns workflow `number`, from 0 to `SHAPES` - 1."""
    rng = np.random.default_rng([7_200_001, number])
    count = int(rng.integers(2, 9))
    parents = float(rng.uniform(1.0, 2.0))
    wide = float(rng.uniform(0.0, 1.0))
    spread = float(rng.choice([0.0, 0.3, 0.6]))
    prefix = float(rng.uniform(4_500.0, 7_000.0))
    output = float(rng.uniform(200.0, 420.0))
    agents, stages, plans = [], [], []
    for k in range(count):
        name = f"agent-{k}"
        after: set[int] = set()
        if k > 0:
            # Wide ones hang their stages on the first one, narrow ones on the one before.
            after.add(0 if rng.random() < wide else k - 1)
            while rng.random() < 1.0 - 1.0 / parents:
                after.add(int(rng.integers(k)))
        agents.append(Agent(name, int(prefix * rng.uniform(0.85, 1.15))))
        stages.append(Stage(f"stage-{k}", name, tuple(f"stage-{i}" for i in sorted(after))))
        mine = int(output * rng.uniform(0.8, 1.25))
        longest = int(1.25 * mine) if spread == 0.0 else 3 * mine
        plans.append(StagePlan(int(rng.uniform(300.0, 700.0)), mine, longest, output_sigma=spread))
    workflow = Workflow(f"{RANDOM_DAG}-{number}", tuple(agents), tuple(stages))
    return GeneratedSpec(WorkloadPlan(workflow.name, "a generated workflow", workflow, tuple(plans), _RATE))
