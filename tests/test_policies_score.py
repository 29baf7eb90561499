"""The score terms of a state that is worked out by hand."""

import copy
import math
import random
from typing import Any

import pytest

from reference.random_snapshots import random_snapshot
from reference.topas_reading import Reading, score_state
from topas_env import Decision, Snapshot, score_terms
from topas_env._core.choice import default_params
from topas_env._core.decide import score
from topas_env._pack import pack

# One workflow, a fork and a join: plan (A) -> code (B), test (C) -> ship (A).
#
# Task t1 arrived at 100, its plan is done; code (r1) and test (r2) are ready.
# Task t2 arrived at 104, its plan (r3) runs on A, the only resident prefix. C is cached. It is 110.
#
# Request estimates (no call of code or test was observed; prefill 1 + 0.001 a token, decode 0.01 a token):
#   D_r1 = 1 + 0.001 * (100 - 0)   + 0.01 * 200 = 3.1
#   D_r2 = 1 + 0.001 * (200 - 100) + 0.01 * 300 = 4.1
# Residuals of t1: code 10 (its profile), test 6 or 14 (observed), ship 2 (profile).
#   L(none)   = mean(max(10, 6), max(10, 14)) + 2                 = (10 + 14) / 2 + 2     = 14
#   L(r1)     = mean(max(6.9, 6), max(6.9, 14)) + 2               = (6.9 + 14) / 2 + 2    = 12.45
#   L(r2)     = mean(max(10, 1.9), max(10, 9.9)) + 2              = 10 + 2                = 12
#   L(r1, r2) = mean(max(6.9, 1.9), max(6.9, 9.9)) + 2            = (6.9 + 9.9) / 2 + 2   = 10.4
# With the mean of test alone (10), r1 would gain nothing before r2: the expectation stands outside the max.
# Aging: g(t1) = 1 + 0.5 * ln(1 + (110 - 100) / 10) = 1 + 0.5 * ln 2.
G = 1 + 0.5 * math.log(2)
# Reuse: t2's code and test wait for its plan alone, which runs: n_B = n_C = 1. t1's ship waits for two: n_A = 0.
SNAPSHOT: dict[str, Any] = {
    "version": 1,
    "time_s": 110.0,
    "kv_budget_tokens": 10000,
    "max_running_requests": 8,
    "engine": {
        "prefill_base_s": 1.0,
        "prefill_s_per_token": 0.001,
        "decode_s_per_token": 0.01,
        "load_s_per_token": 0.001,
        "offload_s_per_token": 0.002,
        "rebuild_s_per_token": 0.03,
        "reserve_ratio": 0.5,
        "reserve_cap_tokens": None,
    },
    "age_scale_s": 10.0,
    "workflows": [
        {
            "name": "w",
            "agents": [
                {"name": "A", "prefix_tokens": 1000},
                {"name": "B", "prefix_tokens": 2000},
                {"name": "C", "prefix_tokens": 500},
            ],
            "stages": [
                {"name": "plan", "agent": "A", "after": []},
                {"name": "code", "agent": "B", "after": ["plan"]},
                {"name": "test", "agent": "C", "after": ["plan"]},
                {"name": "ship", "agent": "A", "after": ["code", "test"]},
            ],
        }
    ],
    "service": [
        {"workflow": "w", "stage": "plan", "stage_totals_s": [4.0, 8.0], "call_s": [4.0, 8.0]},
        {"workflow": "w", "stage": "code", "profile_s": 10.0},
        {"workflow": "w", "stage": "test", "profile_s": 99.0, "stage_totals_s": [6.0, 14.0]},
        {"workflow": "w", "stage": "ship", "profile_s": 2.0},
    ],
    "resident": ["A"],
    "cached": [{"agent": "C", "last_used_s": 90.0}],
    "tasks": [
        {
            "id": "t1",
            "workflow": "w",
            "arrival_s": 100.0,
            "stages": [
                {"name": "plan", "status": "done", "service_s": 5.0},
                {"name": "code", "status": "ready", "service_s": 0.0},
                {"name": "test", "status": "ready", "service_s": 0.0},
                {"name": "ship", "status": "waiting", "service_s": 0.0},
            ],
        },
        {
            "id": "t2",
            "workflow": "w",
            "arrival_s": 104.0,
            "stages": [
                {"name": "plan", "status": "running", "service_s": 0.0},
                {"name": "code", "status": "waiting", "service_s": 0.0},
                {"name": "test", "status": "waiting", "service_s": 0.0},
                {"name": "ship", "status": "waiting", "service_s": 0.0},
            ],
        },
    ],
    "requests": [
        {
            "id": "r1", "task": "t1", "stage": "code", "status": "ready", "ready_s": 105.0, "admitted_s": None,
            "suffix_tokens": 100, "cached_tokens": 0, "generated_tokens": 0, "max_new_tokens": 200,
            "admission_credit_s": 0.0,
        },
        {
            "id": "r2", "task": "t1", "stage": "test", "status": "ready", "ready_s": 105.0, "admitted_s": None,
            "suffix_tokens": 200, "cached_tokens": 100, "generated_tokens": 0, "max_new_tokens": 300,
            "admission_credit_s": 0.0,
        },
        {
            "id": "r3", "task": "t2", "stage": "plan", "status": "running", "ready_s": 104.0, "admitted_s": 106.0,
            "suffix_tokens": 50, "cached_tokens": 0, "generated_tokens": 40, "max_new_tokens": 80,
            "admission_credit_s": 2.5,
        },
    ],
}  # fmt: skip


