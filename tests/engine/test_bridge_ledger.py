"""Tags, workflows, prefixes and the ledger, without an engine."""

import json

from hypothesis import given
from hypothesis import strategies as st

from engine.fake_engine import FINISH_ABORT, FINISH_LENGTH, FakeReq
from topas_bridge._ledger import Ledger
from topas_bridge._prefixes import AgentPrefix, common_prefix
from topas_bridge._snapshot import SnapshotBuilder
from topas_bridge._tags import Tags, read_tags
from topas_bridge._workflows import WorkflowBook
from topas_env import Agent, Snapshot, Stage, Workflow
from topas_env._snapshot import EngineCosts

COSTS = EngineCosts(0.01, 0.001, 0.01, 0.001, 0.0, 0.001, 1.0, None)
CHAIN = Workflow("w", (Agent("A", 0), Agent("B", 0)), (Stage("a", "A", ()), Stage("b", "B", ("a",))))


def make_ledger(*workflows, **settings):
    return Ledger(WorkflowBook(list(workflows)), **{"page_size": 1, "freeze_after": 8, "ttl_s": 60.0, **settings})


def snapshot_of(ledger, now, budget=1000):
    snapshot, shown = SnapshotBuilder(ledger, COSTS, 60.0).build(now, budget=budget, slots=8, pinned=[], cached=[])
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot  # every rule holds
    return snapshot, shown


def tagged(rid, stage, task="t", prompt=range(100, 140), max_new=10, **more):
    return FakeReq(rid, prompt, max_new, {"workflow": "w", "task": task, "stage": stage, **more})


def end(req, kind=FINISH_LENGTH, tokens=10):
    req.output_ids = [1] * tokens
    req.finished_reason = kind()


def statuses(snapshot, task="t"):
    found = next(t for t in snapshot.tasks if t.id == task)
    return {stage.name: stage.status for stage in found.stages}


def test_tags_are_read_and_hints_too():
    tags = read_tags({"workflow": "w", "task": "t", "stage": "s", "last_call": False, "skip": ["x", "y"], "ttl_s": 3})
    assert (tags.workflow, tags.task, tags.stage, tags.last_call, tags.skip, tags.ttl_s) == (
        "w",
        "t",
        "s",
        False,
        ("x", "y"),
        3.0,
    )
    hints = read_tags(
        {"agent_hints": {"workflow_id": "run-7", "agent_id": "planner", "step_id": "s", "cache_ttl_ms": 1500}}
    )
    assert (hints.task, hints.agent, hints.stage, hints.ttl_s, hints.malformed) == ("run-7", "planner", "s", 1.5, 0)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "workflow",
                "task",
                "stage",
                "agent",
                "last_call",
                "end_task",
                "skip",
                "ttl_s",
                "prefix_tokens",
                "agent_hints",
            ]
        ),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(),
            st.lists(st.text()),
            st.dictionaries(st.text(), st.text()),
        ),
    )
)
def test_no_tags_raise(fields):
    tags = read_tags(fields)
    assert isinstance(tags, Tags)
    for name in ("workflow", "task", "stage", "agent"):
        value = getattr(tags, name)
        assert value is None or 0 < len(value) <= 128


def test_sizes_of_tags_are_bounded():
    tags = read_tags({"task": "x" * 129, "skip": ["s"] * 65, "ttl_s": 1e9, "prefix_tokens": -3, "stage": "\ud800"})
    assert tags == Tags(malformed=5)


def test_common_prefix():
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2


def test_prefix_is_learned_page_by_page_and_then_fixed():
    agent = AgentPrefix("A", page_size=4, freeze_after=3)
    static = list(range(10))
    assert agent.observe([*static, 50, 51, 52, 53], None)
    assert agent.length == 0  # one request tells nothing
    assert agent.observe([*static, 50, 61, 62], None)
    assert agent.length == 8  # 11 tokens are common, two pages of them
    assert agent.observe([*static, 70, 71], None)
    assert (agent.length, agent.frozen) == (8, True)  # 10 are common
    assert agent.observe([*static, 80], None)
    assert not agent.observe([9, 9, 9, 9, 9], None)  # another prompt: it stands alone
    assert agent.length == 8


