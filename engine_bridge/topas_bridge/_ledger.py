"""The tasks, requests and statistics of one engine, kept up to date from what its scheduler shows and clients say."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from topas_bridge._prefixes import AgentPrefix
from topas_bridge._records import LIST_LIMIT, Call, StageStatistics, Task
from topas_bridge._tags import NAME_LIMIT, Tags, read_tags
from topas_bridge._workflows import AGENT_LIMIT, SOLO_AGENT, WorkflowBook, solo_workflow
from topas_bridge.engine import requests as sgl
from topas_env import Workflow

__all__ = ["Changes", "Ledger"]

_TASK_LIMIT = 4096


class Changes:
    """What happened since the last look.

    Attributes:
        arrived: Requests that became ready for the first time.
        retracted: Requests that went back from running to ready.
        admitted: Requests that were admitted.
        finished: Requests that ended with their output.
        aborted: Requests that ended without.
    """

    __slots__ = ("aborted", "admitted", "arrived", "finished", "retracted")

    def __init__(self) -> None:
        self.arrived: list[Call] = []
        self.retracted: list[Call] = []
        self.admitted: list[Call] = []
        self.finished: list[Call] = []
        self.aborted: list[Call] = []


class Ledger:
    """Tasks, requests and statistics.

    Attributes:
        book: Known workflows.
        agents: Prefixes by agent name.
        tasks: Tasks by id.
        calls: Requests that wait or run, by the identity of SGLang's request.
        statistics: Service by workflow and stage position.
        totals_s: Service of the last finished tasks, for H_age.
        arrivals_s: Arrival times of tasks by workflow.
        counts: Counters by name, for the metrics.
        finished_jct_s: Completion times of tasks since they were last taken away.
    """

    def __init__(self, book: WorkflowBook, *, page_size: int, freeze_after: int, ttl_s: float) -> None:
        self.book = book
        self.agents: dict[str, AgentPrefix] = {}
        self.tasks: dict[str, Task] = {}
        self.calls: dict[int, Call] = {}
        self.statistics: dict[tuple[str, int], StageStatistics] = {}
        self.totals_s: deque[float] = deque(maxlen=LIST_LIMIT)
        self.arrivals_s: dict[str, deque[float]] = {}
        self.counts: dict[str, int] = {}
        self.finished_jct_s: list[float] = []
        self._page = page_size
        self._freeze_after = freeze_after
        self._ttl_s = ttl_s
        self._look = 0
        self._serial = 0
        self._swept_s = 0.0
        self._solos: dict[str, Workflow] = {}

    # -- looking at the scheduler ---------------------------------------------------------------------------------

    def look(self, waiting: Iterable[Any], running: Iterable[Any], now: float) -> Changes:
        """Compares what the scheduler holds with what is known.

        Args:
            waiting: SGLang's waiting queue.
            running: Requests of the running batch and those in the middle of a prefill.
            now: Seconds.
        """
        changes = Changes()
        self._look += 1
        mark, calls = self._look, self.calls
        for req in waiting:
            call = calls.get(id(req))
            if call is None:
                call = self._arrive(req, now)
                changes.arrived.append(call)
            elif call.running:
                call.running = False
                call.waits_s = now
                call.credit_s = call.offer_s = 0.0
                call.progress = sgl.generated(req)
                call.task.state = None
                changes.retracted.append(call)
            call.mark = mark
        for req in running:
            if req.finished():  # older versions leave it in the batch until the next decode step
                continue
            call = calls.get(id(req))
            if call is None:  # admitted within one pass, before we could look
                call = self._arrive(req, now)
                changes.arrived.append(call)
            if not call.running:
                self._admit(call, now)
                changes.admitted.append(call)
            call.mark = mark
            call.agent.last_used_s = now
        gone = [call for call in calls.values() if call.mark != mark]
        for call in gone:
            if call.req.finished() and not sgl.is_aborted(call.req):
                changes.finished.append(call)
            else:
                changes.aborted.append(call)
            self._leave(call, now)
        if now - self._swept_s > 5.0:
            self._swept_s = now
            self._sweep(now)
        return changes

    def _admit(self, call: Call, now: float) -> None:
        call.running = True
        call.credit_s = call.offer_s
        call.admitted_s = now
        call.task.state = None

    # -- arrivals --------------------------------------------------------------------------------------------------

    def _arrive(self, req: Any, now: float) -> Call:
        tags = read_tags(sgl.custom_params(req))
        self._count("malformed_tags", tags.malformed)
        if tags.define_workflow is not None:
            self._count("workflows_defined" if self.book.define(tags.define_workflow) else "workflows_refused")
        place = self._place(req, tags, now) if sgl.is_manageable(req) else None
        if place is None:
            place = self._solo(req, tags, now)
        task, stage, agent = place
        call = Call(self._call_id(req), req, task, stage, agent, now)
        call.progress = sgl.generated(req)
        call.prompt_tokens = len(sgl.prompt(req))
        call.max_new_tokens = sgl.limit(req)
        call.stage_name = self.workflow(task.workflow).stages[stage].name
        call.managed = sgl.is_manageable(req)
        call.last_call = tags.last_call
        call.end_task = tags.end_task
        task.calls[stage] = call
        task.done[stage] = task.skipped[stage] = False
        task.last_seen_s = now
        task.state = None
        if tags.ttl_s is not None:
            task.ttl_s = tags.ttl_s
        self.calls[id(req)] = call
        return call

    def _place(self, req: Any, tags: Tags, now: float) -> tuple[Task, int, AgentPrefix] | None:
        """Finds the task and stage of a tagged request; None if it is to stand alone."""
        workflow = None if tags.workflow is None else self.book.by_name.get(tags.workflow)
        known = None if tags.task is None else self.tasks.get(tags.task)
        if workflow is None and known is not None:
            workflow = self.book.by_name.get(known.workflow)
        if workflow is None or tags.task is None or tags.task.startswith(SOLO_AGENT):
            self._end_only(known, tags, now)
            return None
        stage = next((i for i, s in enumerate(workflow.stages) if s.name == tags.stage), None)
        if stage is None or (known is not None and known.workflow != workflow.name):
            self._end_only(known, tags, now)
            return None
        if known is None and len(self.tasks) >= _TASK_LIMIT:
            self._count("tasks_refused")
            return None
        if known is not None and not self._may_start(known, workflow, stage):
            self._count("out_of_order")
            return None
        agent = self._agent(workflow.stages[stage].agent, req, tags)
        if agent is None:
            return None
        task = known
        if task is None:
            task = self._new_task(tags.task, workflow, now)
        self._finish_before(task, workflow, stage)
        for name in tags.skip:
            self._skip(task, workflow, name)
        return task, stage, agent

    def _end_only(self, known: Task | None, tags: Tags, now: float) -> None:
        """Handles a request that only says that its task is over."""
        if known is not None and tags.end_task and tags.stage is None:
            known.ended = True
            if not known.active:
                self._complete(known, now)

    @staticmethod
    def _may_start(task: Task, workflow: Workflow, stage: int) -> bool:
        """A stage starts when it has no request, nothing after it has begun, and nothing before it still runs."""
        if task.calls[stage] is not None:
            return False
        names = {s.name: i for i, s in enumerate(workflow.stages)}
        for i, other in enumerate(workflow.stages):
            if workflow.stages[stage].name in other.after and _begun(task, i):
                return False
        return all(task.calls[i] is None for i in _ancestors(workflow, names, stage))

    def _finish_before(self, task: Task, workflow: Workflow, stage: int) -> None:
        """A request of a stage shows that everything before it is done, said or not."""
        names = {s.name: i for i, s in enumerate(workflow.stages)}
        for i in _ancestors(workflow, names, stage):
            if not task.done[i]:
                self._finish_stage(task, i)

    def _skip(self, task: Task, workflow: Workflow, name: str) -> None:
        for i, stage in enumerate(workflow.stages):
            if stage.name == name and task.calls[i] is None and not task.done[i]:
                task.skipped[i] = True
                task.state = None

    def _solo(self, req: Any, tags: Tags, now: float) -> tuple[Task, int, AgentPrefix]:
        """Makes a task of one stage for a request that has no other place."""
        agent = None
        if sgl.is_manageable(req) and tags.agent is not None and not tags.agent.startswith(SOLO_AGENT):
            agent = self._agent(tags.agent, req, tags)
        if agent is None:
            agent = self.agents.get(SOLO_AGENT)
            if agent is None:
                agent = AgentPrefix(SOLO_AGENT, page_size=self._page, freeze_after=self._freeze_after)
                self.agents[SOLO_AGENT] = agent
        name = SOLO_AGENT if agent.name == SOLO_AGENT else f"{SOLO_AGENT}{agent.name}"
        workflow = self._solos.setdefault(name, solo_workflow(name, agent.name, 0))
        self._serial += 1
        return self._new_task(f"{SOLO_AGENT}{self._serial}", workflow, now), 0, agent

    def _new_task(self, task_id: str, workflow: Workflow, now: float) -> Task:
        task = Task(task_id, workflow, now, self._ttl_s)
        self.tasks[task_id] = task
        self.arrivals_s.setdefault(workflow.name, deque(maxlen=LIST_LIMIT)).append(now)
        return task

    def _agent(self, name: str, req: Any, tags: Tags) -> AgentPrefix | None:
        """Returns the agent if the request starts with its prefix and belongs to its part of the cache."""
        agent = self.agents.get(name)
        if agent is None:
            if len(self.agents) >= AGENT_LIMIT:
                self._count("agents_refused")
                return None
            agent = AgentPrefix(name, page_size=self._page, freeze_after=self._freeze_after)
            self.agents[name] = agent
        key = sgl.cache_key(req)
        if agent.key is None:
            agent.key = key
        if agent.key != key:
            self._count("other_cache_key")
            return None
        if not agent.observe(sgl.prompt(req), tags.prefix_tokens):
            self._count("other_prefix")
            return None
        return agent

    def _call_id(self, req: Any) -> str:
        self._serial += 1
        rid = str(getattr(req, "rid", ""))[:NAME_LIMIT].encode("utf-8", "replace").decode()
        return f"{rid}.{self._serial}"

    # -- ends ------------------------------------------------------------------------------------------------------

    def _leave(self, call: Call, now: float) -> None:
        del self.calls[id(call.req)]
        task, stage = call.task, call.stage
        task.calls[stage] = None
        task.last_seen_s = now
        task.state = None
        finished = call.req.finished() and not sgl.is_aborted(call.req)
        if finished:
            service = now - call.admitted_s
            task.service_s[stage] += service
            task.total_s += service
            statistics = self._statistics(task.workflow, stage)
            statistics.calls_s.append(service)
            statistics.outputs.append(sgl.generated(call.req))
            statistics.version += 1
            if call.last_call is not False:
                self._finish_stage(task, stage)
        solo = task.workflow.startswith(SOLO_AGENT)
        task.ended = task.ended or call.end_task or solo
        if not task.active and (task.ended or task.over):
            self._complete(task, now, count=finished)

    def _finish_stage(self, task: Task, stage: int) -> None:
        task.done[stage] = True
        task.state = None
        if task.service_s[stage] > 0:
            statistics = self._statistics(task.workflow, stage)
            statistics.totals_s.append(task.service_s[stage])
            statistics.version += 1

    def _complete(self, task: Task, now: float, *, count: bool = True) -> None:
        if self.tasks.pop(task.id, None) is None or not count:
            return
        if task.total_s > 0 and not task.workflow.startswith(SOLO_AGENT):
            self.totals_s.append(task.total_s)
            self._count("workflow_tasks_completed")
        self._count("tasks_completed")
        if len(self.finished_jct_s) < _TASK_LIMIT:
            self.finished_jct_s.append(now - task.arrival_s)

    def _sweep(self, now: float) -> None:
        """Forgets tasks whose client has gone."""
        for task in [t for t in self.tasks.values() if not t.active and now - t.last_seen_s > t.ttl_s]:
            del self.tasks[task.id]
            self._count("tasks_expired")

    # -- statistics ------------------------------------------------------------------------------------------------

    def _statistics(self, workflow: str, stage: int) -> StageStatistics:
        found = self.statistics.get((workflow, stage))
        if found is None:
            found = self.statistics[workflow, stage] = StageStatistics()
        return found

    def workflow(self, name: str) -> Workflow:
        """Returns a workflow of a task, also those of requests that stand alone."""
        found = self.book.by_name.get(name)
        return self._solos[name] if found is None else found

    def workflows(self) -> list[Workflow]:
        """Returns all workflows that tasks may name."""
        return [*self.book.by_name.values(), *self._solos.values()]

    @property
    def solo_count(self) -> int:
        """How many workflows there are of requests that stand alone."""
        return len(self._solos)

    def _count(self, name: str, by: int = 1) -> None:
        if by:
            self.counts[name] = self.counts.get(name, 0) + by


def _begun(task: Task, stage: int) -> bool:
    return task.done[stage] or task.calls[stage] is not None or task.service_s[stage] > 0


def _ancestors(workflow: Workflow, names: dict[str, int], stage: int) -> set[int]:
    found: set[int] = set()
    stack = [stage]
    while stack:
        for name in workflow.stages[stack.pop()].after:
            i = names[name]
            if i not in found:
                found.add(i)
                stack.append(i)
    return found
