"""Snapshot: the rules of SNAPSHOT.md, each with the path and the value that the message must name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference.random_snapshots import random_snapshot
from topas_env import InputError, Snapshot, Stage, Workflow
from types_cases import Json, example

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "snapshots" / "snapshots.jsonl"


def put(path: str, value: Any) -> Callable[[Json], None]:
    """Returns a change that sets the value at a path such as `tasks.0.id`."""

    def change(obj: Any) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            obj = obj[step]
        obj[last] = value

    return change


def drop(path: str) -> Callable[[Json], None]:
    """Returns a change that takes out what is at a path."""

    def change(obj: Any) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            obj = obj[step]
        del obj[last]

    return change


def add(path: str, value: Any) -> Callable[[Json], None]:
    """Returns a change that appends to the list at a path."""

    def change(obj: Any) -> None:
        for step in path.split("."):
            obj = obj[int(step) if step.isdigit() else step]
        obj.append(value)

    return change


def both(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    """Returns several changes as one."""

    def change(obj: Json) -> None:
        for one in changes:
            one(obj)

    return change


NAN, INF = math.nan, math.inf
STAGE = {"name": "code", "agent": "B", "after": ["plan"]}

FAULTS = [
    # change, path in the message, what the message shows beside it
    (put("version", 2), "$.version", "2"),
    (put("version", True), "$.version", "true"),
    (put("extra", 1), "$.extra", "unknown field, got 1"),
    (put("engine.extra", [1]), "$.engine.extra", "unknown field, got [1]"),
    (put("requests.0.prompt", "x"), "$.requests[0].prompt", 'unknown field, got "x"'),
    (put("tasks.0.stages.0.sevice_s", 1), "$.tasks[0].stages[0].sevice_s", "did you mean service_s"),
    (drop("time_s"), "$.time_s", "missing"),
    (drop("requests.1.admitted_s"), "$.requests[1].admitted_s", "missing"),
    (drop("engine.reserve_cap_tokens"), "$.engine.reserve_cap_tokens", "missing"),
    (put("time_s", "120"), "$.time_s", '"120"'),
    (put("time_s", True), "$.time_s", "true"),
    (put("time_s", None), "$.time_s", "null"),
    (put("time_s", NAN), "$.time_s", "NaN"),
    (put("time_s", INF), "$.time_s", "Infinity"),
    (put("kv_budget_tokens", 32000.0), "$.kv_budget_tokens", "32000.0"),
    (put("kv_budget_tokens", True), "$.kv_budget_tokens", "true"),
    (put("kv_budget_tokens", -1), "$.kv_budget_tokens", "-1"),
    (put("kv_budget_tokens", 2**70), "$.kv_budget_tokens", str(2**70)),
    (put("max_running_requests", 0), "$.max_running_requests", "0"),
    (put("engine", []), "$.engine", "[]"),
    (put("engine.prefill_base_s", -0.1), "$.engine.prefill_base_s", "-0.1"),
    (put("engine.prefill_s_per_token", 0), "$.engine.prefill_s_per_token", "0.0"),
    (put("engine.decode_s_per_token", 0.0), "$.engine.decode_s_per_token", "0.0"),
    (put("engine.load_s_per_token", 0.0), "$.engine.load_s_per_token", "0.0"),
    (put("engine.rebuild_s_per_token", 0.0), "$.engine.rebuild_s_per_token", "0.0"),
    (put("engine.offload_s_per_token", -1e-9), "$.engine.offload_s_per_token", "-1e-09"),
    (put("engine.reserve_ratio", -0.5), "$.engine.reserve_ratio", "-0.5"),
    (put("engine.reserve_ratio", 1e300), "$.requests[0].max_new_tokens", "300"),
    (put("engine.reserve_cap_tokens", -1), "$.engine.reserve_cap_tokens", "-1"),
    (put("age_scale_s", 0.0), "$.age_scale_s", "0.0"),
    (put("workflows.0.agents.1.name", "A"), "$.workflows[0].agents[1].name", '"A"'),
    (put("workflows.0.agents.0.prefix_tokens", -1), "$.workflows[0].agents[0].prefix_tokens", "-1"),
    (put("workflows.0.stages", []), "$.workflows[0].stages", "[]"),
    (put("workflows.0.stages.1.agent", "C"), "$.workflows[0].stages[1].agent", '"C"'),
    (put("workflows.0.stages.1.after", ["pln"]), "$.workflows[0].stages[1].after[0]", '"pln"'),
    (put("workflows.0.stages.1.after", ["plan", "plan"]), "$.workflows[0].stages[1].after[1]", '"plan"'),
    (put("workflows.0.stages.1.after", ["code"]), "$.workflows[0].stages[1].after", '"code after code"'),
    (put("workflows.0.stages.0.after", ["code"]), "$.workflows[0].stages[0].after", '"plan after code after plan"'),
    (add("workflows.0.stages", STAGE), "$.workflows[0].stages[2].name", '"code"'),
    (add("workflows", example()["workflows"][0]), "$.workflows[1].name", '"dag-4"'),
    (
        add("workflows", {"name": "x", "agents": [{"name": "A", "prefix_tokens": 7}], "stages": []}),
        "$.workflows[1].stages",
        "[]",
    ),
    (
        add(
            "workflows",
            {
                "name": "x",
                "agents": [{"name": "A", "prefix_tokens": 7}],
                "stages": [{"name": "s", "agent": "A", "after": []}],
            },
        ),
        "$.workflows[1].agents[0].prefix_tokens",
        "7",
    ),
    (put("service.0.workflow", "dag-5"), "$.service[0].workflow", '"dag-5"'),
    (put("service.0.stage", "test"), "$.service[0].stage", '"test"'),
    (add("service", {"workflow": "dag-4", "stage": "plan"}), "$.service[1]", '["dag-4", "plan"]'),
    (put("service.0.profile_s", -1.0), "$.service[0].profile_s", "-1.0"),
    (put("service.0.profile_s", NAN), "$.service[0].profile_s", "NaN"),
    (put("service.0.call_s", None), "$.service[0].call_s", "null"),
    (put("service.0.call_s.1", INF), "$.service[0].call_s[1]", "Infinity"),
    (put("service.0.stage_totals_s.0", -3.0), "$.service[0].stage_totals_s[0]", "-3.0"),
    (put("service.0.call_output_tokens.0", 1.5), "$.service[0].call_output_tokens[0]", "1.5"),
    (put("service.0.call_output_tokens.0", -1), "$.service[0].call_output_tokens[0]", "-1"),
    (put("service.0.stage_totals_s", [1.0] * 257), "$.service[0].stage_totals_s", "257"),
    (put("resident", ["A", "C"]), "$.resident[1]", '"C"'),
    (put("resident", ["A", "A"]), "$.resident[1]", '"A"'),
    (put("resident", []), "$.resident", "'r1'"),
    (put("cached.0.agent", "C"), "$.cached[0].agent", '"C"'),
    (put("cached.0.agent", "A"), "$.cached[0].agent", '"A"'),
    (put("cached.0.last_used_s", INF), "$.cached[0].last_used_s", "Infinity"),
    (add("cached", {"agent": "B", "last_used_s": 1.0}), "$.cached[1].agent", '"B"'),
    (put("tasks.0.id", 7), "$.tasks[0].id", "7"),
    (put("tasks.0.id", "t2"), "$.tasks[1].id", '"t2"'),
    (put("tasks.0.id", "\ud800"), "$.tasks[0].id", '"\\ud800"'),
    (put("tasks.0.workflow", "dag-5"), "$.tasks[0].workflow", '"dag-5"'),
    (put("tasks.0.arrival_s", "late"), "$.tasks[0].arrival_s", '"late"'),
    (put("tasks.0.arrival_s", 120.5), "$.tasks[0].arrival_s", "120.5"),
    (put("tasks.0.stages.0.name", "test"), "$.tasks[0].stages[0].name", '"test"'),
    (put("tasks.0.stages.0.name", "code"), "$.tasks[0].stages[1].name", '"code"'),
    (drop("tasks.0.stages.1"), "$.tasks[0].stages", "'code'"),
    (put("tasks.0.stages.0.status", "paused"), "$.tasks[0].stages[0].status", '"paused"'),
    (put("tasks.0.stages.0.service_s", -1.0), "$.tasks[0].stages[0].service_s", "-1.0"),
    (put("tasks.0.stages.1.service_s", 1.0), "$.tasks[0].stages[1].service_s", "1.0"),
    (put("tasks.0.stages.1.status", "done"), "$.tasks[0].stages[1].status", '"done"'),
    (put("tasks.1.stages.1.status", "waiting"), "$.tasks[1].stages[1].status", '"waiting"'),
    (put("tasks.1.stages.1.status", "tool"), "$.tasks[1].stages[1].service_s", "0.0"),
    (
        both(put("tasks.1.stages.1.status", "tool"), put("tasks.1.stages.1.service_s", 2.0)),
        "$.requests[1].status",
        "'tool'",
    ),
    (put("tasks.0.stages.0.status", "ready"), "$.requests[0].status", '"running"'),
    (drop("requests.1"), "$.tasks[1].stages[1].status", '"ready"'),
    (put("requests.1.id", "r1"), "$.requests[1].id", '"r1"'),
    (put("requests.1.task", "t9"), "$.requests[1].task", '"t9"'),
    (put("requests.1.stage", "test"), "$.requests[1].stage", '"test"'),
    (add("requests", {**example()["requests"][1], "id": "r3"}), "$.requests[2].stage", '"code"'),
    (put("requests.0.status", "done"), "$.requests[0].status", '"done"'),
    (put("requests.0.ready_s", 99.0), "$.requests[0].ready_s", "99.0"),
    (put("requests.1.ready_s", 121.0), "$.requests[1].ready_s", "121.0"),
    (put("requests.0.admitted_s", None), "$.requests[0].admitted_s", "null"),
    (put("requests.0.admitted_s", 99.5), "$.requests[0].admitted_s", "99.5"),
    (put("requests.0.admitted_s", 120.5), "$.requests[0].admitted_s", "120.5"),
    (put("requests.1.admitted_s", 115.0), "$.requests[1].admitted_s", "115.0"),
    (put("requests.1.admission_credit_s", 1.0), "$.requests[1].admission_credit_s", "1.0"),
    (put("requests.0.admission_credit_s", NAN), "$.requests[0].admission_credit_s", "NaN"),
    (put("requests.0.suffix_tokens", 3.0), "$.requests[0].suffix_tokens", "3.0"),
    (put("requests.0.suffix_tokens", -5), "$.requests[0].suffix_tokens", "-5"),
    (put("requests.0.cached_tokens", 501), "$.requests[0].cached_tokens", "501"),
    (put("requests.0.generated_tokens", -1), "$.requests[0].generated_tokens", "-1"),
    (put("requests.0.max_new_tokens", -1), "$.requests[0].max_new_tokens", "-1"),
    (
        both(
            put("requests.1.suffix_tokens", 0), put("requests.1.cached_tokens", 0), put("requests.1.max_new_tokens", 0)
        ),
        "$.requests[1]",
        "d_r",
    ),
    # prefix 9000 + suffix 700 + reservation 22301 = 32001 tokens
    (put("requests.1.max_new_tokens", 22301), "$.requests[1]", "32001"),
    (put("history", None), "$.history", "null"),
    (put("history", {}), "$.history.arrivals_per_s", "missing"),
    (put("history.arrivals_per_s.dag-5", 1.0), "$.history.arrivals_per_s", '"dag-5"'),
    (put("history.arrivals_per_s.dag-4", 0.0), '$.history.arrivals_per_s["dag-4"]', "0.0"),
    (put("history.arrivals_per_s.dag-4", "x"), '$.history.arrivals_per_s["dag-4"]', '"x"'),
]


@pytest.mark.parametrize(("change", "path", "shown"), FAULTS, ids=[f"{i}-{f[1]}" for i, f in enumerate(FAULTS)])
def test_fault_is_one_line_with_file_path_and_value(change, path, shown):
    obj = example()
    change(obj)
    with pytest.raises(InputError) as caught:
        Snapshot.from_dict(obj, "snap.json")
    message = str(caught.value)
    assert message.startswith(f"snap.json: {path}: ")
    assert shown in message[len(f"snap.json: {path}: ") :]
    assert "\n" not in message
    assert len(message) < 300


def test_example_loads_and_is_typed():
    snapshot = Snapshot.from_dict(example())
    assert snapshot.workflows[0].stages[1] == Stage("code", "B", ("plan",))
    assert isinstance(snapshot.tasks[0].stages, tuple)
    assert snapshot.history is not None
    assert snapshot.history.arrivals_per_s == {"dag-4": 0.1}


LEGAL = {
    "no history": drop("history"),
    "integer seconds": put("time_s", 120),
    "zero where the rules allow it": both(
        put("engine.offload_s_per_token", 0.0), put("engine.prefill_base_s", 0), put("engine.reserve_ratio", 0)
    ),
    "service left out": put("service", []),
    "lists of service left out": put("service", [{"workflow": "dag-4", "stage": "plan", "profile_s": None}]),
    "256 observations": put("service.0.call_s", [1.0] * 256),
    "running requests over the budget": both(put("kv_budget_tokens", 11000), put("requests.1.suffix_tokens", 200)),
    "a ready request that just fits": put("requests.1.max_new_tokens", 22300),
    "idle resident prefix": both(put("resident", ["B", "A"]), put("cached", [])),
    "more generated than asked for": put("requests.0.generated_tokens", 301),
    "credit 0 of a running request": put("requests.0.admission_credit_s", 0.0),
    "everything at the same time": both(
        put("time_s", 100.0), put("requests.0.admitted_s", 100.0), put("requests.1.ready_s", 100.0)
    ),
    "stages of a task in another order": lambda obj: obj["tasks"][0]["stages"].reverse(),
    "a finished stage without service": put("tasks.1.stages.0.service_s", 0.0),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_variant_loads_and_comes_back(name):
    obj = example()
    LEGAL[name](obj)
    snapshot = Snapshot.from_dict(obj)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"", "not JSON"),
        (b'{"version": 1,\n "time_s": }', "line 2 column"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "expected object, got []"),
        (b'"x"', 'expected object, got "x"'),
        (b"1" * 5000, "$: "),
    ],
)
def test_text_that_is_no_snapshot(text, shown):
    with pytest.raises(InputError) as caught:
        Snapshot.from_json(text, "f.json")
    message = str(caught.value)
    assert message.startswith("f.json: $: ")
    assert shown in message
    assert "\n" not in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_cannot_hold_are_named_with_their_path(number):
    text = json.dumps(example()).replace('"arrival_s": 100.0', f'"arrival_s": {number}')
    with pytest.raises(InputError, match=r"^\$\.tasks\[0\]\.arrival_s: must be a finite number"):
        Snapshot.from_json(text)


def test_reserved_tokens_by_hand():
    # r1: suffix 500 + generated 120 + ceil(ratio * min(300 - 120, cap)).
    def d_r(ratio: float, cap: int | None) -> int:
        obj = example()
        obj["engine"]["reserve_ratio"], obj["engine"]["reserve_cap_tokens"] = ratio, cap
        snapshot = Snapshot.from_dict(obj)
        return snapshot.reserved_tokens(snapshot.requests[0])

    assert d_r(1.0, None) == 800
    assert d_r(0.0, None) == 620
    assert d_r(0.5, 101) == 671  # ceil(50.5) = 51
    assert d_r(1.0, 0) == 620
    # 0.7 * 180 is 126 in decimals, 125.99999999999999 in double precision: 126 after ceil.
    assert d_r(0.7, None) == 746
    # 0.1 * 3 is 0.30000000000000004; 1.1 * 100 is 110.00000000000001: ceil of the double-precision product is 111.
    assert d_r(1.1, 100) == 731


def test_reservation_is_not_negative_beyond_the_limit():
    obj = example()
    obj["requests"][0]["generated_tokens"] = 310
    snapshot = Snapshot.from_dict(obj)
    assert snapshot.reserved_tokens(snapshot.requests[0]) == 810


def test_random_snapshots_load():
    for seed in range(150):
        obj = random_snapshot(seed)
        snapshot = Snapshot.from_dict(obj)
        assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data folder ../shared/data is absent")
def test_shared_snapshots_load_and_come_back_unchanged():
    lines = SHARED.read_bytes().splitlines()
    assert len(lines) == 60
    for line in lines:
        snapshot = Snapshot.from_json(line)
        assert snapshot.to_dict() == json.loads(line)


def test_topological_order_and_depths():
    stages = (
        Stage("d", "A", ("b", "c")),
        Stage("b", "A", ("a",)),
        Stage("a", "A", ()),
        Stage("c", "A", ("a",)),
        Stage("e", "A", ("d", "a")),
    )
    workflow = Workflow("w", (), stages)
    # Only a (2) is free, then b (1) before c (3), then d (0), then e (4).
    assert workflow.order == (2, 1, 3, 0, 4)
    # Longest paths from a: d over b or c has 2 edges, e one more.
    assert workflow.depths == (2, 1, 0, 1, 3)


def test_order_of_a_cycle_is_an_error():
    workflow = Workflow("w", (), (Stage("a", "A", ("b",)), Stage("b", "A", ("a",))))
    with pytest.raises(InputError, match="cycle"):
        _ = workflow.order


def test_validate_names_the_given_path():
    with pytest.raises(InputError, match=r'^\$\.workflows\[3\]\.stages\[0\]\.agent: unknown agent, got "A"$'):
        Workflow("w", (), (Stage("a", "A", ()),)).validate("$.workflows[3]")
