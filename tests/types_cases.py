"""Snapshots for the tests of the public records: the example of SNAPSHOT.md and a hypothesis strategy."""

import copy
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

EXAMPLE: Json = {
    "version": 1,
    "time_s": 120.0,
    "kv_budget_tokens": 32000,
    "max_running_requests": 64,
    "engine": {
        "prefill_base_s": 0.02,
        "prefill_s_per_token": 0.0002,
        "decode_s_per_token": 0.04,
        "load_s_per_token": 1.05e-5,
        "offload_s_per_token": 1.05e-5,
        "rebuild_s_per_token": 0.04,
        "reserve_ratio": 1.0,
        "reserve_cap_tokens": None,
    },
    "age_scale_s": 60.0,
    "workflows": [
        {
            "name": "dag-4",
            "agents": [{"name": "A", "prefix_tokens": 10600}, {"name": "B", "prefix_tokens": 9000}],
            "stages": [
                {"name": "plan", "agent": "A", "after": []},
                {"name": "code", "agent": "B", "after": ["plan"]},
            ],
        }
    ],
    "service": [
        {
            "workflow": "dag-4",
            "stage": "plan",
            "profile_s": 12.0,
            "stage_totals_s": [11.0, 13.5],
            "call_s": [11.0, 13.5],
            "call_output_tokens": [120, 140],
        }
    ],
    "resident": ["A"],
    "cached": [{"agent": "B", "last_used_s": 95.0}],
    "tasks": [
        {
            "id": "t1",
            "workflow": "dag-4",
            "arrival_s": 100.0,
            "stages": [
                {"name": "plan", "status": "running", "service_s": 3.2},
                {"name": "code", "status": "waiting", "service_s": 0.0},
            ],
        },
        {
            "id": "t2",
            "workflow": "dag-4",
            "arrival_s": 90.0,
            "stages": [
                {"name": "plan", "status": "done", "service_s": 9.0},
                {"name": "code", "status": "ready", "service_s": 0.0},
            ],
        },
    ],
    "requests": [
        {
            "id": "r1",
            "task": "t1",
            "stage": "plan",
            "status": "running",
            "ready_s": 100.0,
            "admitted_s": 101.5,
            "suffix_tokens": 500,
            "cached_tokens": 0,
            "generated_tokens": 120,
            "max_new_tokens": 300,
            "admission_credit_s": 12.0,
        },
        {
            "id": "r2",
            "task": "t2",
            "stage": "code",
            "status": "ready",
            "ready_s": 110.0,
            "admitted_s": None,
            "suffix_tokens": 700,
            "cached_tokens": 200,
            "generated_tokens": 0,
            "max_new_tokens": 400,
            "admission_credit_s": 0.0,
        },
    ],
    "history": {"arrivals_per_s": {"dag-4": 0.1}},
}


def example() -> Json:
    """Returns a fresh copy of the example of SNAPSHOT.md with a second task, which waits for admission."""
    return copy.deepcopy(EXAMPLE)


NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
SECONDS = st.floats(0, 1e9, allow_nan=False)
POSITIVE = st.floats(1e-12, 1e9, allow_nan=False)
TOKENS = st.integers(0, 10**6)


@st.composite
def workflows(draw: st.DrawFn, prefixes: dict[str, int]) -> Json:
    """A workflow over some of the given agents; edges go from earlier to later stages, listed in any order."""
    agents = draw(st.lists(st.sampled_from(sorted(prefixes)), min_size=1, max_size=4, unique=True))
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    stages = [
        {
            "name": name,
            "agent": draw(st.sampled_from(agents)),
            "after": draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else [],
        }
        for i, name in enumerate(names)
    ]
    return {
        "name": draw(NAMES),
        "agents": [{"name": name, "prefix_tokens": prefixes[name]} for name in agents],
        "stages": draw(st.permutations(stages)),
    }


