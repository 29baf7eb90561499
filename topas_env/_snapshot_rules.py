"""The rules of SNAPSHOT.md between and within the fields of a snapshot; each check names the path and the value."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from topas_env._convert import fail, member

if TYPE_CHECKING:
    from topas_env._snapshot import RequestState, Snapshot, StageService, StageState, TaskState
    from topas_env._workflow import Workflow

__all__ = [
    "LIST_LIMIT",
    "MOST_TOKENS",
    "check_count",
    "check_name",
    "check_seconds",
    "check_snapshot",
    "check_workflow",
]

LIST_LIMIT = 256  # observations of a stage (SNAPSHOT.md)
MOST_TOKENS = 2**53  # whole numbers up to here are exact in double precision, and their sums fit 64 bits


def check_name(value: str, path: str) -> None:
    """Refuses a name that no UTF-8 file can hold (a lone surrogate)."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            fail(path, "must be valid Unicode", value)


def check_count(value: int, path: str, least: int = 0) -> None:
    """Refuses a whole number below `least` or above 2**53."""
    if not least <= value <= MOST_TOKENS:
        fail(path, f"must be at least {least}" if value < least else "must be at most 2**53", value)


def check_seconds(value: float, path: str, *, positive: bool = False) -> None:
    """Refuses a duration or rate that is not finite, is negative, or is 0 where it must be positive."""
    check_finite(value, path)
    if value < 0 or (positive and value == 0):
        fail(path, "must be above 0" if positive else "must be at least 0", value)


def check_finite(value: float, path: str) -> None:
    """Refuses NaN and infinities."""
    if not math.isfinite(value):
        fail(path, "must be a finite number", value)


def _check_unique(values: Iterable[object], path: str, what: str, member: str = "") -> None:
    """Refuses the second of two equal values in a list."""
    seen: set[object] = set()
    for i, value in enumerate(values):
        if value in seen:
            fail(f"{path}[{i}]{member}", f"{what} occurs twice", value)
        seen.add(value)


def check_workflow(workflow: "Workflow", path: str) -> None:
    """Checks one workflow: names, sizes, references, and that its graph has no cycle."""
    check_name(workflow.name, f"{path}.name")
    for i, agent in enumerate(workflow.agents):
        check_name(agent.name, f"{path}.agents[{i}].name")
        check_count(agent.prefix_tokens, f"{path}.agents[{i}].prefix_tokens")
    _check_unique((agent.name for agent in workflow.agents), f"{path}.agents", "agent", ".name")
    if not workflow.stages:
        fail(f"{path}.stages", "must hold at least one stage", [])
    agents = {agent.name for agent in workflow.agents}
    stages = {stage.name for stage in workflow.stages}
    for i, stage in enumerate(workflow.stages):
        check_name(stage.name, f"{path}.stages[{i}].name")
        if stage.agent not in agents:
            fail(f"{path}.stages[{i}].agent", "unknown agent", stage.agent)
        for j, name in enumerate(stage.after):
            if name not in stages:
                fail(f"{path}.stages[{i}].after[{j}]", "unknown stage", name)
        _check_unique(stage.after, f"{path}.stages[{i}].after", "stage")
    _check_unique((stage.name for stage in workflow.stages), f"{path}.stages", "stage", ".name")
    cycle = _find_cycle(workflow)
    if cycle:
        at = next(i for i, stage in enumerate(workflow.stages) if stage.name == cycle[0])
        fail(f"{path}.stages[{at}].after", "the stages must have no cycle", " after ".join(cycle))


def _find_cycle(workflow: "Workflow") -> list[str]:
    """Returns the names along a cycle, its first name again at the end, or nothing."""
    after = {stage.name: set(stage.after) for stage in workflow.stages}
    while True:
        free = [name for name, before in after.items() if not before]
        if not free:
            break
        for name in free:
            del after[name]
        for before in after.values():
            before.difference_update(free)
    if not after:
        return []
    walk = [next(name for name in after)]  # every stage that is left has a predecessor that is left
    while walk.count(walk[-1]) == 1:
        walk.append(min(after[walk[-1]]))
    return walk[walk.index(walk[-1]) :]


