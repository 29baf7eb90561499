"""A snapshot as the kernels' arrays, and the kernels' choice as a decision."""

import struct
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice, empty_choice
from topas_env._core.layout import (
    DONE,
    HISTORY_LIMIT,
    READY,
    REQUEST,
    RUNNING,
    STAT,
    TASK_STAGE,
    TOOL,
    WAITING,
    View,
    empty_view,
)
from topas_env._decision import Decision
from topas_env._snapshot import EngineCosts, RequestState, Snapshot, StageService, TaskState
from topas_env._topology import Topology, topology

__all__ = ["Packed", "arrival_rates", "pack", "write_costs"]

_STATUS = {"waiting": WAITING, "ready": READY, "running": RUNNING, "tool": TOOL, "done": DONE}


class Packed(NamedTuple):
    """A snapshot as arrays, with the names behind the rows.

    Attributes:
        v: The arrays.
        agent_names: Names in the order of agent indices.
        request_ids: Ids in the order of request rows.
    """

    v: View
    agent_names: tuple[str, ...]
    request_ids: Sequence[str]

    def room(self) -> Choice:
        """Returns an empty choice with room for any decision on this snapshot."""
        return empty_choice(len(self.agent_names), len(self.request_ids))

    def decision(self, choice: Choice) -> Decision:
        """Returns a kernel's choice as names and ids."""
        info = choice.info[0]
        n = int(info["n_kept"]) + int(info["n_admitted"])
        return Decision(
            tuple(name for name, inside in zip(self.agent_names, choice.prefixes.tolist(), strict=True) if inside),
            tuple(self.request_ids[row] for row in choice.rows[:n].tolist()),
        )

    def choice(self, decision: Decision) -> Choice:
        """Returns a feasible decision as a kernel's choice, without its score."""
        out = self.room()
        index = {name: i for i, name in enumerate(self.agent_names)}
        rows = {name: i for i, name in enumerate(self.request_ids)}
        for name in decision.prefixes:
            out.prefixes[index[name]] = 1
        chosen = [rows[name] for name in decision.requests]
        status = self.v.requests["status"]
        wanted = set(chosen)
        kept = [row for row in self.v.running[: int(self.v.head[0]["n_running"])].tolist() if row in wanted]
        admitted = [row for row in chosen if status[row] != RUNNING]
        out.rows[: len(kept) + len(admitted)] = kept + admitted
        out.info["n_kept"] = len(kept)
        out.info["n_admitted"] = len(admitted)
        out.info["n_preempted"] = int(self.v.head[0]["n_running"]) - len(kept)
        return out


def write_costs(v: View, costs: EngineCosts, *, budget: int, max_running: int) -> None:
    """Writes the believed costs of the engine into the head of a view."""
    head = v.head
    head["budget"] = min(budget, 2**62)
    head["max_running"] = min(max_running, 2**62)
    head["prefill_base"] = costs.prefill_base_s
    head["prefill_token"] = costs.prefill_s_per_token
    head["decode_token"] = costs.decode_s_per_token
    head["load_token"] = costs.load_s_per_token
    head["offload_token"] = costs.offload_s_per_token
    head["rebuild_token"] = costs.rebuild_s_per_token
    head["reserve_ratio"] = costs.reserve_ratio
    head["reserve_cap"] = -1 if costs.reserve_cap_tokens is None else costs.reserve_cap_tokens


