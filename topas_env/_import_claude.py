"""Recorded coding-agent sessions (callanjfox/kv-cache-tester) as a workload: a session is a task, a subagent a stage.

How a recording is read:

* An agent is a model with the tokens of its tools and system prompt, which are its static prefix.
* A subagent's `t` is when it ended: in all recorded ones `t - duration_ms` lies within 0.8 s after the end of a
  call of the main session, and several subagents of one call start together. So a subagent starts after the last
  main call that was sent before `t - duration_ms`, and the first main call sent after `t` waits for it.
* The main session is cut into stages where subagents start or are waited for, and where its model changes; main calls
  in between go on beside a subagent, as they did.
* `tool_s` is the recorded wait from the end of a call to the next one of its stage: tools and people thinking. The wait
  between the end of a subagent and the main call that used its answer is put after the subagent's last call. Where a
  call has no `api_time`, its length is estimated from the session's other calls, per output token.
* `history_tokens`: the longest run of leading blocks (`hash_ids`) that an earlier call of the same stage had too,
  without the agent's prefix. Outputs have no hashes, so what the provider cached of them is not counted.
* `max_new_tokens` is not recorded: 32,000, the coding agent's default, for every call (doubled for all, while any
  recorded output is longer).
* Sessions have no absolute times: `DEFAULT_RATE` and seed 0 give Poisson arrivals where the user asks for none.
"""

import bisect
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_env._convert import convert, decode_json, fail, in_source
from topas_env._core.trace import CALL
from topas_env._errors import InputError
from topas_env._snapshot_rules import check_count, check_seconds
from topas_env._trace_build import build_trace, common_length
from topas_env._workflow import Agent, Stage, Workflow
from topas_env._workload import Workload
from topas_env._workload_file import check_workflows, read_bytes
from topas_env.workloads import poisson_arrivals

__all__ = ["DEFAULT_RATE", "import_sessions"]

DEFAULT_RATE = 0.0125  # sessions per second: one each 80 s, about 0.75 of profile qwen2.5-7b-a100-80g
_MAX_NEW = 32_000
_JOIN_SLACK_S = 1.0  # main calls are recorded to the second, subagents to the millisecond
_LONGEST_S = 1e9  # keeps sums of times finite and exact to the microsecond
_S_PER_OUTPUT_TOKEN = 0.03  # of a session none of whose calls has a duration


class _Request(msgspec.Struct, frozen=True):
    t: float
    model: str
    prompt: int = msgspec.field(name="in")
    out: int
    hash_ids: list[int]
    api_time: float | None = None


class _Subagent(msgspec.Struct, frozen=True):
    t: float
    duration_ms: float
    tool_tokens: int
    system_tokens: int
    requests: list[Any]
    subagent_type: str = "subagent"


class _Session(msgspec.Struct, frozen=True):
    id: str
    block_size: int
    tool_tokens: int
    system_tokens: int
    requests: list[Any]


@dataclass(slots=True)
class _Part:
    """A stage in the making: calls of one agent in a row."""

    agent: Agent
    name: str
    requests: list[_Request]
    waits: list[float]  # after each call, seconds
    after: list[str] = field(default_factory=list)


def import_sessions(files: list[Path], name: str) -> Workload:
    """Reads recorded sessions.

    Args:
        files: One session each.
        name: Name of the workload.

    Raises:
        InputError: One line with the file, the path in it and the value.
    """
    ids: dict[str, str] = {}
    workflows: dict[tuple[Any, ...], Workflow] = {}
    names: set[str] = set()
    of_task: list[int] = []
    call_counts: list[int] = []
    rows: list[tuple[int, int, int, int, float]] = []
    for file in files:
        try:
            session = _read_session(read_bytes(file))
            if session.id in ids:
                fail("$.id", f"the session is also in {ids[session.id]}", session.id)
            ids[session.id] = str(file)
            parts = _parts(session)
        except InputError as error:
            raise error if str(error).startswith(f"{file}:") else in_source(str(file), error) from None
        workflow = _workflow(parts, names, workflows)
        of_task.append(list(workflows.values()).index(workflow))
        for part in parts:
            call_counts.append(len(part.requests))
            rows.extend(_calls(part, session.block_size))
    if not ids:
        raise InputError(f"{name}: holds no recorded session")
    calls = np.array(rows, CALL)
    while calls["max_new"][0] < calls["output"].max():
        calls["max_new"] *= 2
    shapes = tuple(workflows.values())
    check_workflows(shapes)
    arrival = poisson_arrivals(np.random.SeedSequence(0), len(ids), DEFAULT_RATE)
    counts = [len(w.stages) for w in shapes]
    trace, task_ids = build_trace(list(ids), arrival, np.array(of_task), counts, np.array(call_counts), calls)
    return Workload(name, shapes, trace, task_ids, arrival_rate=DEFAULT_RATE)