def check_snapshot(snapshot: "Snapshot") -> None:
    """Checks every rule of SNAPSHOT.md on a snapshot whose fields have the right types.

    Raises:
        InputError: One line with the path of the first fault and its value.
    """
    if snapshot.version != 1:
        fail("$.version", "must be 1", snapshot.version)
    check_finite(snapshot.time_s, "$.time_s")
    check_count(snapshot.kv_budget_tokens, "$.kv_budget_tokens")
    check_count(snapshot.max_running_requests, "$.max_running_requests", 1)
    _check_engine(snapshot)
    check_seconds(snapshot.age_scale_s, "$.age_scale_s", positive=True)
    prefixes = _check_workflows(snapshot.workflows)
    workflows = {workflow.name: workflow for workflow in snapshot.workflows}
    for i, entry in enumerate(snapshot.service):
        _check_service(entry, workflows, f"$.service[{i}]")
    pairs = ((entry.workflow, entry.stage) for entry in snapshot.service)
    _check_unique(pairs, "$.service", "the entry of a stage")
    _check_memory(snapshot, prefixes)
    _check_unique((task.id for task in snapshot.tasks), "$.tasks", "task", ".id")
    for i, task in enumerate(snapshot.tasks):
        _check_task(task, workflows, snapshot.time_s, f"$.tasks[{i}]")
    _check_requests(snapshot, workflows, prefixes)
    if snapshot.history is not None:
        for name, rate in snapshot.history.arrivals_per_s.items():
            if name not in workflows:
                fail("$.history.arrivals_per_s", "unknown workflow", name)
            check_seconds(rate, member("$.history.arrivals_per_s", name), positive=True)


def _check_engine(snapshot: "Snapshot") -> None:
    """Checks the believed costs: only two times and the ratio may be 0."""
    engine = snapshot.engine
    for name in ("prefill_s_per_token", "decode_s_per_token", "load_s_per_token", "rebuild_s_per_token"):
        check_seconds(getattr(engine, name), f"$.engine.{name}", positive=True)
    for name in ("prefill_base_s", "offload_s_per_token", "reserve_ratio"):
        check_seconds(getattr(engine, name), f"$.engine.{name}")
    if engine.reserve_cap_tokens is not None:
        check_count(engine.reserve_cap_tokens, "$.engine.reserve_cap_tokens")


def _check_workflows(workflows: Sequence["Workflow"]) -> dict[str, int]:
    """Checks all workflows; returns the prefix length of each agent."""
    prefixes: dict[str, int] = {}
    for i, workflow in enumerate(workflows):
        check_workflow(workflow, f"$.workflows[{i}]")
        for j, agent in enumerate(workflow.agents):
            known = prefixes.setdefault(agent.name, agent.prefix_tokens)
            if known != agent.prefix_tokens:
                path = f"$.workflows[{i}].agents[{j}].prefix_tokens"
                fail(path, f"must be {known}, as another workflow gives for this agent", agent.prefix_tokens)
    _check_unique((workflow.name for workflow in workflows), "$.workflows", "workflow", ".name")
    return prefixes


def _check_service(entry: "StageService", workflows: dict[str, "Workflow"], path: str) -> None:
    """Checks the statistics of one stage."""
    workflow = workflows.get(entry.workflow)
    if workflow is None:
        fail(f"{path}.workflow", "unknown workflow", entry.workflow)
    if all(stage.name != entry.stage for stage in workflow.stages):
        fail(f"{path}.stage", f"not a stage of workflow {entry.workflow!a}", entry.stage)
    if entry.profile_s is not None:
        check_seconds(entry.profile_s, f"{path}.profile_s")
    for name in ("stage_totals_s", "call_s", "call_output_tokens"):
        values = getattr(entry, name)
        if len(values) > LIST_LIMIT:
            fail(f"{path}.{name}", f"must hold at most {LIST_LIMIT} values", len(values))
        check = check_count if name == "call_output_tokens" else check_seconds
        for i, value in enumerate(values):
            check(value, f"{path}.{name}[{i}]")