def pack(snapshot: Snapshot) -> Packed:
    """Returns the arrays of a snapshot, which must be valid (`Snapshot.from_dict` checks it).

    Rows of requests and tasks are in snapshot order; ids become ranks in their sorted order. Records are frozen, so
    what a snapshot shares with the one that was packed last (a live one shares most of it) is not packed again.
    """
    t = topology(snapshot.workflows)
    memo = _memo[0]
    requests, tasks = snapshot.requests, snapshot.tasks
    v = empty_view(
        agents=len(t.agent_names),
        workflows=len(t.workflows),
        stages=0,
        edges=0,
        depth=t.depth,
        tasks=len(tasks),
        requests=len(requests),
    )
    service = _pack_service(t, snapshot.service, memo)
    stages = _pack_stages(t, tasks, memo)
    rows = _pack_requests(t, requests, tasks, memo)
    _memo[0] = _Memo(service, stages.known, rows.known)
    v = v._replace(
        workflows=t.workflows, preds=t.preds, succs=t.succs, topo=t.topo, stages=service.stages.copy(),
        stats=service.stats.copy(), totals=service.totals.copy(), ordered=service.ordered.copy(),
        calls=service.calls.copy(), call_outputs=service.call_outputs.copy(), task_stages=stages.array,
        requests=rows.array,
    )  # fmt: skip
    write_costs(v, snapshot.engine, budget=snapshot.kv_budget_tokens, max_running=snapshot.max_running_requests)
    v.head["time"] = snapshot.time_s
    v.head["age_scale"] = snapshot.age_scale_s
    v.agents["prefix"] = t.prefix
    for name in snapshot.resident:
        v.agents["resident"][t.agent_index[name]] = 1
    for prefix in snapshot.cached:
        i = t.agent_index[prefix.agent]
        v.agents["cached"][i] = 1
        v.agents["last_used"][i] = prefix.last_used_s
    _pack_tasks(v, t, tasks)
    _link(v)
    return Packed(v, t.agent_names, [request.id for request in requests])


def arrival_rates(snapshot: Snapshot) -> NDArray[np.float64]:
    """Returns each workflow's tasks a second by the snapshot's history, float64 (n_workflows,), 0 without one."""
    rates = np.zeros(len(snapshot.workflows))
    if snapshot.history is not None:
        index = topology(snapshot.workflows).workflow_index
        for name, rate in snapshot.history.arrivals_per_s.items():
            rates[index[name]] = rate
    return rates


class _Service(NamedTuple):
    """The statistics of all stages as arrays, and the records that they were made from."""

    t: Topology
    entries: Sequence[StageService]
    stages: NDArray[Any]
    stats: NDArray[Any]
    totals: NDArray[np.float64]
    ordered: NDArray[np.float64]
    calls: NDArray[np.float64]
    call_outputs: NDArray[np.int64]


class _Rows(NamedTuple):
    """Packed rows, and for each record by its id() the record, its topology, its bytes and its workflow."""

    array: NDArray[Any]
    known: dict[int, tuple[Any, Topology, bytes, int]]


class _Memo(NamedTuple):
    """What the last call of `pack` made."""

    service: _Service | None
    tasks: dict[int, tuple[Any, Topology, bytes, int]]
    requests: dict[int, tuple[Any, Topology, bytes, int]]


_memo = [_Memo(None, {}, {})]


def _layout(dtype: np.dtype[Any]) -> str:
    """Returns the format of `struct` for an aligned record."""
    codes = {"i8": "q", "f8": "d"}
    return "".join(codes[f"{field[0].kind}{field[0].itemsize}"] for field in (dtype.fields or {}).values())


_PACK_REQUEST = struct.Struct(_layout(REQUEST)).pack
_PACK_STAGE = struct.Struct(_layout(TASK_STAGE)).pack


def _pack_service(t: Topology, entries: Sequence[StageService], memo: _Memo) -> _Service:
    last = memo.service
    if last is not None and last.t is t and len(last.entries) == len(entries):
        if last.entries is entries:
            return last
        result = last._replace(
            entries=entries, stages=last.stages.copy(), stats=last.stats.copy(), totals=last.totals.copy(),
            ordered=last.ordered.copy(), calls=last.calls.copy(), call_outputs=last.call_outputs.copy(),
        )  # fmt: skip
        changed = [(old, new) for old, new in zip(last.entries, entries, strict=True) if old is not new]
        if all((old.workflow, old.stage) == (new.workflow, new.stage) for old, new in changed):
            for _, entry in changed:
                _write_service(result, entry)
            return result
    n = len(t.stages)
    shape = n, HISTORY_LIMIT
    stats = np.zeros(n, STAT)
    stats["mean_call"] = np.nan
    result = _Service(
        t, entries, t.stages.copy(), stats, np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    )
    for entry in entries:
        _write_service(result, entry)
    return result


