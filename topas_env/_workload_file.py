"""Workload files, version 1: one JSON object, or JSON lines with the tasks one a line after the header.

The tasks are decoded one by one into flat columns, so that 100,000 tasks need little more memory than their text.
"""

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_env._convert import convert, decode_json, fail, in_source
from topas_env._core.trace import CALL
from topas_env._errors import InputError
from topas_env._snapshot_rules import check_count, check_name, check_seconds, check_workflow
from topas_env._trace_build import build_trace
from topas_env._workflow import Workflow
from topas_env._workload import Workload

__all__ = ["TraceBuilder", "check_workflows", "read_bytes", "read_workload", "workload_from_dict", "write_workload"]

_VERSION = 1
_FIELDS = ("suffix_tokens", "history_tokens", "output_tokens", "max_new_tokens")
_CHUNK = 1000  # tasks that are turned into Python objects at a time when writing


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    suffix_tokens: int
    history_tokens: int
    output_tokens: int
    max_new_tokens: int
    tool_s: float


class _StageCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    calls: tuple[_Call, ...]


class _Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    id: str
    workflow: str
    arrival_s: float
    stages: tuple[_StageCalls, ...]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    name: str
    workflows: tuple[Workflow, ...]


class _RawFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    name: str
    workflows: tuple[Workflow, ...]
    tasks: tuple[msgspec.Raw, ...]


class _PlainFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    name: str
    workflows: tuple[Workflow, ...]
    tasks: tuple[Any, ...]


_DECODE_TASK = msgspec.json.Decoder(_Task)
_DECODE_FILE = msgspec.json.Decoder(_RawFile)


class TraceBuilder:
    """Collects tasks into flat columns.

    Args:
        workflows: Valid workflows with unique names.
    """

    def __init__(self, workflows: tuple[Workflow, ...]) -> None:
        self._workflows = workflows
        self._index = {workflow.name: k for k, workflow in enumerate(workflows)}
        self._positions = [{stage.name: p for p, stage in enumerate(w.stages)} for w in workflows]
        self._ids: dict[str, None] = {}
        self._arrival = array("d")
        self._workflow = array("q")
        self._call_counts = array("q")
        self._tokens = array("q")
        self._tool = array("d")

    def add(self, task: _Task, path: str) -> None:
        """Checks a task and appends it.

        Raises:
            InputError: One line with the path of the first fault and its value.
        """
        check_name(task.id, f"{path}.id")
        if task.id in self._ids:
            fail(f"{path}.id", "the id occurs twice", task.id)
        index = self._index.get(task.workflow)
        if index is None:
            fail(f"{path}.workflow", "unknown workflow", task.workflow)
        check_seconds(task.arrival_s, f"{path}.arrival_s")
        positions = self._positions[index]
        stages: list[tuple[_Call, ...] | None] = [None] * len(positions)
        for s, stage in enumerate(task.stages):
            position = positions.get(stage.name)
            if position is None:
                fail(f"{path}.stages[{s}].name", f"unknown stage of workflow {task.workflow!r}", stage.name)
            if stages[position] is not None:
                fail(f"{path}.stages[{s}].name", "the stage occurs twice", stage.name)
            stages[position] = stage.calls
            _check_calls(stage.calls, f"{path}.stages[{s}].calls")
        for name, position in positions.items():
            if stages[position] is None:
                fail(f"{path}.stages", f"stage {name!r} is missing", [stage.name for stage in task.stages])
        self._ids[task.id] = None
        self._arrival.append(task.arrival_s)
        self._workflow.append(index)
        for calls in stages:
            assert calls is not None
            self._call_counts.append(len(calls))
            for call in calls:
                self._tokens.extend((call.suffix_tokens, call.history_tokens, call.output_tokens, call.max_new_tokens))
                self._tool.append(call.tool_s)

    def build(self, name: str) -> Workload:
        """Returns the workload, tasks sorted by arrival (equal ones in the order they were added)."""
        if not self._ids:
            fail("$.tasks", "must hold at least one task", [])
        tokens = np.frombuffer(self._tokens, np.int64).reshape(-1, len(_FIELDS))
        calls = np.zeros(len(tokens), CALL)
        calls["suffix"], calls["history"], calls["output"], calls["max_new"] = tokens.T
        calls["tool"] = np.frombuffer(self._tool, np.float64)
        arrival = np.frombuffer(self._arrival, np.float64)
        workflow = np.frombuffer(self._workflow, np.int64)
        stage_counts = [len(w.stages) for w in self._workflows]
        trace, ids = build_trace(list(self._ids), arrival, workflow, stage_counts, np.array(self._call_counts), calls)
        return Workload(name, self._workflows, trace, ids)


