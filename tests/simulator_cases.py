"""Random small workloads, engines and feasible decisions, and a walker that checks a world after every iteration."""

import math
import random
from typing import Any

import numba
import numpy as np

from topas_env import Decision, Snapshot, Workload, load_profile, load_workload
from topas_env._core.apply import apply
from topas_env._core.choice import Choice, empty_choice
from topas_env._core.engine import iterate
from topas_env._core.layout import READY, RUNNING, TOOL, WAITING
from topas_env._core.world import END, GROW, PAUSED, POINT, World
from topas_env._live_snapshot import LiveSnapshots
from topas_env._new_world import grow, new_world
from topas_env._profile import EngineProfile
from topas_env._simulate import _fill


@numba.njit(nogil=True, error_model="numpy")
def tick(w: World) -> int:
    """One round of the engine's loop."""
    return iterate(w)


@numba.njit(nogil=True, error_model="numpy")
def carry_out(w: World, choice: Choice) -> None:
    """A decision, without what follows it."""
    apply(w, choice)


def random_workload(seed: int, tasks: int) -> Workload:
    """One or two workflows over shared agents, stages of one to three calls with history and tool waits."""
    rng = random.Random(seed)
    agents = [{"name": name, "prefix_tokens": rng.randint(0, 60)} for name in "ABC"[: rng.randint(1, 3)]]
    flows: list[dict[str, Any]] = []
    for f in range(rng.randint(1, 2)):
        stages: list[dict[str, Any]] = []
        for i in range(rng.randint(1, 4)):
            names = [stage["name"] for stage in stages]
            after = [name for name in names if rng.random() < 0.5]
            stages.append({"name": f"s{i}", "agent": rng.choice(agents)["name"], "after": after})
        used = {stage["agent"] for stage in stages}
        flows.append({"name": f"w{f}", "agents": [a for a in agents if a["name"] in used], "stages": stages})
    rows = []
    time = 0.0
    for k in range(tasks):
        time += rng.choice([0.0, 0.0, rng.uniform(0, 3), rng.uniform(0, 60)])
        flow = rng.choice(flows)
        rows.append({
            "id": rng.choice(["t", "t-", "t1", "é"]) + str(k),
            "workflow": flow["name"],
            "arrival_s": time,
            "stages": [{"name": stage["name"], "calls": _calls(rng)} for stage in flow["stages"]],
        })  # fmt: skip
    return load_workload({"version": 1, "name": "random", "workflows": flows, "tasks": rows})


def _calls(rng: random.Random) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    left = 0
    for _ in range(rng.choice([1, 1, 2, 3])):
        suffix = rng.randint(1, 40)
        output = rng.randint(1, 25)
        calls.append({
            "suffix_tokens": suffix,
            "history_tokens": rng.randint(0, min(left, suffix)),
            "output_tokens": output,
            "max_new_tokens": output + rng.randint(0, 20),
            "tool_s": rng.choice([0.0, 0.0, rng.uniform(0.1, 20)]),
        })  # fmt: skip
        left = suffix + output
    return calls


def random_profile(seed: int, workload: Workload, **overrides: Any) -> EngineProfile:
    """An engine that the largest call just fits, or with room to spare."""
    rng = random.Random(seed)
    ratio = rng.choice([0.0, 0.0, 0.3, 1.0])
    calls = workload.trace.calls
    prefix = max((a.prefix_tokens for flow in workload.workflows for a in flow.agents), default=0)
    # d_r is largest before the first token or after the last one; 1 for each rounding.
    own = calls["suffix"] + np.maximum(calls["output"], 0) + np.ceil(ratio * calls["max_new"]).astype(int) + 1
    fields: dict[str, Any] = {
        "name": "random",
        "kv_budget_tokens": prefix + int(own.max()) + rng.choice([0, 0, 30, 200]),
        "max_running_requests": rng.choice([1, 2, 64]),
        "prefill_base_s": rng.choice([0.0, 0.02]),
        "prefill_s_per_token": 0.01,
        "chunk_tokens": rng.choice([1, 7, 4096]),
        "mixed_chunk": rng.random() < 0.3,
        "step_base_s": 0.05,
        "step_s_per_request": rng.choice([0.0, 0.01]),
        "step_s_per_kv_token": rng.choice([0.0, 0.001]),
        "decode_s_per_token": 0.06,
        "load_s_per_token": rng.choice([0.0004, 0.1]),
        "offload_s_per_token": rng.choice([0.0, 0.05]),
        "reserve_ratio": ratio,
        "reserve_cap_tokens": rng.choice([None, None, 5]),
        "rebuild": rng.choice(["prefill", "decode"]),
        "host_tier": rng.choice(["all", "none"]),
        "eviction": rng.choice(["lazy", "eager"]),
    }
    return load_profile({**fields, **overrides})