def _read_session(data: bytes) -> _Session:
    plain = decode_json(data)
    if not isinstance(plain, dict):
        fail("$", "expected an object", plain)
    session = convert(plain, _Session)
    check_count(session.block_size, "$.block_size", 1)
    check_count(session.tool_tokens, "$.tool_tokens")
    check_count(session.system_tokens, "$.system_tokens")
    return session


def _requests(plain: list[Any], prefix: int, path: str) -> tuple[list[_Request], list[tuple[str, _Subagent]]]:
    """Returns the calls in the order they were sent, and the subagents with their paths."""
    calls: list[_Request] = []
    subagents: list[tuple[str, _Subagent]] = []
    for k, entry in enumerate(plain):
        at = f"{path}[{k}]"
        if isinstance(entry, dict) and entry.get("type") == "subagent":
            sub = convert(entry, _Subagent, at)
            _check_time(sub.t, f"{at}.t")
            _check_time(sub.duration_ms / 1000, f"{at}.duration_ms")
            check_count(sub.tool_tokens, f"{at}.tool_tokens")
            check_count(sub.system_tokens, f"{at}.system_tokens")
            subagents.append((at, sub))
            continue
        call = convert(entry, _Request, at)
        _check_time(call.t, f"{at}.t")
        check_count(call.out, f"{at}.out")
        check_count(call.prompt, f"{at}.in")
        if call.prompt < prefix:
            fail(f"{at}.in", f"must be at least tool_tokens + system_tokens {prefix}", call.prompt)
        if call.api_time is not None:
            _check_time(call.api_time, f"{at}.api_time")
        calls.append(call)
    if not calls:
        fail(path, "must hold at least one call of the agent itself", [])
    calls.sort(key=lambda call: call.t)
    return calls, subagents


def _check_time(seconds: float, path: str) -> None:
    check_seconds(seconds, path)
    if seconds > _LONGEST_S:
        fail(path, f"must be at most {_LONGEST_S:.0e} s", seconds)


def _ends(calls: list[_Request]) -> list[float]:
    """Returns when each call ended, on the session's clock; the estimated ones not after the next call."""
    known = [call for call in calls if call.api_time is not None and call.out > 0]
    tokens = sum(call.out for call in known)
    rate = sum(call.api_time or 0.0 for call in known) / tokens if tokens else _S_PER_OUTPUT_TOKEN
    ends = []
    for k, call in enumerate(calls):
        if call.api_time is not None:
            ends.append(call.t + call.api_time)
        else:
            guess = call.t + call.out * rate
            ends.append(min(guess, calls[k + 1].t) if k + 1 < len(calls) else guess)
    return ends


def _waits(calls: list[_Request], ends: list[float]) -> list[float]:
    """Returns the wait after each call until the next one was sent, 0 after the last."""
    waits = [_seconds(calls[k + 1].t - ends[k]) for k in range(len(calls) - 1)]
    return [*waits, 0.0]


def _seconds(value: float) -> float:
    """Returns a wait without the noise of subtraction (microseconds are kept), at least 0."""
    return max(round(value, 6), 0.0)