def _check_calls(calls: tuple[_Call, ...], path: str) -> None:
    """Checks the calls of one stage."""
    if not calls:
        fail(path, "must hold at least one call", [])
    left = 0  # the longest text that an earlier call of the stage left
    for k, call in enumerate(calls):
        if not (0 <= call.history_tokens <= call.suffix_tokens and 1 <= call.output_tokens <= call.max_new_tokens):
            at = f"{path}[{k}]"
            check_count(call.suffix_tokens, f"{at}.suffix_tokens")
            check_count(call.history_tokens, f"{at}.history_tokens")
            check_count(call.output_tokens, f"{at}.output_tokens", 1)
            check_count(call.max_new_tokens, f"{at}.max_new_tokens", 1)
            if call.history_tokens > call.suffix_tokens:
                fail(f"{at}.history_tokens", f"must be at most suffix_tokens {call.suffix_tokens}", call.history_tokens)
            fail(f"{at}.output_tokens", f"must be at most max_new_tokens {call.max_new_tokens}", call.output_tokens)
        if call.history_tokens > left:
            fail(
                f"{path}[{k}].history_tokens",
                f"must be at most the {left} tokens of prompt and output that an earlier call of the stage left",
                call.history_tokens,
            )
        check_count(call.suffix_tokens, f"{path}[{k}].suffix_tokens")
        check_count(call.max_new_tokens, f"{path}[{k}].max_new_tokens")
        check_seconds(call.tool_s, f"{path}[{k}].tool_s")
        left = max(left, call.suffix_tokens + call.output_tokens)


def check_workflows(workflows: tuple[Workflow, ...], path: str = "$.workflows") -> None:
    """Checks workflows that are served together: each alone, unique names, one prefix for one agent name.

    Raises:
        InputError: One line with the path of the first fault and its value.
    """
    if not workflows:
        fail(path, "must hold at least one workflow", [])
    names: set[str] = set()
    prefixes: dict[str, int] = {}
    for k, workflow in enumerate(workflows):
        check_workflow(workflow, f"{path}[{k}]")
        if workflow.name in names:
            fail(f"{path}[{k}].name", "workflow occurs twice", workflow.name)
        names.add(workflow.name)
        for a, agent in enumerate(workflow.agents):
            known = prefixes.setdefault(agent.name, agent.prefix_tokens)
            if known != agent.prefix_tokens:
                problem = f"agent {agent.name!r} has {known} in another workflow"
                fail(f"{path}[{k}].agents[{a}].prefix_tokens", problem, agent.prefix_tokens)


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_workload(path: str | Path) -> Workload:
    """Reads a version 1 workload file, JSON lines where its name ends in `.jsonl`.

    Raises:
        InputError: One line with the file, the path in it and the value.
    """
    file = Path(path)
    data = read_bytes(file)
    if file.suffix == ".jsonl":
        return _read_lines(data, str(file))
    try:
        return _read_object(data)
    except InputError as error:
        raise in_source(str(file), error) from None


