"""Workflows: directed acyclic graphs of stages, each run by an agent with a static prefix."""

from functools import lru_cache

import msgspec

from topas_env._errors import InputError
from topas_env._snapshot_rules import check_workflow

__all__ = ["Agent", "Stage", "Workflow"]


class Agent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A role with a static prompt prefix that all its requests share.

    Attributes:
        name: Unique on one serving engine: workflows that name the same agent share its prefix.
        prefix_tokens: Tokens of the prefix, at least 0.
    """

    name: str
    prefix_tokens: int


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node of a workflow: one or more calls of one agent.

    Attributes:
        name: Unique in its workflow.
        agent: Name of the agent that runs it.
        after: Names of the stages that must be done before it starts.
    """

    name: str
    agent: str
    after: tuple[str, ...]


class Workflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directed acyclic graph of stages over agents.

    The constructor does not check anything; `validate` does.

    Attributes:
        name: Unique in a workload or snapshot.
        agents: The agents that its stages name.
        stages: Its stages, in any order.
    """

    name: str
    agents: tuple[Agent, ...]
    stages: tuple[Stage, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Positions of `stages` in a topological order; of several stages that could come next, the first in the list.

        Raises:
            InputError: If the stages have a cycle or name an unknown stage.
        """
        return _order(self)

    @property
    def depths(self) -> tuple[int, ...]:
        """For each of `stages`, the edges on the longest path from a stage without predecessors.

        Raises:
            InputError: As `order` does.
        """
        return _depths(self)

    def validate(self, path: str = "$") -> None:
        """Checks names, references, sizes and that the graph has no cycle.

        Args:
            path: JSON path of this workflow, for the message.

        Raises:
            InputError: One line with the path of the first fault and its value.
        """
        check_workflow(self, path)


@lru_cache(maxsize=1024)
def _order(workflow: Workflow) -> tuple[int, ...]:
    """Sorts topologically (Kahn), smallest position first."""
    position = {stage.name: i for i, stage in enumerate(workflow.stages)}
    left = {i: {position[name] for name in stage.after} for i, stage in enumerate(workflow.stages)}
    order: list[int] = []
    while left:
        free = next((i for i, before in left.items() if not before), None)
        if free is None:
            raise InputError(f"workflow {workflow.name!r}: the stages have a cycle")
        order.append(free)
        del left[free]
        for before in left.values():
            before.discard(free)
    return tuple(order)


@lru_cache(maxsize=1024)
def _depths(workflow: Workflow) -> tuple[int, ...]:
    """Computes the depth of each stage along the topological order."""
    position = {stage.name: i for i, stage in enumerate(workflow.stages)}
    depths = [0] * len(workflow.stages)
    for i in _order(workflow):
        depths[i] = max((depths[position[name]] + 1 for name in workflow.stages[i].after), default=0)
    return tuple(depths)
