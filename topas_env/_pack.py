"""A snapshot as the kernels' arrays, and the kernels' choice as a decision."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from topas_env._core.choice import Choice, empty_choice
from topas_env._core.layout import DONE, HISTORY_LIMIT, READY, RUNNING, TOOL, WAITING, View, empty_view
from topas_env._decision import Decision
from topas_env._snapshot import EngineCosts, Snapshot
from topas_env._topology import Topology, topology

__all__ = ["Packed", "pack", "write_costs"]

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

    Rows of requests and tasks are in snapshot order; ids become ranks in their sorted order.
    """
    t = topology(snapshot.workflows)
    requests = snapshot.requests
    tasks = snapshot.tasks
    v = empty_view(
        agents=len(t.agent_names),
        workflows=len(t.workflows),
        stages=len(t.stages),
        edges=len(t.preds),
        depth=t.depth,
        tasks=len(tasks),
        requests=len(requests),
    )._replace(workflows=t.workflows, preds=t.preds, succs=t.succs, topo=t.topo)
    v.stages[:] = t.stages
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
    _pack_service(v, t, snapshot)
    _pack_tasks(v, t, snapshot)
    return Packed(v, t.agent_names, [request.id for request in requests])


def _pack_service(v: View, t: Topology, snapshot: Snapshot) -> None:
    v.stats["mean_call"] = np.nan
    for entry in snapshot.service:
        w = t.workflow_index[entry.workflow]
        s = int(t.workflows[w]["stage0"]) + t.stage_index[w][entry.stage]
        if entry.profile_s is not None:
            v.stages["profile"][s] = entry.profile_s
        n = len(entry.stage_totals_s)
        calls = len(entry.call_s)
        outputs = len(entry.call_output_tokens)
        v.totals[s, :n] = entry.stage_totals_s
        v.ordered[s, :n] = sorted(entry.stage_totals_s)
        v.calls[s, :calls] = entry.call_s
        v.call_outputs[s, :outputs] = entry.call_output_tokens
        # One addition after another, as the kernels do: Python's own sum rounds otherwise from 3.12 on.
        mean = reduce(add, entry.call_s, 0.0) / calls if calls else np.nan
        v.stats[s] = (n, calls, n % HISTORY_LIMIT, calls % HISTORY_LIMIT, mean, 0)


def _pack_tasks(v: View, t: Topology, snapshot: Snapshot) -> None:
    requests = snapshot.requests
    tasks = snapshot.tasks
    ranks = {name: i for i, name in enumerate(sorted(task.id for task in tasks))}
    task_row = {}
    rows = []
    states = []
    for i, task in enumerate(tasks):
        w = t.workflow_index[task.workflow]
        task_row[task.id] = (i, w)
        rows.append((w, ranks[task.id], task.arrival_s, i))
        position = t.stage_index[w]
        line = [(WAITING, -1, 0.0)] * t.depth
        for state in task.stages:
            line[position[state.name]] = (_STATUS[state.status], -1, state.service_s)
        states.append(line)
    if tasks:
        v.tasks[:] = rows
        v.task_stages[:] = states
    v.live[:] = np.arange(len(tasks))
    ranks = {name: i for i, name in enumerate(sorted(request.id for request in requests))}
    stage0 = t.workflows["stage0"].tolist()
    agents = t.stages["agent"].tolist()
    lines = []
    places: list[tuple[int, int]] = []
    running: list[int] = []
    ready: list[int] = []
    for i, r in enumerate(requests):
        row, w = task_row[r.task]
        pos = t.stage_index[w][r.stage]
        stage = stage0[w] + pos
        status = RUNNING if r.status == "running" else READY
        (running if status == RUNNING else ready).append(i)
        places.append((row, pos))
        lines.append(
            (
                row,
                pos,
                stage,
                agents[stage],
                status,
                ranks[r.id],
                r.ready_s,
                np.nan if r.admitted_s is None else r.admitted_s,
                r.suffix_tokens,
                r.cached_tokens,
                r.generated_tokens,
                r.max_new_tokens,
                r.admission_credit_s,
            )
        )
    if lines:
        v.requests[:] = lines
        at = np.array(places)
        v.task_stages["request"][at[:, 0], at[:, 1]] = np.arange(len(lines))
    v.running[: len(running)] = running
    v.ready[: len(ready)] = ready
    v.head["n_running"] = len(running)
    v.head["n_ready"] = len(ready)
    v.head["n_live"] = len(tasks)
