"""Cases by hand in which a tie, a tolerance or a pair decides; each holds for the kernel and the plain reading."""

from typing import Any

import pytest

from reference.topas_reference import decide
from topas_env import Decision, Snapshot
from topas_policies import make_policy

FORK = {
    "name": "fork",
    "agents": [{"name": "A", "prefix_tokens": 1000}, {"name": "B", "prefix_tokens": 1000}],
    "stages": [
        {"name": "left", "agent": "A", "after": []},
        {"name": "right", "agent": "B", "after": []},
    ],
}


def single(agent: str) -> dict[str, Any]:
    """A workflow of one stage; each prefix has 1,000 tokens."""
    return {
        "name": f"only-{agent}",
        "agents": [{"name": agent, "prefix_tokens": 1000}],
        "stages": [{"name": "s", "agent": agent, "after": []}],
    }


def snapshot(workflows: list[dict[str, Any]], service: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Nothing resident; loading costs 0.001 s a token, releasing nothing; d_r is the suffix plus max_new."""
    return {
        "version": 1,
        "time_s": 10.0,
        "kv_budget_tokens": budget,
        "max_running_requests": 8,
        "engine": {
            "prefill_base_s": 1.0, "prefill_s_per_token": 0.001, "decode_s_per_token": 0.01, "load_s_per_token": 0.001,
            "offload_s_per_token": 0.0, "rebuild_s_per_token": 0.001, "reserve_ratio": 1.0, "reserve_cap_tokens": None,
        },
        "age_scale_s": 10.0,
        "workflows": workflows,
        "service": service,
        "resident": [],
        "cached": [],
        "tasks": [],
        "requests": [],
    }  # fmt: skip


def add_task(data: dict[str, Any], task: str, workflow: str, **requests: dict[str, Any]) -> None:
    """Adds a task that arrived now, so that g is 1; `requests` maps each stage to the fields of its request."""
    stages = []
    for stage, fields in requests.items():
        running = fields.get("status") == "running"
        stages.append({"name": stage, "status": "running" if running else "ready", "service_s": 0.0})
        request = {
            "id": f"{task}.{stage}", "task": task, "stage": stage, "status": "ready", "ready_s": 10.0,
            "admitted_s": 10.0 if running else None, "suffix_tokens": 50, "cached_tokens": 0, "generated_tokens": 0,
            "max_new_tokens": 50, "admission_credit_s": 0.0,
        }  # fmt: skip
        data["requests"].append(request | fields)
    data["tasks"].append({"id": task, "workflow": workflow, "arrival_s": 10.0, "stages": stages})


def profile(workflow: str, stage: str, seconds: float, call_s: float | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"workflow": workflow, "stage": stage, "profile_s": seconds}
    if call_s is not None:
        entry |= {"call_s": [call_s], "call_output_tokens": [10]}
    return entry


def check(data: dict[str, Any], prefixes: str, requests: list[str], **params: Any) -> float:
    """Both readings decide so; returns the score."""
    decision = make_policy("topas", **params).decide(Snapshot.from_dict(data))
    assert decision == Decision(tuple(prefixes), tuple(requests))
    chosen = decide(data, **params).chosen
    assert chosen is not None
    assert (chosen.prefixes, chosen.requests) == (decision.prefixes, decision.requests)
    return chosen.terms.total


RUNS = {"status": "running", "admission_credit_s": 5.0}


@pytest.mark.parametrize(
    ("more", "prefix", "request_id"), [(0.0, "A", "t2.s"), (1e-10, "A", "t2.s"), (1e-6, "B", "t1.s")]
)
def test_equal_scores_go_to_the_smaller_agent(more: float, prefix: str, request_id: str) -> None:
    """One of two equal requests fits. A wins by its name (the ids say otherwise) unless B gains clearly more.

    Both score 5 - 1 = 4, where the tolerance is 4e-9.
    """
    service = [profile("only-A", "s", 5.0, 5.0), profile("only-B", "s", 5.0 + more, 5.0 + more)]
    data = snapshot([single("B"), single("A")], service, budget=1150)
    add_task(data, "t1", "only-B", s={})
    add_task(data, "t2", "only-A", s={})
    assert check(data, prefix, [request_id]) == pytest.approx(4.0 + (more if prefix == "B" else 0.0), abs=1e-12)


def test_equal_scores_go_to_fewer_preemptions() -> None:
    """Preempting t1 (credit 5, nothing generated) for t2 (gain 5, prefix resident) scores 0, as going on does.

    Either way one prefix is released, and preempting admits more.
    """
    data = snapshot([single("A"), single("B")], [profile("only-A", "s", 5.0, 5.0)], budget=1150)
    add_task(data, "t1", "only-B", s=RUNS)
    add_task(data, "t2", "only-A", s={})
    data["resident"] = ["A", "B"]
    assert check(data, "B", ["t1.s"]) == pytest.approx(0.0)
    data["requests"][0]["admission_credit_s"] = 4.999
    assert check(data, "A", ["t2.s"]) == pytest.approx(0.001)


def test_equal_scores_go_to_fewer_moved_prefixes() -> None:
    """Idle B stays or is released for nothing: with t1 on B no prefix moves, with t2 on cached A one does."""
    service = [profile("only-A", "s", 5.0, 5.0), profile("only-B", "s", 5.0, 5.0)]
    data = snapshot([single("A"), single("B")], service, budget=1150)
    add_task(data, "t1", "only-B", s={})
    add_task(data, "t2", "only-A", s={})
    data["resident"], data["cached"] = ["B"], [{"agent": "A", "last_used_s": 1.0}]
    assert check(data, "B", ["t1.s"]) == pytest.approx(5.0)


def test_equal_scores_go_to_more_admissions_and_noise_is_no_gain() -> None:
    """A call of 0.0005 s of a path of 1e6 s is below 1e-9 of it: it gains nothing, and is admitted all the same."""
    data = snapshot([single("A")], [profile("only-A", "s", 1e6, 0.0005)], budget=5000)
    add_task(data, "t1", "only-A", s=RUNS)
    add_task(data, "t2", "only-A", s={})
    data["resident"] = ["A"]
    assert check(data, "A", ["t1.s", "t2.s"]) == 0.0
    data["service"] = [profile("only-A", "s", 1e6, 0.002)]
    assert check(data, "A", ["t1.s", "t2.s"]) == pytest.approx(0.002, abs=1e-9)


def test_a_pair_of_agents_is_tried_at_the_first_stall() -> None:
    """Neither branch of the fork gains alone (the other is as long), both together gain 10 - 2 s of loading.

    C runs. {A, C} and {B, C} score -1 (a load, no gain), so single additions stall; {A, B, C} scores 8.
    """
    service = [profile("fork", "left", 10.0, 10.0), profile("fork", "right", 10.0, 10.0)]
    data = snapshot([FORK, single("C")], service, budget=9000)
    add_task(data, "t1", "only-C", s=RUNS)
    add_task(data, "t2", "fork", left={}, right={})
    data["resident"] = ["C"]
    for most in (0, 6):
        score = check(data, "ABC", ["t1.s", "t2.left", "t2.right"], max_enumerated=most)
        assert score == pytest.approx(8.0)


def test_zero_gain_picks_prefer_a_task_that_is_represented() -> None:
    """t1.right and t2.right gain nothing (their left branches are as long) and one slot is left.

    t1 has the smaller id and arrived no later, but t2 runs already, so t2.right is picked. t1.left on A would gain as
    little; keeping both prefixes moves fewer.
    """
    service = [profile("fork", "left", 10.0, 1.0), profile("fork", "right", 10.0, 1.0)]
    data = snapshot([FORK], service, budget=9000)
    add_task(data, "t1", "fork", left={}, right={})
    add_task(data, "t2", "fork", left=RUNS, right={})
    data["resident"] = ["A", "B"]
    data["max_running_requests"] = 2
    assert check(data, "AB", ["t2.left", "t2.right"]) == 0.0
