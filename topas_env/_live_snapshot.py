"""Snapshots of a simulated world, with what has not changed taken from the one before."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from topas_env._core.layout import HISTORY_LIMIT
from topas_env._core.world import World
from topas_env._new_world import request_order
from topas_env._snapshot import (
    CachedPrefix,
    EngineCosts,
    History,
    RequestState,
    Snapshot,
    StageService,
    StageState,
    TaskState,
)
from topas_env._topology import topology
from topas_env._workload import Workload

__all__ = ["LiveSnapshots", "live_snapshot", "request_ids"]

_STATUS: tuple[Any, ...] = ("waiting", "ready", "running", "tool", "done")


class LiveSnapshots:
    """Makes the snapshots of one run.

    Request ids are `TASK/POSITION-STAGE/CALL` (with another separator where a task id contains this one), so that they
    are ordered by task, then by the stage's position. `history.arrivals_per_s` is, by workflow, the number of arrivals
    so far over the time so far; a workflow without an arrival is left out, and before time 0 has passed all are.

    Args:
        workload: What is served.
    """

    def __init__(self, workload: Workload) -> None:
        t = topology(workload.workflows)
        self._names = t.agent_names
        self._flows = workload.workflows
        self._ids = workload.task_ids
        self._stages = [(flow.name, stage.name) for flow in workload.workflows for stage in flow.stages]
        self._stage_names = [tuple(stage.name for stage in flow.stages) for flow in workload.workflows]
        separator, _ = request_order(workload.task_ids)
        self._mark = separator or "/"
        self._ranked = not separator
        self._width = len(str(max(len(flow.stages) for flow in workload.workflows) - 1))
        self._service: list[tuple[int, StageService]] = []
        self._tasks: dict[int, tuple[bytes, bytes, TaskState]] = {}
        self._requests: dict[int, tuple[bytes, int, RequestState]] = {}
        self._engine: EngineCosts | None = None
        self._arrived = 0
        self._counts = [0] * len(workload.workflows)
        self._all_service: tuple[StageService, ...] = ()

    def request_id(self, w: World, row: int) -> str:
        """Returns the id of a request in use."""
        r = w.v.requests[row]
        key = int(w.v.tasks[int(r["task"])]["key"])
        pos = int(r["pos"])
        flow = int(w.trace.workflow[key])
        call = int(w.requests[row]["call"]) - int(w.trace.first_call[int(w.trace.stage0[key]) + pos])
        task = f"{int(w.trace.rank[key]):012d}/{self._ids[key]}" if self._ranked else self._ids[key]
        return f"{task}{self._mark}{pos:0{self._width}d}-{self._stage_names[flow][pos]}{self._mark}{call}"

    def make(self, w: World) -> Snapshot:
        """Returns the snapshot of a world at a scheduling point."""
        v = w.v
        head = v.head[0]
        if self._engine is None or self._engine.reserve_ratio != head["reserve_ratio"]:
            self._engine = EngineCosts(
                prefill_base_s=float(head["prefill_base"]),
                prefill_s_per_token=float(head["prefill_token"]),
                decode_s_per_token=float(head["decode_token"]),
                load_s_per_token=float(head["load_token"]),
                offload_s_per_token=float(head["offload_token"]),
                rebuild_s_per_token=float(head["rebuild_token"]),
                reserve_ratio=float(head["reserve_ratio"]),
                reserve_cap_tokens=None if head["reserve_cap"] < 0 else int(head["reserve_cap"]),
            )
        agents = v.agents.tolist()
        return Snapshot(
            version=1,
            time_s=float(head["time"]),
            kv_budget_tokens=int(head["budget"]),
            max_running_requests=int(head["max_running"]),
            engine=self._engine,
            age_scale_s=float(head["age_scale"]),
            workflows=self._flows,
            service=self._services(w),
            resident=tuple([name for name, a in zip(self._names, agents, strict=True) if a[1]]),
            cached=tuple([CachedPrefix(name, a[3]) for name, a in zip(self._names, agents, strict=True) if a[2]]),
            tasks=self._task_states(w),
            requests=self._request_states(w),
            history=self._history(w),
        )

    def _services(self, w: World) -> tuple[StageService, ...]:
        versions = w.v.stats["version"].tolist()
        if not self._service:
            self._service = [(-1, StageService(*names)) for names in self._stages]
        changed = False
        for s, version in enumerate(versions):
            if self._service[s][0] != version:
                self._service[s] = (version, self._stage_service(w, s))
                changed = True
        if changed:
            self._all_service = tuple([entry for _, entry in self._service])
        return self._all_service

    def _stage_service(self, w: World, s: int) -> StageService:
        stat = w.v.stats[s]
        profile = float(w.v.stages[s]["profile"])
        calls = int(stat["n_calls"]), int(stat["next_call"])
        return StageService(
            *self._stages[s],
            None if math.isnan(profile) else profile,
            _oldest_first(w.v.totals[s], int(stat["n_totals"]), int(stat["next_total"])),
            _oldest_first(w.v.calls[s], *calls),
            _oldest_first(w.v.call_outputs[s], *calls),
        )

    def _task_states(self, w: World) -> tuple[TaskState, ...]:
        v = w.v
        known = self._tasks
        rows = v.live[: int(v.head[0]["n_live"])]
        stages = v.task_stages[rows]
        tasks = v.tasks[rows]
        width = stages.itemsize * stages.shape[1]
        size = tasks.itemsize
        stage_bytes, task_bytes = stages.tobytes(), tasks.tobytes()
        result = []
        for i, row in enumerate(rows.tolist()):
            mine = stage_bytes[i * width : (i + 1) * width]
            whose = task_bytes[i * size : (i + 1) * size]
            entry = known.get(row)
            if entry is None or entry[0] != mine or entry[1] != whose:
                flow, _, arrival, key = tasks[i].item()
                names = self._stage_names[flow]
                states = tuple([
                    StageState(name, _STATUS[line[0]], line[2])
                    for name, line in zip(names, stages[i, : len(names)].tolist(), strict=True)
                ])  # fmt: skip
                entry = (mine, whose, TaskState(self._ids[key], self._flows[flow].name, arrival, states))
                known[row] = entry
            result.append(entry[2])
        return tuple(result)

    def _request_states(self, w: World) -> tuple[RequestState, ...]:
        v = w.v
        known = self._requests
        head = v.head[0]
        rows = np.concatenate((v.running[: int(head["n_running"])], v.ready[: int(head["n_ready"])]))
        requests = v.requests[rows]
        calls = w.requests["call"][rows].tolist()
        size = requests.itemsize
        data = requests.tobytes()
        result = []
        for i, row in enumerate(rows.tolist()):
            mine = data[i * size : (i + 1) * size]
            entry = known.get(row)
            if entry is None or entry[0] != mine or entry[1] != calls[i]:
                task, pos, _, _, status, _, ready, admitted, *sizes = requests[i].item()
                if entry is not None and entry[1] == calls[i]:
                    name, owner, stage = entry[2].id, entry[2].task, entry[2].stage
                else:
                    key = int(v.tasks[task]["key"])
                    owner = self._ids[key]
                    stage = self._stage_names[int(w.trace.workflow[key])][pos]
                    name = self.request_id(w, row)
                entry = (
                    mine,
                    calls[i],
                    RequestState(
                        name, owner, stage, _STATUS[status], ready, None if math.isnan(admitted) else admitted, *sizes
                    ),
                )  # fmt: skip
                known[row] = entry
            result.append(entry[2])
        return tuple(result)

    def _history(self, w: World) -> History:
        now = float(w.v.head[0]["time"])
        upto = int(w.clock[0]["next_arrival"])
        if upto < self._arrived:
            self._arrived, self._counts = 0, [0] * len(self._counts)
        for flow in w.trace.workflow[self._arrived : upto].tolist():
            self._counts[flow] += 1
        self._arrived = upto
        if now <= 0.0:
            return History({})
        pairs = zip(self._flows, self._counts, strict=True)
        return History({flow.name: count / now for flow, count in pairs if count})


def _oldest_first(ring: Any, count: int, following: int) -> tuple[Any, ...]:
    """Returns a ring of HISTORY_LIMIT places as a tuple, oldest value first."""
    if count < HISTORY_LIMIT:
        return tuple(ring[:count].tolist())
    return tuple(ring[following:].tolist() + ring[:following].tolist())


def live_snapshot(w: World, workload: Workload) -> Snapshot:
    """Returns the snapshot of a world at a scheduling point; for one now and then."""
    return LiveSnapshots(workload).make(w)


def request_ids(w: World, workload: Workload) -> Sequence[str]:
    """Returns the ids of the requests by row, as `live_snapshot` names them; empty where a row is not in use."""
    names = LiveSnapshots(workload)
    head = w.v.head[0]
    result = [""] * len(w.v.requests)
    for rows in (w.v.running[: int(head["n_running"])], w.v.ready[: int(head["n_ready"])]):
        for row in rows.tolist():
            result[row] = names.request_id(w, row)
    return result