def test_a_fixed_prefix_gives_way_after_three_strikes():
    agent = AgentPrefix("A", page_size=1, freeze_after=2)
    agent.observe([1, 2, 3, 4, 5], None)
    agent.observe([1, 2, 3, 4, 6], None)
    assert agent.length == 4
    other = [1, 2, 9, 9, 9]  # a timestamp in the prompt has changed
    assert [agent.observe(other, None) for _ in range(3)] == [False, False, True]
    assert agent.length == 2


def test_prefix_length_that_is_given_counts_and_never_covers_the_whole_prompt():
    agent = AgentPrefix("A", page_size=4, freeze_after=8)
    assert agent.observe(list(range(10)), 9)
    assert agent.length == 8
    assert AgentPrefix("B", page_size=1, freeze_after=8).observe([1, 2, 3], 100)


def test_workflow_definitions_are_bounded():
    book = WorkflowBook([])
    good = {
        "name": "w",
        "agents": [{"name": "A", "prefix_tokens": 3}],
        "stages": [{"name": "s", "agent": "A", "after": []}],
    }
    assert book.define(json.dumps(good))
    assert book.define(json.dumps(good))  # the same again
    assert not book.define(json.dumps({**good, "stages": [{"name": "other", "agent": "A", "after": []}]}))
    cycle = {**good, "name": "c", "stages": [{"name": "s", "agent": "A", "after": ["s"]}]}
    many = {**good, "name": "m", "stages": [{"name": f"s{i}", "agent": "A", "after": []} for i in range(65)]}
    for bad in (json.dumps(cycle), json.dumps(many), json.dumps({**good, "name": "-x"}), "{", "[" * 5000, "7"):
        assert not book.define(bad)
    assert sorted(book.by_name) == ["w"]


def test_a_task_goes_through_its_stages():
    ledger = make_ledger(CHAIN)
    first = tagged("r1", "a", last_call=False)
    assert len(ledger.look([first], [], 1.0).arrived) == 1
    snapshot, _ = snapshot_of(ledger, 1.0)
    assert statuses(snapshot) == {"a": "ready", "b": "waiting"}
    assert snapshot.requests[0].suffix_tokens == 40

    assert len(ledger.look([], [first], 2.0).admitted) == 1
    first.output_ids = [1] * 4
    snapshot, _ = snapshot_of(ledger, 3.0)
    assert statuses(snapshot) == {"a": "running", "b": "waiting"}
    request = snapshot.requests[0]
    assert (request.admitted_s, request.generated_tokens, snapshot.resident) == (2.0, 4, ("A",))

    end(first)
    assert len(ledger.look([], [], 5.0).finished) == 1  # service 5 - 2 = 3 s; a tool runs now
    snapshot, _ = snapshot_of(ledger, 5.0)
    assert statuses(snapshot) == {"a": "tool", "b": "waiting"}
    assert snapshot.tasks[0].stages[0].service_s == 3.0
    assert snapshot.service[0].call_s == (3.0,)
    assert snapshot.service[0].stage_totals_s == ()

    second = tagged("r2", "a", last_call=True)
    ledger.look([second], [], 6.0)
    ledger.look([], [second], 6.0)
    end(second)
    ledger.look([], [], 7.0)  # 1 s more: the stage had 4 s
    snapshot, _ = snapshot_of(ledger, 7.0)
    assert statuses(snapshot) == {"a": "done", "b": "tool"}  # nothing waits for b, its request is still to come
    assert snapshot.service[0].stage_totals_s == (4.0,)

    third = tagged("r3", "b")
    ledger.look([third], [], 8.0)
    ledger.look([], [third], 8.0)
    end(third)
    ledger.look([], [], 9.0)
    assert ledger.tasks == {}
    assert list(ledger.totals_s) == [5.0]
    assert ledger.finished_jct_s == [8.0]  # it arrived at 1