def check(
    prefixes: list[str], requests: list[str], wanted: dict[str, float], data: dict[str, Any], **weights: float
) -> None:
    terms = score_terms(Snapshot.from_dict(data), Decision(tuple(prefixes), tuple(requests)), **weights)
    plain = score_state(data, prefixes, requests, **weights).terms
    for name, value in wanted.items():
        assert getattr(terms, name) == pytest.approx(value, abs=1e-12), name
        assert getattr(plain, name) == pytest.approx(value, abs=1e-12), name
    total = wanted["admit"] - wanted["move"] - wanted["redo"] - wanted["revoke"] + wanted["reuse"]
    assert terms.total == pytest.approx(total, abs=1e-12)


def test_preempt_and_admit_both_branches() -> None:
    """Preempt r3, admit r1 then r2, with B and C resident instead of A.

    admit: r1 gains 14 - 12.45 = 1.55, r2 after it 12.45 - 10.4 = 2.05, both times g.
    move: incoming is B alone (C is cached), outgoing A: 0.002 * 1000 + 0.001 * 2000 = 4 s, for one waiting task (t1).
    redo: 0.03 * 40 = 1.2. revoke: 2.5. reuse: 0.001 * (2000 + 500) = 2.5, although r3 is preempted (a known weakness).
    """
    wanted = {"admit": 3.6 * G, "move": 4.0, "redo": 1.2, "revoke": 2.5, "reuse": 2.5}
    check(["B", "C"], ["r1", "r2"], wanted, SNAPSHOT, beta=1.0, rho=0.5)


def test_order_of_admission_shares_the_gain_differently() -> None:
    """r2 first gains 14 - 12 = 2, r1 after it 12 - 10.4 = 1.6: the sum is the same, r2's credit is not."""
    plain = score_state(SNAPSHOT, ["B", "C"], ["r2", "r1"], beta=1.0, rho=0.5)
    assert plain.credits == pytest.approx((2.0 * G, 1.6 * G))
    assert plain.terms.admit == pytest.approx(3.6 * G)


def test_weights() -> None:
    """Without aging g is 1; reuse is proportional to beta."""
    wanted = {"admit": 3.6, "move": 4.0, "redo": 1.2, "revoke": 2.5, "reuse": 7.5}
    check(["B", "C"], ["r1", "r2"], wanted, SNAPSHOT, beta=3.0, rho=0.0)


def test_keep_and_admit_one() -> None:
    """Keep r3 on A, admit r1: B is loaded for 0.001 * 2000 = 2 s, and B alone is reused: 2 s."""
    wanted = {"admit": 1.55 * G, "move": 2.0, "redo": 0.0, "revoke": 0.0, "reuse": 2.0}
    check(["A", "B"], ["r3", "r1"], wanted, SNAPSHOT, beta=1.0, rho=0.5)


def test_admit_on_a_cached_prefix_moves_nothing() -> None:
    """C is cached, so it does not come in, and A stays: no move. r2 alone gains 2; C is reused: 0.5 s."""
    wanted = {"admit": 2.0 * G, "move": 0.0, "redo": 0.0, "revoke": 0.0, "reuse": 0.5}
    check(["A", "C"], ["r3", "r2"], wanted, SNAPSHOT, beta=1.0, rho=0.5)


