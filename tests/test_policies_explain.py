"""The data of `topas explain`."""

import json

import pytest

from reference.random_snapshots import random_snapshot
from reference.topas_reading import score_state
from reference.topas_reference import decide
from topas_env import Decision, InfeasibleDecision, Snapshot
from topas_env._explain import explain
from topas_policies import Policy, make_policy, policy_names

KEYS = ["policy", "prefixes", "requests", "admitted", "preempted", "terms_s", "score_s", "candidates", "decision_ms"]


def test_topas_is_explained_as_the_reference_decides() -> None:
    for seed in range(70000, 70060):
        data = random_snapshot(seed)
        result = decide(data, beta=2.0, rho=0.25, max_changes=2)
        found = explain(Snapshot.from_dict(data), make_policy("topas", beta=2.0, rho=0.25, K=2)).to_dict()
        assert list(found) == KEYS
        assert json.loads(json.dumps(found)) == found
        assert found["candidates"] == len(result.emitted)
        assert found["decision_ms"] > 0
        if result.chosen is None:
            assert (found["prefixes"], found["requests"], found["score_s"]) == ([], [], 0.0)
            continue
        assert found["prefixes"] == list(result.chosen.prefixes)
        assert found["admitted"] == list(result.chosen.admitted)
        assert found["preempted"] == list(result.chosen.preempted)
        assert found["score_s"] == pytest.approx(result.chosen.terms.total)
        assert found["requests"][len(found["requests"]) - len(found["admitted"]) :] == found["admitted"]


@pytest.mark.parametrize("name", policy_names()[:13])
def test_every_policy_answers_with_the_score_of_its_state(name: str) -> None:
    """A policy without a beta and a rho is scored by TOPAS's defaults, so that two policies compare."""
    policy = make_policy(name)
    weights = {"beta": getattr(policy, "beta", 1.0), "rho": getattr(policy, "rho", 0.5)}
    for seed in range(71000, 71040):
        data = random_snapshot(seed)
        found = explain(Snapshot.from_dict(data), policy).to_dict()
        plain = score_state(data, found["prefixes"], found["requests"], **weights)
        for term, value in found["terms_s"].items():
            assert value == pytest.approx(getattr(plain.terms, term), rel=1e-9, abs=1e-9), (seed, term)
        assert found["candidates"] >= min(1, len(data["requests"]))


def test_best_candidates_are_sorted_distinct_and_hold_the_choice() -> None:
    several = 0
    for seed in range(72000, 72060):
        data = random_snapshot(seed)
        if not data["requests"]:
            continue
        answer = explain(Snapshot.from_dict(data), make_policy("topas"))
        scores = [state.score_s for state in answer.best]
        assert scores == sorted(scores, reverse=True)
        assert 1 <= len(scores) <= 5
        assert len({(s.prefixes, frozenset(s.requests)) for s in answer.best}) == len(scores)
        emitted = {state.key: state.terms.total for state in decide(data).emitted}
        top = answer.best[0]
        if (top.prefixes, tuple(sorted(top.requests))) in emitted:  # else a baseline found a better one
            assert top.score_s <= answer.state.score_s + 1e-9 * max(1.0, abs(top.score_s))
        # TOPAS emits all of the five or they beat those that it emits.
        ours = sorted(emitted.values(), reverse=True)[: len(scores)]
        assert all(a >= b - 1e-9 * max(1.0, abs(b)) for a, b in zip(scores, ours, strict=False))
        several += len(scores) == 5
    assert several > 10


class Stubborn(Policy):
    """Answers with what it was made with."""

    name = "stubborn"

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def decide(self, snapshot: Snapshot) -> Decision:
        return self.decision


def test_a_policy_of_a_users_own_is_explained_or_refused() -> None:
    data = random_snapshot(73001)
    assert data["requests"]
    chosen = decide(data).chosen
    assert chosen is not None
    found = explain(Snapshot.from_dict(data), Stubborn(Decision(chosen.prefixes, chosen.requests))).to_dict()
    assert (found["policy"], found["candidates"]) == ("stubborn", 1)
    assert found["score_s"] == pytest.approx(chosen.terms.total)
    with pytest.raises(InfeasibleDecision):
        explain(Snapshot.from_dict(data), Stubborn(Decision((), ("nobody",))))