def random_decision(snapshot: Snapshot, rng: random.Random) -> Decision:
    """A feasible decision: it may preempt everything, hold everything back, or keep idle prefixes."""
    running = [r for r in snapshot.requests if r.status == "running"]
    ready = [r for r in snapshot.requests if r.status == "ready"]
    agent_of = {(w.name, s.name): s.agent for w in snapshot.workflows for s in w.stages}
    flow_of = {t.id: t.workflow for t in snapshot.tasks}
    prefix = {a.name: a.prefix_tokens for w in snapshot.workflows for a in w.agents}
    mode = rng.choice(["hold", "hold", "drop", "mix", "greedy", "greedy", "greedy"])
    if mode == "hold":
        return Decision(snapshot.resident, tuple(r.id for r in running))
    kept = [r for r in running if mode == "greedy" or (mode == "mix" and rng.random() < 0.7)]
    rng.shuffle(ready)
    chosen: set[str] = set()
    used = 0
    count = 0
    names: list[str] = []
    fits = True
    for request in kept + (ready if mode != "drop" else []):
        agent = agent_of[flow_of[request.task], request.stage]
        need = snapshot.reserved_tokens(request) + (0 if agent in chosen else prefix[agent])
        if used + need > snapshot.kv_budget_tokens or count + 1 > snapshot.max_running_requests:
            fits = fits and request.status == "ready"
            continue
        used += need
        count += 1
        chosen.add(agent)
        names.append(request.id)
    if not fits:  # what runs reserves more than there is: only to go on is legal
        return Decision(snapshot.resident, tuple(r.id for r in running))
    for agent in sorted(prefix):
        if agent not in chosen and rng.random() < 0.3 and used + prefix[agent] <= snapshot.kv_budget_tokens:
            chosen.add(agent)
            used += prefix[agent]
    return Decision(tuple(sorted(chosen)), tuple(names))


def check_world(w: World, before: float) -> None:
    """Checks everything that must hold between two iterations."""
    v, c = w.v, w.clock[0]
    head = v.head[0]
    assert c["time"] >= before
    running = v.running[: head["n_running"]].tolist()
    ready = v.ready[: head["n_ready"]].tolist()
    live = v.live[: head["n_live"]].tolist()
    assert len(set(running + ready)) == len(running) + len(ready)
    free = w.free_requests[: c["n_free_requests"]].tolist()
    assert sorted(free + running + ready) == list(range(len(v.requests)))
    assert sorted(w.free_tasks[: c["n_free_tasks"]].tolist() + live) == list(range(len(v.tasks)))
    assert c["n_unfinished"] == len(live)
    arrivals = v.tasks["key"][live].tolist()
    assert arrivals == sorted(arrivals)
    keys = [(float(v.requests[r]["ready"]), int(v.requests[r]["rank"])) for r in ready]
    assert keys == sorted(keys)
    held = 0
    counts = np.zeros(len(w.agents), int)
    for row in running + ready:
        r = v.requests[row]
        assert r["status"] == (RUNNING if row in running else READY)
        assert r["task"] in live
        shown = v.task_stages[r["task"], r["pos"]]
        assert shown["request"] == row
        assert shown["status"] == r["status"]
        assert 0 <= r["cached"] <= r["suffix"]
        assert r["generated"] <= w.requests[row]["output"]
        if row in running:
            held += int(r["suffix"] + r["generated"] + w.requests[row]["copy"])
            counts[r["agent"]] += 1
            assert v.agents[r["agent"]]["resident"] == 1
    assert len(running) <= w.physics[0]["max_running"]
    leaves = 0
    for row in live:
        n = v.workflows[v.tasks[row]["workflow"]]["n_stages"]
        for pos in range(n):
            shown, state = v.task_stages[row, pos], w.stages[row, pos]
            leaves += int(state["leaf"])
            if state["leaf"]:
                assert shown["status"] in (TOOL, READY)
                agent = v.stages[v.workflows[v.tasks[row]["workflow"]]["stage0"] + pos]["agent"]
                assert w.agents[agent]["in_memory"]  # a leaf never outlives the prefix that it hangs on
            assert (shown["status"] == WAITING) == (state["preds_left"] > 0)
            assert (shown["request"] >= 0) == (shown["status"] in (READY, RUNNING))
    assert leaves == c["leaf_tokens"]
    assert c["n_wanted"] == int(w.requests["wanted"][ready].sum()) == int(w.requests["wanted"].sum())
    prefixes = 0
    for a, agent in enumerate(v.agents):
        assert agent["resident"] + agent["cached"] == w.agents[a]["in_memory"]
        prefixes += int(agent["prefix"]) * int(w.agents[a]["in_memory"])
        assert counts[a] == w.agents[a]["n_running"]
    assert c["used"] == held + leaves + prefixes
    assert c["used"] <= w.physics[0]["budget"]
    assert c["n_cached"] == int(v.agents["cached"].sum())
    for s, stat in enumerate(v.stats):
        n = int(stat["n_totals"])
        assert v.ordered[s, :n].tolist() == sorted(v.totals[s, :n].tolist())


