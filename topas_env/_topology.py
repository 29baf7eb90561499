"""The workflows of a snapshot or workload as the kernels' static arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.layout import STAGE, WORKFLOW
from topas_env._workflow import Workflow

__all__ = ["Topology", "topology"]

_RECENT = 32  # topologies kept; a snapshot of one engine brings the same workflows each time


class Topology(NamedTuple):
    """Static arrays of a tuple of workflows, and the names behind their indices.

    Attributes:
        agent_names: Names of all agents, sorted: the order of agent indices.
        agent_index: Index of each name.
        prefix: int64 (n_agents,), tokens.
        workflow_index: Index of each workflow name.
        stage_index: For each workflow, position of each stage name.
        workflows: WORKFLOW (n_workflows,).
        stages: STAGE (n_stages,).
        preds: int64, predecessors as positions in the workflow.
        succs: int64, successors likewise.
        topo: int64 (n_stages,), positions in topological order.
        depth: Most stages of one workflow.
    """

    agent_names: tuple[str, ...]
    agent_index: dict[str, int]
    prefix: NDArray[np.int64]
    workflow_index: dict[str, int]
    stage_index: tuple[dict[str, int], ...]
    workflows: NDArray[Any]
    stages: NDArray[Any]
    preds: NDArray[np.int64]
    succs: NDArray[np.int64]
    topo: NDArray[np.int64]
    depth: int


_cache: dict[int, tuple[Sequence[Workflow], Topology]] = {}


def topology(workflows: Sequence[Workflow]) -> Topology:
    """Returns the static arrays of valid workflows; the same tuple again costs one dict access."""
    known = _cache.get(id(workflows))
    if known is not None and known[0] is workflows:
        return known[1]
    made = _build(workflows)
    if len(_cache) >= _RECENT:
        _cache.pop(next(iter(_cache)), None)
    _cache[id(workflows)] = (workflows, made)
    return made


def _build(workflows: Sequence[Workflow]) -> Topology:
    tokens = {agent.name: agent.prefix_tokens for workflow in workflows for agent in workflow.agents}
    names = tuple(sorted(tokens))
    agent_index = {name: i for i, name in enumerate(names)}
    n_stages = sum(len(workflow.stages) for workflow in workflows)
    table = np.zeros(len(workflows), WORKFLOW)
    stages = np.zeros(n_stages, STAGE)
    preds: list[int] = []
    succs: list[int] = []
    topo: list[int] = []
    stage_index = []
    row = 0
    for w, workflow in enumerate(workflows):
        position = {stage.name: i for i, stage in enumerate(workflow.stages)}
        stage_index.append(position)
        table[w] = (row, len(workflow.stages))
        followers: list[list[int]] = [[] for _ in workflow.stages]
        for i, stage in enumerate(workflow.stages):
            for name in stage.after:
                followers[position[name]].append(i)
        for i, stage in enumerate(workflow.stages):
            stages[row + i] = (
                w, i, agent_index[stage.agent], workflow.depths[i], len(preds), len(stage.after), len(succs),
                len(followers[i]), np.nan,
            )  # fmt: skip
            preds.extend(position[name] for name in stage.after)
            succs.extend(followers[i])
        topo.extend(workflow.order)
        row += len(workflow.stages)
    return Topology(
        agent_names=names,
        agent_index=agent_index,
        prefix=np.array([tokens[name] for name in names], np.int64),
        workflow_index={workflow.name: w for w, workflow in enumerate(workflows)},
        stage_index=tuple(stage_index),
        workflows=table,
        stages=stages,
        preds=np.array(preds, np.int64),
        succs=np.array(succs, np.int64),
        topo=np.array(topo, np.int64),
        depth=max((len(workflow.stages) for workflow in workflows), default=0),
    )