def _check_memory(snapshot: "Snapshot", prefixes: dict[str, int]) -> None:
    """Checks resident and cached prefixes."""
    for i, agent in enumerate(snapshot.resident):
        if agent not in prefixes:
            fail(f"$.resident[{i}]", "unknown agent", agent)
    _check_unique(snapshot.resident, "$.resident", "agent")
    for i, cached in enumerate(snapshot.cached):
        if cached.agent not in prefixes:
            fail(f"$.cached[{i}].agent", "unknown agent", cached.agent)
        if cached.agent in snapshot.resident:
            fail(f"$.cached[{i}].agent", "is resident too", cached.agent)
        check_finite(cached.last_used_s, f"$.cached[{i}].last_used_s")
    _check_unique((cached.agent for cached in snapshot.cached), "$.cached", "agent", ".agent")


def _check_task(task: "TaskState", workflows: dict[str, "Workflow"], now: float, path: str) -> None:
    """Checks one task: its stages are those of its workflow, and who waits has an unfinished predecessor."""
    check_name(task.id, f"{path}.id")
    workflow = workflows.get(task.workflow)
    if workflow is None:
        fail(f"{path}.workflow", "unknown workflow", task.workflow)
    check_finite(task.arrival_s, f"{path}.arrival_s")
    if task.arrival_s > now:
        fail(f"{path}.arrival_s", f"must be at most time_s {now!r}", task.arrival_s)
    after = {stage.name: stage.after for stage in workflow.stages}
    for i, stage in enumerate(task.stages):
        if stage.name not in after:
            fail(f"{path}.stages[{i}].name", f"not a stage of workflow {task.workflow!a}", stage.name)
    _check_unique((stage.name for stage in task.stages), f"{path}.stages", "stage", ".name")
    status = {stage.name: stage.status for stage in task.stages}
    for name in after:
        if name not in status:
            fail(f"{path}.stages", f"has no stage {name!a} of workflow {task.workflow!a}", list(status))
    for i, stage in enumerate(task.stages):
        unfinished = next((name for name in after[stage.name] if status[name] != "done"), None)
        _check_stage(stage, unfinished, f"{path}.stages[{i}]")


def _check_stage(stage: "StageState", unfinished: str | None, path: str) -> None:
    """Checks one stage of a task, given an unfinished predecessor, if it has one."""
    check_seconds(stage.service_s, f"{path}.service_s")
    if stage.status == "waiting":
        if unfinished is None:
            fail(f"{path}.status", "every predecessor is done", stage.status)
        if stage.service_s > 0:
            fail(f"{path}.service_s", "must be 0 while the stage waits", stage.service_s)
    elif unfinished is not None:
        fail(f"{path}.status", f"predecessor {unfinished!a} is unfinished", stage.status)
    if stage.status == "tool" and stage.service_s == 0:
        fail(f"{path}.service_s", "must be above 0 between two calls", stage.service_s)