def _write_service(out: _Service, entry: StageService) -> None:
    t = out.t
    w = t.workflow_index[entry.workflow]
    s = int(t.workflows[w]["stage0"]) + t.stage_index[w][entry.stage]
    out.stages["profile"][s] = np.nan if entry.profile_s is None else entry.profile_s
    n = len(entry.stage_totals_s)
    calls = len(entry.call_s)
    outputs = len(entry.call_output_tokens)
    out.totals[s, :n] = entry.stage_totals_s
    out.ordered[s, :n] = sorted(entry.stage_totals_s)
    out.calls[s, :calls] = entry.call_s
    out.call_outputs[s, :outputs] = entry.call_output_tokens
    # One addition after another, as the kernels do: Python's own sum rounds otherwise from 3.12 on.
    mean = reduce(add, entry.call_s, 0.0) / calls if calls else np.nan
    out.stats[s] = (n, calls, n % HISTORY_LIMIT, calls % HISTORY_LIMIT, mean, 0)


def _pack_stages(t: Topology, tasks: Sequence[TaskState], memo: _Memo) -> _Rows:
    """Packs the stages of the tasks, without their requests."""
    known = memo.tasks
    fresh = {}
    for task in tasks:
        entry = known.get(id(task))
        if entry is None or entry[0] is not task or entry[1] is not t:
            w = t.workflow_index[task.workflow]
            position = t.stage_index[w]
            line = [_PACK_STAGE(WAITING, -1, 0.0)] * t.depth
            for state in task.stages:
                line[position[state.name]] = _PACK_STAGE(_STATUS[state.status], -1, state.service_s)
            entry = (task, t, b"".join(line), w)
        fresh[id(task)] = entry
    data = bytearray(b"".join([entry[2] for entry in fresh.values()]))
    return _Rows(np.frombuffer(data, TASK_STAGE).reshape(len(tasks), t.depth), fresh)


def _pack_tasks(v: View, t: Topology, tasks: Sequence[TaskState]) -> None:
    ranks = {name: i for i, name in enumerate(sorted([task.id for task in tasks]))}
    v.tasks["workflow"] = [t.workflow_index[task.workflow] for task in tasks]
    v.tasks["rank"] = [ranks[task.id] for task in tasks]
    v.tasks["arrival"] = [task.arrival_s for task in tasks]
    v.tasks["key"] = v.live[:] = np.arange(len(tasks))
    v.head["n_live"] = len(tasks)


def _pack_requests(t: Topology, requests: Sequence[RequestState], tasks: Sequence[TaskState], memo: _Memo) -> _Rows:
    """Packs the requests; what depends on the others (row of the task, rank) is filled in behind."""
    known = memo.requests
    task_rows = {task.id: i for i, task in enumerate(tasks)}
    owners = [task_rows[r.task] for r in requests]
    workflows = [t.workflow_index[task.workflow] for task in tasks]
    fresh = {}
    for r, owner in zip(requests, owners, strict=True):
        entry = known.get(id(r))
        w = workflows[owner]
        if entry is None or entry[0] is not r or entry[1] is not t or entry[3] != w:
            pos = t.stage_index[w][r.stage]
            stage = int(t.workflows[w]["stage0"]) + pos
            data = _PACK_REQUEST(
                0, pos, stage, int(t.stages[stage]["agent"]), RUNNING if r.status == "running" else READY, 0, r.ready_s,
                np.nan if r.admitted_s is None else r.admitted_s, r.suffix_tokens, r.cached_tokens, r.generated_tokens,
                r.max_new_tokens, r.admission_credit_s,
            )  # fmt: skip
            entry = (r, t, data, w)
        fresh[id(r)] = entry
    rows = np.frombuffer(bytearray(b"".join([entry[2] for entry in fresh.values()])), REQUEST)
    ids = [r.id for r in requests]
    ranks = {name: i for i, name in enumerate(sorted(ids))}
    rows["rank"] = [ranks[name] for name in ids]
    rows["task"] = owners
    return _Rows(rows, fresh)


def _link(v: View) -> None:
    """Lists the running and the ready requests, and notes the request of each stage that has one."""
    running = v.requests["status"] == RUNNING
    for out, name, chosen in ((v.running, "n_running", running), (v.ready, "n_ready", ~running)):
        rows = np.flatnonzero(chosen)
        out[: len(rows)] = rows
        v.head[name] = len(rows)
    v.task_stages["request"][v.requests["task"], v.requests["pos"]] = np.arange(len(v.requests))