def workload_from_dict(content: Mapping[str, Any]) -> Workload:
    """Returns the workload of a version 1 file's content.

    Raises:
        InputError: One line with the path of the first fault and its value.
    """
    plain = convert(dict(content), _PlainFile)
    builder = _start(plain.version, plain.workflows, plain.name)
    for k, task in enumerate(plain.tasks):
        builder.add(convert(task, _Task, f"$.tasks[{k}]"), f"$.tasks[{k}]")
    return builder.build(plain.name)


def _start(version: int, workflows: tuple[Workflow, ...], name: str) -> TraceBuilder:
    if version != _VERSION:
        fail("$.version", f"must be {_VERSION}", version)
    check_name(name, "$.name")
    check_workflows(workflows)
    return TraceBuilder(workflows)


def _read_object(data: bytes) -> Workload:
    try:
        raw = _DECODE_FILE.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return workload_from_dict(_object(decode_json(data)))  # the slow way finds the fault
    builder = _start(raw.version, raw.workflows, raw.name)
    for k, task in enumerate(raw.tasks):
        builder.add(_decode_task(bytes(task), f"$.tasks[{k}]", whole=data), f"$.tasks[{k}]")
    return builder.build(raw.name)


def _read_lines(data: bytes, source: str) -> Workload:
    builder: TraceBuilder | None = None
    name = ""
    for number, line in _lines(data):
        try:
            if builder is None:
                header = convert(_object(decode_json(line)), _Header)
                name, builder = header.name, _start(header.version, header.workflows, header.name)
            else:
                builder.add(_decode_task(line, "$"), "$")
        except InputError as error:
            raise in_source(f"{source}: line {number}", error) from None
    try:
        if builder is None:
            fail("$", "must hold a header line and at least one task", None)
        return builder.build(name)
    except InputError as error:
        raise in_source(source, error) from None


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank with their numbers from 1, without copying all of them at once."""
    start, number = 0, 1
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end]
        if line.strip():
            yield number, line
        start, number = end + 1, number + 1


def _decode_task(text: bytes, path: str, whole: bytes = b"") -> _Task:
    try:
        return _DECODE_TASK.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        if whole:
            decode_json(whole)  # malformed text is reported by its place in the file
        return convert(decode_json(text), _Task, path)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail("$", "expected an object", value)
    return value


def write_workload(workload: Workload, path: str | Path) -> None:
    """Writes a version 1 file, JSON lines where the name ends in `.jsonl`.

    Reading the file and writing it again gives the same bytes.

    Raises:
        InputError: The file cannot be written.
    """
    encode = msgspec.json.encode
    header = encode(_Header(_VERSION, workload.name, workload.workflows))
    lines = Path(path).suffix == ".jsonl"
    try:
        with Path(path).open("wb") as file:
            file.write(header + b"\n" if lines else header[:-1] + b',"tasks":[\n')
            for k, task in enumerate(_tasks(workload)):
                if k:
                    file.write(b"\n" if lines else b",\n")
                file.write(encode(task))
            file.write(b"\n" if lines else b"\n]}\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _tasks(workload: Workload) -> Iterator[_Task]:
    trace = workload.trace
    names = [[stage.name for stage in workflow.stages] for workflow in workload.workflows]
    for start in range(0, workload.num_tasks, _CHUNK):
        end = min(start + _CHUNK, workload.num_tasks)
        row = int(trace.stage0[start])
        rows_end = int(trace.stage0[end]) if end < workload.num_tasks else len(trace.first_call) - 1
        bounds = trace.first_call[row : rows_end + 1].tolist()
        calls = [_Call(*values) for values in trace.calls[bounds[0] : bounds[-1]].tolist()]
        at = 0
        for k in range(start, end):
            workflow = int(trace.workflow[k])
            stages = []
            for name in names[workflow]:
                stages.append(_StageCalls(name, tuple(calls[bounds[at] - bounds[0] : bounds[at + 1] - bounds[0]])))
                at += 1
            yield _Task(workload.task_ids[k], workload.workflows[workflow].name, float(trace.arrival[k]), tuple(stages))