def _check_requests(snapshot: "Snapshot", workflows: dict[str, "Workflow"], prefixes: dict[str, int]) -> None:
    """Checks all requests, and that stages and requests say the same."""
    _check_unique((request.id for request in snapshot.requests), "$.requests", "request", ".id")
    tasks = {task.id: task for task in snapshot.tasks}
    agents = {(w.name, stage.name): stage.agent for w in workflows.values() for stage in w.stages}
    status = {(task.id, stage.name): stage.status for task in snapshot.tasks for stage in task.stages}
    resident = set(snapshot.resident)
    owners: set[tuple[str, str]] = set()
    for i, request in enumerate(snapshot.requests):
        path = f"$.requests[{i}]"
        check_name(request.id, f"{path}.id")
        task = tasks.get(request.task)
        if task is None:
            fail(f"{path}.task", "unknown task", request.task)
        owner = (request.task, request.stage)
        if owner not in status:
            fail(f"{path}.stage", f"not a stage of task {request.task!a}", request.stage)
        if owner in owners:
            fail(f"{path}.stage", f"a second request of this stage of task {request.task!a}", request.stage)
        owners.add(owner)
        if status[owner] != request.status:
            fail(f"{path}.status", f"must be that of its stage, {status[owner]!a}", request.status)
        _check_times(request, task.arrival_s, snapshot.time_s, path)
        agent = agents[task.workflow, request.stage]
        _check_sizes(snapshot, request, agent, prefixes[agent], path)
        if request.status == "running" and agent not in resident:
            fail("$.resident", f"leaves out agent {agent!a} of running request {request.id!a}", list(snapshot.resident))
    for i, task in enumerate(snapshot.tasks):
        for j, stage in enumerate(task.stages):
            if stage.status in ("ready", "running") and (task.id, stage.name) not in owners:
                fail(f"$.tasks[{i}].stages[{j}].status", "the stage has no request", stage.status)


def _check_times(request: "RequestState", arrival: float, now: float, path: str) -> None:
    """Checks arrival <= ready <= admitted <= now, and what a ready request may not have."""
    check_finite(request.ready_s, f"{path}.ready_s")
    if request.ready_s < arrival:
        fail(f"{path}.ready_s", f"must be at least the task's arrival_s {arrival!r}", request.ready_s)
    if request.ready_s > now:
        fail(f"{path}.ready_s", f"must be at most time_s {now!r}", request.ready_s)
    admitted = request.admitted_s
    check_seconds(request.admission_credit_s, f"{path}.admission_credit_s")
    if request.status == "ready":
        if admitted is not None:
            fail(f"{path}.admitted_s", "must be null while the request is ready", admitted)
        if request.admission_credit_s != 0:
            fail(f"{path}.admission_credit_s", "must be 0 while the request is ready", request.admission_credit_s)
        return
    if admitted is None:
        fail(f"{path}.admitted_s", "must be a time, since the request runs", admitted)
    check_finite(admitted, f"{path}.admitted_s")
    if admitted < request.ready_s:
        fail(f"{path}.admitted_s", f"must be at least ready_s {request.ready_s!r}", admitted)
    if admitted > now:
        fail(f"{path}.admitted_s", f"must be at most time_s {now!r}", admitted)


def _check_sizes(snapshot: "Snapshot", request: "RequestState", agent: str, prefix: int, path: str) -> None:
    """Checks the token counts of a request, that d_r is at least 1, and that a ready one can ever run."""
    for name in ("suffix_tokens", "cached_tokens", "generated_tokens", "max_new_tokens"):
        check_count(getattr(request, name), f"{path}.{name}")
    if request.cached_tokens > request.suffix_tokens:
        fail(f"{path}.cached_tokens", f"must be at most suffix_tokens {request.suffix_tokens}", request.cached_tokens)
    left = max(request.max_new_tokens - request.generated_tokens, 0)
    if snapshot.engine.reserve_ratio * left > MOST_TOKENS:
        fail(f"{path}.max_new_tokens", "with reserve_ratio must reserve at most 2**53 tokens", request.max_new_tokens)
    need = snapshot.reserved_tokens(request)
    if need < 1:
        fail(path, "d_r (prompt suffix, generated tokens and reservation) must be at least 1", need)
    if request.status == "ready" and prefix + need > snapshot.kv_budget_tokens:
        limit = f"kv_budget_tokens {snapshot.kv_budget_tokens}"
        fail(path, f"prefix {prefix} of agent {agent!a} and d_r {need} must fit {limit}", prefix + need)
