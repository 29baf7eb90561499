"""The workflows that the engine knows: from a file at start, or registered by a request while it runs."""

from pathlib import Path
from typing import Any

import msgspec

from topas_env import Agent, Stage, Workflow
from topas_env._errors import InputError

__all__ = ["AGENT_LIMIT", "SOLO_AGENT", "SOLO_STAGE", "WorkflowBook", "read_workflows", "solo_workflow"]

WORKFLOW_LIMIT = 256
STAGE_LIMIT = 64
AGENT_LIMIT = 64
SOLO_AGENT = "-"
SOLO_STAGE = "-"


def read_workflows(path: str | Path) -> list[Workflow]:
    """Reads the workflows of a workload file, version 1 (JSON, or the header of a JSONL file), or a list of workflows.

    Raises:
        InputError: With the file and the path in it.
    """
    source = str(path)
    with Path(path).open("rb") as file:
        data = file.readline() if source.endswith(".jsonl") else file.read()
    try:
        plain = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InputError(f"{source}: not JSON: {error}") from None
    entries, stem = (plain.get("workflows"), "$.workflows") if isinstance(plain, dict) else (plain, "$")
    if not isinstance(entries, list):
        raise InputError(f"{source}: {stem}: must be a list of workflows: {type(entries).__name__}")
    return [_convert(entry, f"{stem}[{i}]", source) for i, entry in enumerate(entries)]


def _convert(plain: Any, path: str, source: str) -> Workflow:
    try:
        workflow = msgspec.convert(plain, Workflow)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {path}: {error}") from None
    try:
        workflow.validate(path)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return workflow


class WorkflowBook:
    """Known workflows by name; agents are named per engine, so two workflows that name one share its prefix."""

    def __init__(self, workflows: list[Workflow]) -> None:
        self.by_name: dict[str, Workflow] = {}
        self.version = 0
        for workflow in workflows:
            self.add(workflow)

    def add(self, workflow: Workflow) -> bool:
        """Registers a workflow; the first of a name stays.

        Returns:
            Whether it is known now under this very definition.
        """
        known = self.by_name.get(workflow.name)
        if known is not None:
            return _shape(known) == _shape(workflow)
        agents = {agent.name for other in self.by_name.values() for agent in other.agents}
        agents.update(agent.name for agent in workflow.agents)
        if (
            len(self.by_name) >= WORKFLOW_LIMIT
            or not 0 < len(workflow.stages) <= STAGE_LIMIT
            or len(agents) > AGENT_LIMIT
            or workflow.name.startswith(SOLO_AGENT)
        ):
            return False
        self.by_name[workflow.name] = workflow
        self.version += 1
        return True

    def define(self, text: str) -> bool:
        """Registers a workflow from a client's JSON text; False if it was refused."""
        try:
            return self.add(_convert(msgspec.json.decode(text), "$", "define_workflow"))
        except (InputError, msgspec.DecodeError, RecursionError):
            return False


def _shape(workflow: Workflow) -> tuple[Any, ...]:
    """What must agree between two definitions: prefix lengths may differ, since the engine counts them itself."""
    return tuple((stage.name, stage.agent, frozenset(stage.after)) for stage in workflow.stages)


def solo_workflow(name: str, agent: str, prefix_tokens: int) -> Workflow:
    """Returns the workflow of a request that stands alone."""
    return Workflow(name, (Agent(agent, prefix_tokens),), (Stage(SOLO_STAGE, agent, ()),))
