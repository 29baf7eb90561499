"""Workload files, version 1: round trips, every rule, and mangled files."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topas_env import InputError, load_workload, workload_names
from topas_env._core.trace import Trace

CALL = {"suffix_tokens": 500, "history_tokens": 0, "output_tokens": 120, "max_new_tokens": 300, "tool_s": 0.0}
SECOND = {"suffix_tokens": 700, "history_tokens": 620, "output_tokens": 50, "max_new_tokens": 300, "tool_s": 1.5}
CONTENT: dict[str, Any] = {
    "version": 1,
    "name": "my-app",
    "workflows": [
        {
            "name": "w",
            "agents": [{"name": "A", "prefix_tokens": 9000}, {"name": "B", "prefix_tokens": 100}],
            "stages": [{"name": "plan", "agent": "A", "after": []}, {"name": "code", "agent": "B", "after": ["plan"]}],
        }
    ],
    "tasks": [
        {
            "id": "t0",
            "workflow": "w",
            "arrival_s": 3.0,
            "stages": [{"name": "plan", "calls": [CALL]}, {"name": "code", "calls": [CALL, SECOND]}],
        },
        {
            "id": "s",
            "workflow": "w",
            "arrival_s": 0.5,
            "stages": [{"name": "code", "calls": [SECOND | {"history_tokens": 0}]}, {"name": "plan", "calls": [CALL]}],
        },
    ],
}


def same(a: Trace, b: Trace) -> bool:
    """Tells whether two traces have the same bytes."""
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(a, b, strict=True))


def write(path: Path, content: dict[str, Any]) -> Path:
    """Writes content as JSON, or as JSON lines where the name ends so."""
    if path.suffix == ".jsonl":
        header = {k: v for k, v in content.items() if k != "tasks"}
        path.write_text("".join(json.dumps(row) + "\n" for row in [header, *content["tasks"]]))
    else:
        path.write_text(json.dumps(content))
    return path


def edited(path: str, value: Any) -> dict[str, Any]:
    """Returns CONTENT with one value replaced, at a path like `tasks.0.stages.1.name`; `...` removes it."""
    content = copy.deepcopy(CONTENT)
    *parents, last = path.split(".")
    place: Any = content
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    key: Any = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return content


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_columns_of_a_small_file(tmp_path: Path, suffix: str) -> None:
    workload = load_workload(write(tmp_path / f"w{suffix}", CONTENT))
    # Sorted by arrival: s at 0.5, then t0. Stages in the workflow's order: plan (one call), code (one of s, two of t0).
    assert list(workload.task_ids) == ["s", "t0"]
    assert list(workload.trace.arrival) == [0.5, 3.0]
    assert list(workload.trace.rank) == [0, 1]
    assert list(workload.trace.stage0) == [0, 2]
    assert list(workload.trace.first_call) == [0, 1, 2, 3, 5]
    assert workload.trace.calls["suffix"].tolist() == [500, 700, 500, 500, 700]
    assert workload.trace.calls["history"].tolist() == [0, 0, 0, 0, 620]
    assert workload.trace.calls["output"].tolist() == [120, 50, 120, 120, 50]
    assert workload.trace.calls["max_new"].tolist() == [300] * 5
    assert workload.trace.calls["tool"].tolist() == [0.0, 1.5, 0.0, 0.0, 1.5]
    assert workload.arrival_rate is None


def test_dict_is_the_same_as_its_file(tmp_path: Path) -> None:
    a, b = load_workload(CONTENT), load_workload(write(tmp_path / "w.json", CONTENT))
    assert same(a.trace, b.trace)


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("name", workload_names())
def test_written_files_are_stable_to_the_byte(tmp_path: Path, name: str, suffix: str) -> None:
    drawn = load_workload(name, num_tasks=30, seed=8)
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    drawn.to_file(first)
    read = load_workload(first)
    read.to_file(second)
    assert first.read_bytes() == second.read_bytes()
    assert read.workflows == drawn.workflows
    assert list(read.task_ids) == list(drawn.task_ids)
    assert same(read.trace, drawn.trace)
    if suffix == ".json":
        assert len(json.loads(first.read_text())["tasks"]) == 30


def test_long_files_are_written_in_pieces(tmp_path: Path) -> None:
    drawn = load_workload("metagpt-sop", num_tasks=2500, seed=8)
    drawn.to_file(tmp_path / "a.jsonl")
    read = load_workload(tmp_path / "a.jsonl")
    assert same(read.trace, drawn.trace)


def test_first_tasks_and_other_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    load_workload("metagpt-sop", num_tasks=10, seed=1).to_file(path)
    whole = load_workload(path)
    few = load_workload(path, num_tasks=3)
    assert list(few.task_ids) == list(whole.task_ids[:3])
    assert few.trace.calls.tobytes() == whole.trace.calls[: len(few.trace.calls)].tobytes()
    with pytest.raises(InputError, match="num_tasks: 11 is more than the 10 recorded tasks"):
        load_workload(path, num_tasks=11)
    drawn = load_workload(path, arrival_rate=2.0, num_tasks=25, seed=4)
    again = load_workload(path, arrival_rate=2.0, num_tasks=25, seed=4)
    assert same(drawn.trace, again.trace)
    assert sorted(drawn.task_ids[:10]) == list(whole.task_ids)  # each once before any comes again
    assert len(set(drawn.task_ids)) == 25
    assert [name.split("#")[1] for name in drawn.task_ids[10:20]] == ["2"] * 10
    # Lengths go with the ids, ranks order as the ids do.
    position = list(whole.task_ids).index(drawn.task_ids[12].split("#")[0])
    ours, theirs = drawn.trace, whole.trace
    rows = slice(int(ours.first_call[ours.stage0[12]]), int(ours.first_call[ours.stage0[13]]))
    end = int(theirs.stage0[position]) + 5
    expected = theirs.calls[theirs.first_call[theirs.stage0[position]] : theirs.first_call[end]]
    assert ours.calls[rows].tobytes() == expected.tobytes()
    assert [drawn.task_ids[k] for k in np.argsort(ours.rank)] == sorted(drawn.task_ids)


FAULTS = [
    ("version", 2, "$.version: must be 1, got 2"),
    ("name", ..., "$.name: missing field"),
    ("extra", 1, "$.extra: unknown field, got 1"),
    ("workflows", [], "$.workflows: must hold at least one workflow, got []"),
    ("workflows.0.agents.0.prefix_tokens", -1, "$.workflows[0].agents[0].prefix_tokens: must be at least 0, got -1"),
    ("workflows.0.stages.1.agent", "C", '$.workflows[0].stages[1].agent: unknown agent, got "C"'),
    ("workflows.0.stages.0.after", ["code"], "$.workflows[0].stages[0].after: the stages must have no cycle"),
    ("tasks", [], "$.tasks: must hold at least one task, got []"),
    ("tasks.1.id", "t0", '$.tasks[1].id: the id occurs twice, got "t0"'),
    ("tasks.1.workflow", "v", '$.tasks[1].workflow: unknown workflow, got "v"'),
    ("tasks.1.arrival_s", -1.0, "$.tasks[1].arrival_s: must be at least 0, got -1.0"),
    ("tasks.1.arrival_s", float("nan"), "$.tasks[1].arrival_s: must be a finite number, got NaN"),
    ("tasks.1.arrival_s", "0", '$.tasks[1].arrival_s: expected float, got "0"'),
    ("tasks.1.colour", 3, "$.tasks[1].colour: unknown field, got 3"),
    ("tasks.0.stages.1", ..., "$.tasks[0].stages: stage 'code' is missing, got [\"plan\"]"),
    ("tasks.0.stages.1.name", "plan", '$.tasks[0].stages[1].name: the stage occurs twice, got "plan"'),
    ("tasks.0.stages.1.name", "test", "$.tasks[0].stages[1].name: unknown stage of workflow 'w', got \"test\""),
    ("tasks.0.stages.1.calls", [], "$.tasks[0].stages[1].calls: must hold at least one call, got []"),
    (
        "tasks.0.stages.1.calls.1.suffix_tokens",
        7.5,
        "$.tasks[0].stages[1].calls[1].suffix_tokens: expected int, got 7.5",
    ),
    (
        "tasks.0.stages.1.calls.1.suffix_tokens",
        True,
        "$.tasks[0].stages[1].calls[1].suffix_tokens: expected int, got true",
    ),
    (
        "tasks.0.stages.1.calls.1.suffix_tokens",
        -5,
        "$.tasks[0].stages[1].calls[1].suffix_tokens: must be at least 0, got -5",
    ),
    (
        "tasks.0.stages.1.calls.1.suffix_tokens",
        2**60,
        "calls[1].suffix_tokens: must be at most 2**53, got 1152921504606846976",
    ),
    ("tasks.0.stages.1.calls.1.suffix_tokens", 2**70, "calls[1].suffix_tokens: must be at most 2**53, got 11805916"),
    (
        "tasks.0.stages.1.calls.1.suffix_tokens",
        600,
        "calls[1].history_tokens: must be at most suffix_tokens 600, got 620",
    ),
    ("tasks.0.stages.1.calls.1.history_tokens", 621, "calls[1].history_tokens: must be at most the 620 tokens"),
    ("tasks.0.stages.0.calls.0.history_tokens", 1, "calls[0].history_tokens: must be at most the 0 tokens"),
    ("tasks.0.stages.0.calls.0.history_tokens", -1, "calls[0].history_tokens: must be at least 0, got -1"),
    ("tasks.0.stages.0.calls.0.output_tokens", 0, "calls[0].output_tokens: must be at least 1, got 0"),
    (
        "tasks.0.stages.0.calls.0.output_tokens",
        301,
        "calls[0].output_tokens: must be at most max_new_tokens 300, got 301",
    ),
    ("tasks.0.stages.0.calls.0.max_new_tokens", 0, "calls[0].max_new_tokens: must be at least 1, got 0"),
    ("tasks.0.stages.0.calls.0.tool_s", -0.5, "calls[0].tool_s: must be at least 0, got -0.5"),
    ("tasks.0.stages.0.calls.0.tool_s", ..., "calls[0].tool_s: missing field"),
    ("tasks.0.stages.0.calls.0.max_new_tokens", None, "calls[0].max_new_tokens: expected int, got null"),
]


@pytest.mark.parametrize(("path", "value", "message"), FAULTS)
def test_every_rule_names_file_path_and_value(tmp_path: Path, path: str, value: Any, message: str) -> None:
    content = edited(path, value)
    file = write(tmp_path / "w.json", content)
    with pytest.raises(InputError) as caught:
        load_workload(file)
    text = str(caught.value)
    assert text.startswith(f"{file}: $")
    assert message in text
    assert "\n" not in text
    with pytest.raises(InputError) as plain:
        load_workload(content)
    assert str(plain.value) == text.removeprefix(f"{file}: ")


def test_agents_of_one_name_have_one_prefix(tmp_path: Path) -> None:
    other = copy.deepcopy(CONTENT["workflows"][0]) | {"name": "v"}
    other["agents"][1]["prefix_tokens"] = 101
    content = CONTENT | {"workflows": [*CONTENT["workflows"], other]}
    with pytest.raises(InputError, match=r"\$\.workflows\[1\]\.agents\[1\]\.prefix_tokens: .*100.*, got 101"):
        load_workload(write(tmp_path / "w.json", content))
    with pytest.raises(InputError, match=r'\$\.workflows\[1\]\.name: workflow occurs twice, got "w"'):
        load_workload(CONTENT | {"workflows": CONTENT["workflows"] * 2})


def test_faults_of_json_lines_name_the_line(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", edited("tasks.1.arrival_s", -1.0))
    with pytest.raises(InputError) as caught:
        load_workload(file)
    assert str(caught.value) == f"{file}: line 3: $.arrival_s: must be at least 0, got -1.0"
    file.write_text(file.read_text().replace('"id": "s"', '"id": s'))
    with pytest.raises(InputError, match=r"w\.jsonl: line 3: \$: not JSON"):
        load_workload(file)
    file.write_text("")
    with pytest.raises(InputError, match=r"w\.jsonl: \$: must hold a header line"):
        load_workload(file)
    file.write_text(json.dumps({k: v for k, v in CONTENT.items() if k != "tasks"}) + "\n")
    with pytest.raises(InputError, match=r"w\.jsonl: \$\.tasks: must hold at least one task"):
        load_workload(file)


def test_malformed_task_is_found_by_its_place_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text(json.dumps(CONTENT, indent=1).replace('"arrival_s": 0.5', '"arrival_s": 0.5.5'))
    with pytest.raises(InputError, match=r"w\.json: \$: not JSON: .* at line \d+ column \d+"):
        load_workload(file)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written"):
        load_workload(CONTENT).to_file(tmp_path / "no" / "w.json")
    with pytest.raises(InputError, match="the folder holds no recorded session"):
        load_workload(tmp_path)


JUNK = st.sampled_from(
    [b"", b"-1", b"null", b"1e999", b"NaN", b'"', b"{}", b"[]", b"\xff\xfe", b"9" * 400, b"[" * 3000, b"\x00"]
)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_mangled_files_give_one_line_or_a_workload(tmp_path: Path, data: st.DataObject) -> None:
    file = write(tmp_path / f"w{data.draw(st.sampled_from(['.json', '.jsonl']))}", CONTENT)
    text = file.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.one_of(JUNK, st.binary(max_size=4))) + text[end:]
    file.write_bytes(text)
    try:
        workload = load_workload(file)
    except InputError as error:
        assert str(error).startswith(str(file))
        assert "\n" not in str(error)
        assert "\r" not in str(error)
        return
    assert (workload.trace.calls["history"] <= workload.trace.calls["suffix"]).all()
    assert (workload.trace.calls["output"] >= 1).all()
    assert (np.diff(workload.trace.arrival) >= 0).all()


def paths(value: Any, path: str = "") -> list[str]:
    """Returns the paths of all values inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path[1:]] if path else []
    for key, inner in items:
        found += paths(inner, f"{path}.{key}")
    return found


@pytest.mark.parametrize("value", [..., None, -1, 1.5, "x", [], {}, True, [[]], {"a": 1}])
def test_any_value_replaced_gives_one_line_or_a_workload(tmp_path: Path, value: Any) -> None:
    refused = 0
    for path in paths(CONTENT):
        content = edited(path, value)
        for suffix in (".json", ".jsonl"):
            if suffix == ".jsonl" and not isinstance(content.get("tasks"), list):
                continue
            file = write(tmp_path / f"w{suffix}", content)
            try:
                load_workload(file)
            except InputError as error:
                refused += 1
                assert str(error).startswith(str(file))
                assert "\n" not in str(error)
    assert refused > 50