def _parts(session: _Session) -> list[_Part]:
    """Cuts a session into stages, in topological order."""
    prefix = session.tool_tokens + session.system_tokens
    calls, subagents = _requests(session.requests, prefix, "$.requests")
    sent = [call.t for call in calls]
    ends = _ends(calls)
    waits = _waits(calls, ends)
    # A boundary k lies before main call k. Subagents start at one and are waited for at a later one or the same.
    children: list[tuple[int, int, float, float, _Part]] = []
    numbers: dict[str, int] = {}
    for at, sub in subagents:
        own, nested = _requests(sub.requests, sub.tool_tokens + sub.system_tokens, f"{at}.requests")
        if nested:
            fail(nested[0][0], "a subagent within a subagent is not supported", "subagent")
        begin = max(sub.t - sub.duration_ms / 1000, 0.0)
        start = bisect.bisect_right(sent, begin)
        stop = max(bisect.bisect_left(sent, sub.t - _JOIN_SLACK_S), start)
        numbers[sub.subagent_type] = numbers.get(sub.subagent_type, 0) + 1
        own_ends = _ends(own)
        own_waits = _waits(own, own_ends)
        own_waits[-1] = _seconds(sub.duration_ms / 1000 - own_ends[-1])
        agent = _agent(own[0].model, sub.tool_tokens, sub.system_tokens)
        part = _Part(agent, f"{sub.subagent_type}-{numbers[sub.subagent_type]}", own, own_waits)
        children.append((start, stop, begin, sub.t, part))
    cuts = {c[0] for c in children} | {c[1] for c in children}
    cuts |= {k for k in range(1, len(calls)) if calls[k].model != calls[k - 1].model}
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < len(calls)), len(calls)]
    parts: list[_Part] = []
    previous: _Part | None = None
    for number, (first, last) in enumerate(itertools.pairwise(bounds), 1):
        agent = _agent(calls[first].model, session.tool_tokens, session.system_tokens)
        name = "main" if len(bounds) == 2 else f"main-{number}"
        part = _Part(agent, name, calls[first:last], waits[first:last])
        starting = [c for c in children if c[0] == first]
        parts.extend(c[4] for c in starting)
        for c in starting:
            c[4].after = [previous.name] if previous else []
        waited = [c for c in children if c[1] == first]
        if previous and not any(c in starting for c in waited):
            part.after.append(previous.name)
        part.after.extend(c[4].name for c in waited)
        if previous:
            _share_wait(previous, ends[first - 1], sent[first], starting, waited)
        parts.append(part)
        previous = part
    assert previous is not None
    late = [c for c in children if c[0] == len(calls)]  # started after the last main call
    for c in late:
        c[4].after = [previous.name]
        previous.waits[-1] = _seconds(min(other[2] for other in late) - ends[-1])
    parts.extend(c[4] for c in late)
    return parts


def _share_wait(
    previous: _Part,
    ended: float,
    sent: float,
    starting: list[tuple[int, int, float, float, _Part]],
    waited: list[tuple[int, int, float, float, _Part]],
) -> None:
    """Splits the wait between two main stages among the first of them and the subagent that was waited for longest."""
    if starting:
        previous.waits[-1] = _seconds(min(c[2] for c in starting) - ended)
    if waited:
        longest = max(waited, key=lambda c: c[3])
        if longest[3] > ended:
            longest[4].waits[-1] = _seconds(longest[4].waits[-1] + max(sent - longest[3], 0.0))
            if not starting:
                previous.waits[-1] = 0.0


def _agent(model: str, tool_tokens: int, system_tokens: int) -> Agent:
    return Agent(f"{model} {tool_tokens}+{system_tokens}", tool_tokens + system_tokens)


def _workflow(parts: list[_Part], names: set[str], known: dict[tuple[Any, ...], Workflow]) -> Workflow:
    """Returns the workflow of a session; sessions of one shape with the same agents share one."""
    key = tuple((part.name, part.agent.name, tuple(part.after)) for part in parts)
    if key in known:
        return known[key]
    main = next(part for part in parts if part.name.startswith("main"))
    others = sum(not part.name.startswith("main") for part in parts)
    name = main.agent.name + (f" with {others} subagents" if others else "")
    number = 1
    while name in names:
        number += 1
        name = f"{main.agent.name} with {others} subagents #{number}"
    names.add(name)
    agents = tuple({part.agent.name: part.agent for part in parts}.values())
    stages = tuple(Stage(part.name, part.agent.name, tuple(part.after)) for part in parts)
    known[key] = Workflow(name, agents, stages)
    return known[key]


def _calls(part: _Part, block_size: int) -> list[tuple[int, int, int, int, float]]:
    """Returns the CALL rows of a stage."""
    rows = []
    prefix = part.agent.prefix_tokens
    earlier: list[_Request] = []
    left = 0
    for request, wait in zip(part.requests, part.waits, strict=True):
        suffix, output = request.prompt - prefix, max(request.out, 1)
        common = max((common_length(request.hash_ids, other.hash_ids) for other in earlier), default=0) * block_size
        history = max(min(common - prefix, suffix, left), 0)
        rows.append((suffix, history, output, _MAX_NEW, wait))
        earlier.append(request)
        left = max(left, suffix + output)
    return rows