def test_preemption_and_abort():
    ledger = make_ledger(CHAIN)
    req = tagged("r1", "a")
    ledger.look([], [req], 1.0)
    call = next(iter(ledger.calls.values()))
    call.credit_s = 2.5
    req.output_ids = [1, 1]
    changes = ledger.look([req], [], 2.0)  # SGLang has retracted it
    assert [c.id for c in changes.retracted] == [call.id]
    snapshot, _ = snapshot_of(ledger, 2.0)
    assert (snapshot.requests[0].generated_tokens, snapshot.requests[0].admission_credit_s) == (2, 0.0)
    changes = ledger.look([], [], 3.0)  # the client has left the queue
    assert len(changes.aborted) == 1
    snapshot, _ = snapshot_of(ledger, 3.0)
    assert statuses(snapshot) == {"a": "tool", "b": "waiting"}
    ledger.look([], [], 100.0)  # nobody came back within the time to live of 60 s
    assert ledger.tasks == {}


def test_an_aborted_call_is_no_observation():
    ledger = make_ledger(CHAIN)
    req = tagged("r1", "a")
    ledger.look([], [req], 1.0)
    end(req, FINISH_ABORT)
    assert len(ledger.look([], [], 2.0).aborted) == 1
    assert ledger.statistics == {}


def test_what_does_not_fit_stands_alone():
    ledger = make_ledger(CHAIN)
    reqs = [
        tagged("r1", "a"),
        tagged("r2", "a"),  # a second request of a stage (n > 1)
        tagged("r3", "b"),  # its predecessor still has a request
        tagged("r4", "nowhere"),
        FakeReq("r5", range(30), 5),
        FakeReq("r6", range(30), 5, {"workflow": "unknown", "task": "t9", "stage": "a"}),
    ]
    ledger.look(reqs, [], 1.0)
    snapshot, shown = snapshot_of(ledger, 1.0)
    assert len(snapshot.requests) == len(shown) == 6
    assert sorted(task.workflow for task in snapshot.tasks) == ["-"] * 5 + ["w"]


def test_skipped_branches_and_the_word_that_a_task_is_over():
    ledger = make_ledger(CHAIN)
    ledger.look([tagged("r1", "a", skip=["b"])], [], 1.0)
    snapshot, _ = snapshot_of(ledger, 1.0)
    assert statuses(snapshot) == {"a": "ready", "b": "waiting"}
    call = next(iter(ledger.calls.values()))
    end(call.req)
    ledger.look([], [], 2.0)
    assert "t" not in ledger.tasks  # a is done, b will not come
    ledger = make_ledger(CHAIN)
    req = tagged("r1", "a", last_call=False)
    ledger.look([], [req], 1.0)
    end(req)
    ledger.look([], [], 2.0)
    assert "t" in ledger.tasks
    ledger.look([FakeReq("r2", [1], 1, {"task": "t", "end_task": True})], [], 3.0)
    assert "t" not in ledger.tasks


def test_an_oversized_request_is_left_to_sglang():
    ledger = make_ledger(CHAIN)
    ledger.look([tagged("r1", "a", max_new=5000), tagged("r2", "a", task="u")], [], 1.0)
    snapshot, shown = snapshot_of(ledger, 1.0, budget=1000)
    assert [request.task for request in snapshot.requests] == ["u"]
    assert statuses(snapshot, "t") == {"a": "tool", "b": "waiting"}
    assert [call.oversize for call in ledger.calls.values()] == [True, False]
    assert len(shown) == 1


def test_other_cache_keys_are_kept_apart():
    ledger = make_ledger(CHAIN)
    with_adapter = tagged("r2", "a", task="u")
    with_adapter.extra_key = "adapter"
    ledger.look([tagged("r1", "a"), with_adapter], [], 1.0)
    assert ledger.counts["other_cache_key"] == 1
    assert {call.task.workflow for call in ledger.calls.values()} == {"w", "-"}
