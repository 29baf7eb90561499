"""What the bridge remembers of one task and of one request."""

from collections import deque
from typing import Any

from topas_bridge._prefixes import AgentPrefix
from topas_env import Workflow
from topas_env._snapshot import TaskState

__all__ = ["LIST_LIMIT", "Call", "StageStatistics", "Task"]

LIST_LIMIT = 256  # observations of a stage (SNAPSHOT.md)


class Task:
    """An instance of a workflow.

    Attributes:
        id: Its id in the snapshot.
        workflow: Its workflow's name.
        arrival_s: When its first request came.
        done: Whether each stage is done.
        skipped: Whether the client said that a stage will not run.
        service_s: Service of each stage in completed calls.
        calls: The request of each stage, if it has one.
        last_seen_s: When its last request came or ended.
        ttl_s: It is forgotten so long after that.
        total_s: All its service.
        ended: Whether the client said that no more requests will come.
        state: The snapshot's view of it, None if it has changed since.
    """

    __slots__ = (
        *("arrival_s", "calls", "done", "ended", "id", "last_seen_s"),
        *("service_s", "skipped", "state", "total_s", "ttl_s", "workflow"),
    )

    def __init__(self, task_id: str, workflow: Workflow, now: float, ttl_s: float) -> None:
        n = len(workflow.stages)
        self.id = task_id
        self.workflow = workflow.name
        self.arrival_s = now
        self.done = [False] * n
        self.skipped = [False] * n
        self.service_s = [0.0] * n
        self.calls: list[Call | None] = [None] * n
        self.last_seen_s = now
        self.ttl_s = ttl_s
        self.total_s = 0.0
        self.ended = False
        self.state: TaskState | None = None

    @property
    def over(self) -> bool:
        """Whether every stage is done or will not run."""
        return all(done or skipped for done, skipped in zip(self.done, self.skipped, strict=True))

    @property
    def active(self) -> bool:
        """Whether a request of it waits or runs."""
        return any(call is not None for call in self.calls)


class Call:
    """A request that waits or runs.

    Attributes:
        id: Its id in the snapshot.
        req: SGLang's request.
        task: Its task.
        stage: Position of its stage in the workflow.
        stage_name: Name of its stage.
        agent: Its agent.
        running: Whether it is admitted.
        ready_s: When it first became ready.
        waits_s: Since when it waits, if it does.
        admitted_s: When it was admitted last.
        prompt_tokens: Length of its prompt.
        max_new_tokens: What the client asked for, as SGLang bounds it.
        cached_tokens: How many tokens of its prompt lay in the cache when it became ready.
        progress: Output tokens when it became ready last.
        credit_s: Its summand of the score at its admission; 0 while ready.
        offer_s: The same of a decision to admit it that SGLang has not carried out yet.
        freed: Whether the watchdog has taken it from the policy.
        managed: Whether the policy decides about it.
        oversize: Whether it needs more memory than there is if it uses all that the client asked for; then SGLang's own
            scheduling serves it.
        last_call: Whether the stage is done after it.
        end_task: Whether the task is done after it.
        mark: Number of the last look at the scheduler that saw it.
    """

    __slots__ = (
        *("admitted_s", "agent", "cached_tokens", "credit_s", "end_task", "freed", "id"),
        *("last_call", "managed", "mark", "max_new_tokens", "offer_s", "oversize", "progress", "prompt_tokens"),
        *("ready_s", "req", "running", "stage", "stage_name", "task", "waits_s"),
    )

    def __init__(self, call_id: str, req: Any, task: Task, stage: int, agent: AgentPrefix, now: float) -> None:
        self.id = call_id
        self.req = req
        self.task = task
        self.stage = stage
        self.stage_name = ""
        self.agent = agent
        self.running = False
        self.ready_s = now
        self.waits_s = now
        self.admitted_s = now
        self.prompt_tokens = 0
        self.max_new_tokens = 0
        self.cached_tokens = 0
        self.progress = 0
        self.credit_s = 0.0
        self.offer_s = 0.0
        self.freed = False
        self.managed = True
        self.oversize = False
        self.last_call: bool | None = None
        self.end_task = False
        self.mark = 0


class StageStatistics:
    """Service of one stage, the last 256 observations of each kind.

    Attributes:
        totals_s: Total service of finished stages.
        calls_s: Service of finished calls.
        outputs: Their output tokens.
        version: Grows with each observation.
    """

    __slots__ = ("calls_s", "outputs", "totals_s", "version")

    def __init__(self) -> None:
        self.totals_s: deque[float] = deque(maxlen=LIST_LIMIT)
        self.calls_s: deque[float] = deque(maxlen=LIST_LIMIT)
        self.outputs: deque[int] = deque(maxlen=LIST_LIMIT)
        self.version = 0
