"""A policy that is shown some tasks without their tags, or with wrong ones; what the engine does is not changed."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from topas_env._decision import Decision
from topas_env._snapshot import History, RequestState, Snapshot, StageState, TaskState
from topas_env._workflow import Agent, Stage, Workflow
from topas_env._workload import Workload

__all__ = ["HiddenTags", "pick_tasks", "reversed_workflow"]

_STAGE = "call"


def pick_tasks(workload: Workload, share: float, seed: int, *, besides: Iterable[str] = ()) -> set[str]:
    """Returns the ids of a share of the tasks, drawn by the seed; none of `besides`."""
    taken = set(besides)
    ids = [name for name in workload.task_ids if name not in taken]
    count = min(round(share * workload.num_tasks), len(ids))
    chosen = np.random.default_rng(np.random.SeedSequence([seed, len(taken)])).permutation(len(ids))[:count]
    return {ids[k] for k in chosen.tolist()}


def reversed_workflow(workflow: Workflow) -> Workflow:
    """Returns the workflow with every edge turned round."""
    followers: dict[str, list[str]] = {stage.name: [] for stage in workflow.stages}
    for stage in workflow.stages:
        for name in stage.after:
            followers[name].append(stage.name)
    stages = tuple(Stage(stage.name, stage.agent, tuple(followers[stage.name])) for stage in workflow.stages)
    return Workflow(f"{workflow.name} reversed", workflow.agents, stages)


class HiddenTags:
    """Passes snapshots on to a policy with some tasks disguised, and its decisions back.

    A request without tags is shown as a task of its own: one stage, which nothing is known of, that arrived when the
    request became ready. What its prompt is is seen, so its agent is right. A task with wrong tags is shown as one
    of the reversed workflow: the agents of its requests are right, what is done and what is to come is not. Statistics
    of the true workflows still count these tasks, and credits are those of the true snapshot.

    Args:
        policy: The policy.
        workload: What is served.
        untagged: Ids of the tasks without tags.
        mistagged: Ids of the tasks with wrong tags.
    """

    def __init__(self, policy: Any, workload: Workload, untagged: set[str], mistagged: set[str]) -> None:
        self.name: str = policy.name
        self.manages_prefixes = bool(getattr(policy, "manages_prefixes", False))
        self.sglang_order = getattr(policy, "sglang_order", "")
        self.beta, self.rho = getattr(policy, "beta", None), getattr(policy, "rho", None)
        self._policy = policy
        self._untagged, self._mistagged = untagged, mistagged
        flows = workload.workflows
        agents = {agent.name: agent for flow in flows for agent in flow.agents}
        self._agent_of = {(flow.name, stage.name): stage.agent for flow in flows for stage in flow.stages}
        self._alone = {name: _alone(agent) for name, agent in agents.items()}
        self._wrong = {flow.name: reversed_workflow(flow) for flow in flows}
        self._flows = (*flows, *self._alone.values(), *self._wrong.values())
        self._shares = tuple(len(ids) / workload.num_tasks for ids in (untagged, mistagged))

    def reset(self, *, seed: int | None = None) -> None:
        """Resets the policy."""
        self._policy.reset(seed=seed)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns what the policy answers to the disguised snapshot."""
        decision: Decision = self._policy.decide(self.disguise(snapshot))
        return decision

    def disguise(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot as the policy is shown it; a valid one with the same requests."""
        from msgspec.structs import replace

        flow_of = {task.id: task.workflow for task in snapshot.tasks}
        lone: dict[str, list[TaskState]] = {}
        requests = []
        for request in snapshot.requests:
            if request.task in self._untagged:
                agent = self._agent_of[flow_of[request.task], request.stage]
                lone.setdefault(request.task, []).append(self._lone_task(request, agent))
                requests.append(replace(request, task=request.id, stage=_STAGE))
            else:
                requests.append(request)
        tasks: list[TaskState] = []
        for task in snapshot.tasks:
            if task.id in self._untagged:
                tasks.extend(lone.get(task.id, ()))
            elif task.id in self._mistagged:
                tasks.append(_turned(task, self._wrong[task.workflow]))
            else:
                tasks.append(task)
        return replace(
            snapshot,
            workflows=self._flows,
            tasks=tuple(tasks),
            requests=tuple(requests),
            history=None if snapshot.history is None else self._history(snapshot.history),
        )

    def _lone_task(self, request: RequestState, agent: str) -> TaskState:
        states = (StageState(_STAGE, request.status, 0.0),)
        return TaskState(request.id, self._alone[agent].name, request.ready_s, states)

    def _history(self, history: History) -> History:
        """Returns the rates of what is tagged right, and of what is tagged as something else."""
        missing, wrong = self._shares
        rates = {name: rate * (1.0 - missing - wrong) for name, rate in history.arrivals_per_s.items()}
        rates |= {self._wrong[name].name: rate * wrong for name, rate in history.arrivals_per_s.items()}
        return History({name: rate for name, rate in rates.items() if rate > 0.0})


def _alone(agent: Agent) -> Workflow:
    return Workflow(f"untagged {agent.name}", (agent,), (Stage(_STAGE, agent.name, ()),))


def _turned(task: TaskState, workflow: Workflow) -> TaskState:
    """Returns the task as one of the reversed workflow: what was to come is done, what was done is to come."""
    after = {stage.name: stage.after for stage in workflow.stages}
    known = {stage.name: stage for stage in task.stages}
    states: dict[str, StageState] = {}
    for name in (workflow.stages[k].name for k in workflow.order):
        stage = known[name]
        if stage.status == "waiting":
            states[name] = StageState(name, "done", 0.0)
        elif stage.status == "done":
            free = all(states[before].status == "done" for before in after[name])
            states[name] = stage if free else StageState(name, "waiting", 0.0)
        else:
            states[name] = stage
    return TaskState(task.id, workflow.name, task.arrival_s, tuple(states[stage.name] for stage in task.stages))
