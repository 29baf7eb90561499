"""Decision: what is feasible on a snapshot, and how a refusal names the constraint and both its sides."""

import pickle

import pytest

from topas_env import Decision, InfeasibleDecision, InputError, Snapshot, check_decision
from types_cases import example

# In the example A has a prefix of 10600 tokens and B one of 9000.
# d_r of r1 (running, agent A) is 500 + 120 + (300 - 120) = 800; of r2 (ready, agent B) 700 + 0 + 400 = 1100.
ALL = 10600 + 9000 + 800 + 1100


def snapshot(**changes):
    return Snapshot.from_dict({**example(), **changes})


def refused(snap, decision):
    with pytest.raises(InfeasibleDecision) as caught:
        check_decision(snap, decision)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "decision",
    [
        Decision(("A",), ("r1",)),  # the incumbent
        Decision(("A", "B"), ("r1", "r2")),
        Decision(("B", "A"), ("r2", "r1")),  # order of the list is not a matter of feasibility
        Decision(("A", "B"), ("r1",)),  # an idle prefix
        Decision(("B",), ("r2",)),  # r1 is preempted
        Decision((), ()),
        Decision(("A",), ()),
    ],
)
def test_feasible(decision):
    check_decision(snapshot(), decision)


def test_budget_is_met_exactly_and_then_missed_by_one():
    decision = Decision(("A", "B"), ("r1", "r2"))
    check_decision(snapshot(kv_budget_tokens=ALL), decision)
    error = refused(snapshot(kv_budget_tokens=ALL - 1), decision)
    assert (error.left, error.right) == (ALL, ALL - 1)
    assert "kv_budget_tokens" in error.constraint
    assert f"{ALL} against {ALL - 1}" in str(error)


def test_slots():
    error = refused(snapshot(max_running_requests=1), Decision(("A", "B"), ("r1", "r2")))
    assert (error.left, error.right) == (2, 1)
    assert "max_running_requests" in error.constraint


def test_prefix_of_a_request_is_missing():
    error = refused(snapshot(), Decision(("A",), ("r1", "r2")))
    assert (error.left, error.right) == ("agent 'B'", ["A"])


@pytest.mark.parametrize(
    ("decision", "left", "constraint"),
    [
        (Decision(("A",), ("r1", "r9")), "request 'r9'", "each of requests must be in the snapshot"),
        (Decision(("A",), ("r1", "r1")), "request 'r1'", "each of requests must occur once"),
        (Decision(("C",), ()), "agent 'C'", "each of prefixes must be in the snapshot"),
        (Decision(("A", "A"), ("r1",)), "agent 'A'", "each of prefixes must occur once"),
    ],
)
def test_names(decision, left, constraint):
    error = refused(snapshot(), decision)
    assert (error.left, error.constraint) == (left, constraint)


def over_full():
    """A second running request of A; together they exceed both the budget (10600 + 800 + 800) and the one slot."""
    obj = example()
    obj["kv_budget_tokens"] = 12000
    obj["max_running_requests"] = 1
    obj["resident"], obj["cached"] = ["A", "B"], []
    obj["tasks"].append({**obj["tasks"][0], "id": "t3"})
    obj["requests"].append({**obj["requests"][0], "id": "r3", "task": "t3"})
    return Snapshot.from_dict(obj)


def test_going_on_is_legal_over_the_budget_and_the_slots():
    check_decision(over_full(), Decision(("A",), ("r1", "r3")))
    check_decision(over_full(), Decision(("A", "B"), ("r1", "r3")))  # B is resident already


def test_over_the_budget_nothing_else_is_legal():
    refused(over_full(), Decision(("A", "B"), ("r1", "r3", "r2")))
    refused(over_full(), Decision((), ("r1", "r3")))  # the agent of what goes on must stay
    check_decision(over_full(), Decision(("A",), ("r1",)))  # 11400 tokens, one slot


def test_over_the_budget_no_prefix_may_be_added():
    obj = example()
    obj["kv_budget_tokens"] = 11000
    obj["tasks"].pop()
    obj["requests"].pop()
    error = refused(Snapshot.from_dict(obj), Decision(("A", "B"), ("r1",)))
    assert (error.left, error.right) == (10600 + 9000 + 800, 11000)


def test_dict_and_back():
    decision = Decision(("A",), ("r1",))
    assert Decision.from_dict(decision.to_dict()) == decision
    with pytest.raises(InputError, match=r"^\$\.requests\[0\]: expected str, got 1$"):
        Decision.from_dict({"prefixes": [], "requests": [1]})
    with pytest.raises(InputError, match=r"^\$\.prefix: unknown field"):
        Decision.from_dict({"prefix": [], "requests": []})


def test_error_survives_pickling():
    error = refused(snapshot(max_running_requests=1), Decision(("A", "B"), ("r1", "r2")))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.left, again.right) == (str(error), 2, 1)