def test_incumbent() -> None:
    """Going on as before: nothing admitted, moved or preempted; A is awaited by nobody."""
    wanted = dict.fromkeys(("admit", "move", "redo", "revoke", "reuse"), 0.0)
    check(["A"], ["r3"], wanted, SNAPSHOT, beta=1.0, rho=0.5)


def test_idle_prefix_may_be_kept_by_other_policies() -> None:
    """An idle B beside r3 costs a load that no admitted task waits for, and earns its reuse: 2 s."""
    wanted = {"admit": 0.0, "move": 0.0, "redo": 0.0, "revoke": 0.0, "reuse": 2.0}
    check(["A", "B"], ["r3"], wanted, SNAPSHOT, beta=1.0, rho=0.5)


def test_residual_after_service() -> None:
    """r2 is a later call of test, which has received 7 s: 14 - 7 = 7 is left; of 14 s, none if it had received 20.

    Received 7: L(none) = max(10, 7) + 2 = 12, L(r2) the same: gain 0.
    Received 20: no observation is beyond it, no call was observed: a point mass at D_r2 = 4.1, again below code's 10.
    r1 then gains all of its 3.1 while code stays the longer branch: 12 - (max(6.9, 7) + 2) = 3 and 12 - 8.9 = 3.1.
    """
    for received, gain in ((7.0, 3.0), (20.0, 3.1)):
        data = copy.deepcopy(SNAPSHOT)
        data["tasks"][0]["stages"][2]["service_s"] = received
        wanted = {"admit": 0.0, "move": 0.0, "redo": 0.0, "revoke": 0.0, "reuse": 0.5}
        check(["A", "C"], ["r3", "r2"], wanted, data, beta=1.0, rho=0.5)
        wanted = {"admit": gain * G, "move": 2.0, "redo": 0.0, "revoke": 0.0, "reuse": 2.0}
        check(["A", "B"], ["r3", "r1"], wanted, data, beta=1.0, rho=0.5)


def test_point_mass_hides_the_other_branch() -> None:
    """With the mean of test instead of its distribution both branches are 10 s: either alone gains nothing.

    L(r1) = max(6.9, 10) + 2 = 12 = L(none); after r1, r2 gains 12 - (max(6.9, 5.9) + 2) = 3.1.
    """
    data = copy.deepcopy(SNAPSHOT)
    data["service"][2]["stage_totals_s"] = [10.0]
    wanted = {"admit": 0.0, "move": 2.0, "redo": 0.0, "revoke": 0.0, "reuse": 2.0}
    check(["A", "B"], ["r3", "r1"], wanted, data, beta=1.0, rho=0.5)
    wanted = {"admit": 3.1 * G, "move": 2.0, "redo": 0.0, "revoke": 0.0, "reuse": 2.5}
    check(["A", "B", "C"], ["r3", "r1", "r2"], wanted, data, beta=1.0, rho=0.5)


def test_score_of_random_states() -> None:
    """Any state, idle prefixes and partial preemption included, feasible or not: kernel against plain reading."""
    admitted = 0
    for seed in range(80000, 80500):
        data = random_snapshot(seed)
        rng = random.Random(seed)
        reading = Reading(data, beta=1.5, rho=0.75, exact_limit=32, scenarios=32)
        kept = [r for r in reading.running if rng.random() < 0.7]
        new = rng.sample(reading.ready, rng.randint(0, len(reading.ready)))
        prefixes = {reading.agent(r) for r in [*kept, *new]}
        prefixes |= {a for a in reading.prefix if rng.random() < 0.3}
        packed = pack(Snapshot.from_dict(data))
        choice = packed.choice(Decision(tuple(prefixes), (*kept, *new)))
        score(packed.v, default_params(beta=1.5, rho=0.75, exact_limit=32, scenarios=32), choice)
        state = reading.state(prefixes, kept, new)
        for name in ("admit", "move", "redo", "revoke", "reuse", "total"):
            wanted = getattr(state.terms, name)
            assert choice.info[name][0] == pytest.approx(wanted, rel=1e-9, abs=1e-9), (seed, name)
        credits_ = choice.credits[len(kept) : len(kept) + len(new)]
        assert credits_.tolist() == pytest.approx(list(state.credits), rel=1e-9, abs=1e-9), seed
        assert not choice.credits[: len(kept)].any()
        admitted += len(new)
    assert admitted > 500