@st.composite
def snapshots(draw: st.DrawFn) -> Json:
    """A legal snapshot as a JSON dict."""
    prefixes = draw(st.dictionaries(NAMES, TOKENS, min_size=1, max_size=5))
    flows = draw(st.lists(workflows(prefixes), min_size=1, max_size=3, unique_by=lambda w: w["name"]))
    known = sorted({agent["name"] for w in flows for agent in w["agents"]})
    now = draw(st.floats(-1e6, 1e6))
    engine = {
        "prefill_base_s": draw(SECONDS),
        "prefill_s_per_token": draw(POSITIVE),
        "decode_s_per_token": draw(POSITIVE),
        "load_s_per_token": draw(POSITIVE),
        "offload_s_per_token": draw(SECONDS),
        "rebuild_s_per_token": draw(POSITIVE),
        "reserve_ratio": draw(st.floats(0, 4)),
        "reserve_cap_tokens": draw(st.none() | TOKENS),
    }
    tasks: list[Json] = []
    requests: list[Json] = []
    resident = set(draw(st.lists(st.sampled_from(known), unique=True)))
    ids = draw(st.lists(NAMES, max_size=4, unique=True))
    for name in ids:
        flow = draw(st.sampled_from(flows))
        arrival = draw(st.floats(-1e6, now))
        states = _states(draw, flow)
        tasks.append({"id": name, "workflow": flow["name"], "arrival_s": arrival, "stages": list(states.values())})
        agent_of = {stage["name"]: stage["agent"] for stage in flow["stages"]}
        for state in states.values():
            if state["status"] in ("ready", "running"):
                request = _request(draw, f"r{len(requests)}", name, state, arrival, now)
                requests.append(request)
                if request["status"] == "running":
                    resident.add(agent_of[state["name"]])
    cached = draw(st.lists(st.sampled_from(known), unique=True))
    stages = [(w["name"], stage["name"]) for w in flows for stage in w["stages"]]
    snapshot = {
        "version": 1,
        "time_s": now,
        "kv_budget_tokens": 10**6 + 10**6 * 7,  # the largest prefix and d_r that are drawn
        "max_running_requests": draw(st.integers(1, 100)),
        "engine": engine,
        "age_scale_s": draw(POSITIVE),
        "workflows": flows,
        "service": [_service(draw, *pair) for pair in draw(st.lists(st.sampled_from(stages), unique=True))],
        "resident": sorted(resident),
        "cached": [{"agent": a, "last_used_s": draw(SECONDS)} for a in cached if a not in resident],
        "tasks": tasks,
        "requests": draw(st.permutations(requests)),
    }
    if draw(st.booleans()):
        names = st.sampled_from(sorted(w["name"] for w in flows))
        snapshot["history"] = {"arrivals_per_s": draw(st.dictionaries(names, POSITIVE))}
    return snapshot


def _states(draw: st.DrawFn, flow: Json) -> dict[str, Json]:
    """Statuses that fit the graph: a stage waits exactly if a predecessor is unfinished."""
    after = {stage["name"]: stage["after"] for stage in flow["stages"]}
    states: dict[str, Json] = {}
    while len(states) < len(after):
        name = next(n for n in after if n not in states and all(before in states for before in after[n]))
        if all(states[before]["status"] == "done" for before in after[name]):
            status = draw(st.sampled_from(["ready", "running", "tool", "done"]))
            service = draw(POSITIVE if status == "tool" else SECONDS)
        else:
            status, service = "waiting", 0.0
        states[name] = {"name": name, "status": status, "service_s": service}
    return states


def _request(draw: st.DrawFn, name: str, task: str, state: Json, arrival: float, now: float) -> Json:
    ready = draw(st.floats(arrival, now))
    running = state["status"] == "running"
    suffix = draw(st.integers(1, 10**6))
    return {
        "id": name,
        "task": task,
        "stage": state["name"],
        "status": state["status"],
        "ready_s": ready,
        "admitted_s": draw(st.floats(ready, now)) if running else None,
        "suffix_tokens": suffix,
        "cached_tokens": draw(st.integers(0, suffix)),
        "generated_tokens": draw(TOKENS),
        "max_new_tokens": draw(TOKENS),
        "admission_credit_s": draw(SECONDS) if running else 0.0,
    }


def _service(draw: st.DrawFn, workflow: str, stage: str) -> Json:
    return {
        "workflow": workflow,
        "stage": stage,
        "profile_s": draw(st.none() | SECONDS),
        "stage_totals_s": draw(st.lists(SECONDS, max_size=4)),
        "call_s": draw(st.lists(SECONDS, max_size=4)),
        "call_output_tokens": draw(st.lists(TOKENS, max_size=4)),
    }
