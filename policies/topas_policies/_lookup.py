"""Names resolved once a snapshot, so that the plain policies read like their descriptions."""

from topas_env import Snapshot, Workflow
from topas_env._snapshot import RequestState, TaskState

__all__ = ["Lookup"]


class Lookup:
    """What the requests of a snapshot belong to.

    Attributes:
        snapshot: The snapshot.
        tasks: Tasks by id.
        prefix_tokens: Length of each agent's prefix by its name, tokens.
        running: The running requests, in snapshot order.
        ready: The requests that wait for admission, in snapshot order.
        worked_out: Room for what a policy works out once a snapshot, by task id.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tasks: dict[str, TaskState] = {task.id: task for task in snapshot.tasks}
        self.prefix_tokens = {agent.name: agent.prefix_tokens for w in snapshot.workflows for agent in w.agents}
        self.running = [request for request in snapshot.requests if request.status == "running"]
        self.ready = [request for request in snapshot.requests if request.status == "ready"]
        self.worked_out: dict[str, dict[str, float]] = {}
        self._workflows = {w.name: w for w in snapshot.workflows}
        self._agents = {(w.name, stage.name): stage.agent for w in snapshot.workflows for stage in w.stages}

    def task(self, request: RequestState) -> TaskState:
        """Returns the task that a request belongs to."""
        return self.tasks[request.task]

    def agent(self, request: RequestState) -> str:
        """Returns the agent that runs a request."""
        return self._agents[self.tasks[request.task].workflow, request.stage]

    def agent_of(self, task: TaskState, stage: str) -> str:
        """Returns the agent that runs a stage of a task."""
        return self._agents[task.workflow, stage]

    def workflow(self, task: TaskState) -> Workflow:
        """Returns the workflow of a task."""
        return self._workflows[task.workflow]

    def attained_s(self, task: TaskState) -> float:
        """Returns the LLM service that a task's stages have received, seconds."""
        received = {stage.name: stage.service_s for stage in task.stages}
        total = 0.0
        for stage in self._workflows[task.workflow].stages:  # one by one in this order: the kernel's rounding
            total += received[stage.name]
        return total

    def depths(self) -> dict[tuple[str, str], int]:
        """Returns the depth of every stage by workflow and stage: edges on the longest path from a source."""
        depths: dict[tuple[str, str], int] = {}
        for workflow in self._workflows.values():
            for stage, depth in zip(workflow.stages, workflow.depths, strict=True):
                depths[workflow.name, stage.name] = depth
        return depths

    def last_stages(self) -> set[tuple[str, str]]:
        """Returns the stages that no other stage waits for, by workflow and stage."""
        last: set[tuple[str, str]] = set()
        for workflow in self._workflows.values():
            waited_for = {name for stage in workflow.stages for name in stage.after}
            last |= {(workflow.name, stage.name) for stage in workflow.stages if stage.name not in waited_for}
        return last