def walk(workload: Workload, profile: EngineProfile, seed: int, **options: Any) -> World:
    """Serves a workload with random decisions, one iteration after the other, and checks after each."""
    rng = random.Random(seed)
    w = new_world(workload, profile, tasks_capacity=1, requests_capacity=1, decisions_capacity=1, **options)
    snapshots = LiveSnapshots(workload)
    time = 0.0
    for _ in range(200_000):
        state = tick(w)
        if state == GROW:
            w = grow(w)
            continue
        check_world(w, time)
        time = float(w.clock[0]["time"])
        if state == END:
            check_end(w, workload)
            return w
        if state == PAUSED:
            continue
        assert state == POINT
        snapshot = snapshots.make(w)
        assert Snapshot.from_dict(snapshot.to_dict()) == snapshot  # every rule of SNAPSHOT.md holds
        choice = empty_choice(len(w.agents), len(w.v.requests))
        _fill(w, snapshot, random_decision(snapshot, rng), choice)
        carry_out(w, choice)
        check_world(w, time)
    raise AssertionError("the run does not end")


def check_end(w: World, workload: Workload) -> None:
    """Checks what must hold of a finished run."""
    trace, done = workload.trace, w.results
    assert not np.isnan(w.jct).any()
    assert math.isclose(w.jct.sum(), float(w.clock[0]["area"]), rel_tol=1e-9)
    for name in ("ready", "admitted", "readmitted", "first_token", "finish"):
        assert not np.isnan(done[name]).any()  # nothing was lost
    assert (done["ready"] <= done["admitted"]).all()
    assert (done["admitted"] <= done["readmitted"]).all()
    assert (done["admitted"] < done["first_token"]).all()
    assert (done["first_token"] <= done["finish"]).all()
    assert (done["readmitted"] < done["finish"]).all()
    for k in range(len(trace.arrival)):
        flow = workload.workflows[trace.workflow[k]]
        end: dict[str, float] = {}
        for pos in flow.order:
            first, last = trace.first_call[trace.stage0[k] + pos : trace.stage0[k] + pos + 2]
            stage = flow.stages[pos]
            ready = max([float(trace.arrival[k]), *(end[name] for name in stage.after)])
            for call in range(first, last):  # each call once, one after the other, after its predecessors
                assert done["ready"][call] == ready
                ready = float(done["finish"][call] + trace.calls["tool"][call])
            end[stage.name] = ready
        assert w.jct[k] == max(end.values()) - trace.arrival[k]


__all__ = [
    "carry_out",
    "check_end",
    "check_world",
    "random_decision",
    "random_profile",
    "random_workload",
    "tick",
    "walk",
]
