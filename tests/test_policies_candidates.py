"""The list of candidate states: feasible, distinct, scored right, and with what every policy would choose."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.random_snapshots import random_snapshot
from reference.topas_reading import score_state
from reference.topas_reference import decide
from topas_env import Decision, Snapshot, check_decision
from topas_env._core.candidates import candidates
from topas_env._core.choice import Choice, default_params, empty_candidates
from topas_env._core.codes import CODES, SHORT_ORDERS
from topas_env._core.short import short_list
from topas_env._pack import pack
from topas_policies import make_policy

seeds = st.integers(min_value=0, max_value=2**40)
few = settings(max_examples=120, deadline=None, derandomize=True, database=None)


def listed(snapshot: Snapshot, limit: int, kernel: Any = candidates) -> list[tuple[Decision, Any]]:
    """Returns the candidates as decisions with their info records."""
    packed = pack(snapshot)
    out = empty_candidates(limit, len(packed.agent_names), len(packed.request_ids))
    kernel(packed.v, default_params(), out)
    found = []
    for i in range(int(out.count[0])):
        one = Choice(out.info[i : i + 1], out.prefixes[i], out.rows[i], out.credits[i])
        found.append((packed.decision(one), out.info[i].copy()))
    return found


@few
@given(seed=seeds)
def test_candidates_are_feasible_distinct_and_scored(seed: int) -> None:
    data = random_snapshot(seed)
    snapshot = Snapshot.from_dict(data)
    found = listed(snapshot, 64)
    running = tuple(r["id"] for r in data["requests"] if r["status"] == "running")
    assert found[0][0].requests == running
    assert len(found) <= 64
    assert len({decision for decision, _ in found}) == len(found)
    for i, (decision, info) in enumerate(found):
        if i > 0 and decision.requests != running:
            check_decision(snapshot, decision)
        plain = score_state(data, decision.prefixes, decision.requests)
        assert plain.requests == decision.requests
        for term in ("admit", "move", "redo", "revoke", "reuse", "total"):
            assert info[term] == pytest.approx(getattr(plain.terms, term), rel=1e-9, abs=1e-9), term
        assert info["n_preempted"] == len(plain.preempted)


@few
@given(seed=seeds)
def test_what_every_policy_decides_is_listed_under_its_bit(seed: int) -> None:
    data = random_snapshot(seed)
    snapshot = Snapshot.from_dict(data)
    found = listed(snapshot, 32)
    if not data["requests"]:
        assert [decision for decision, _ in found] == [Decision((), ())]
        return
    by_decision = {decision: int(info["origin"]) for decision, info in found}
    for name, code in CODES.items():
        decision = make_policy(name).decide(snapshot)
        assert decision in by_decision, name
        assert by_decision[decision] >> code & 1, name
    # And each bit stands once: a policy chooses one state.
    assert sum(origin.bit_count() for origin in by_decision.values()) == len(CODES)


@few
@given(seed=seeds)
def test_with_room_every_emitted_state_is_listed(seed: int) -> None:
    data = random_snapshot(seed, agents=1 + seed % 7)
    listed_keys = {(d.prefixes, tuple(sorted(d.requests))) for d, _ in listed(Snapshot.from_dict(data), 6000)}
    assert {state.key for state in decide(data).emitted} <= listed_keys


@few
@given(seed=seeds)
def test_short_list_has_what_cheap_policies_and_orders_choose(seed: int) -> None:
    """Feasible, distinct, nobody preempted; each policy's and each order's choice stands under its bit, once."""
    data = random_snapshot(seed)
    snapshot = Snapshot.from_dict(data)
    found = listed(snapshot, 64, short_list)
    running = tuple(r["id"] for r in data["requests"] if r["status"] == "running")
    assert found[0][0].requests == running
    assert len({decision for decision, _ in found}) == len(found)
    by_decision = {decision: int(info["origin"]) for decision, info in found}
    for decision, info in found:
        assert decision.requests[: len(running)] == running
        assert info["n_preempted"] == info["total"] == 0
        if decision.requests != running:
            check_decision(snapshot, decision)
    if len(snapshot.requests) == len(running):
        assert len(found) == 1
        return
    names = [name for name in CODES if name != "srpt" and not name.startswith("topas")]
    for name in names:
        assert by_decision[make_policy(name).decide(snapshot)] >> CODES[name] & 1, name
    for k, name in enumerate(SHORT_ORDERS):
        policy = make_policy("rollout", rollouts=1, base_policies=(name,), least_seen=0)
        assert by_decision[policy.decide(snapshot)] >> (len(CODES) + k) & 1, name
    assert sum(origin.bit_count() for origin in by_decision.values()) == len(names) + len(SHORT_ORDERS)


def test_short_list_offers_parts() -> None:
    """Where several agents wait and all fit, each agent's requests alone and all but its requests are candidates."""
    parts = 0
    for seed in range(100):
        data = random_snapshot(seed)
        data |= {"kv_budget_tokens": 10**8, "max_running_requests": 1000}
        snapshot = Snapshot.from_dict(data)
        agent_of = {(w["name"], s["name"]): s["agent"] for w in data["workflows"] for s in w["stages"]}
        workflow_of = {t["id"]: t["workflow"] for t in data["tasks"]}
        owner = {r["id"]: agent_of[workflow_of[r["task"]], r["stage"]] for r in data["requests"]}
        ready = {r["id"] for r in data["requests"] if r["status"] == "ready"}
        whole = set(make_policy("hold-depth").decide(snapshot).requests) & ready
        found = {frozenset(set(decision.requests) & ready) for decision, _ in listed(snapshot, 64, short_list)}
        if whole != ready or len({owner[r] for r in ready}) < 2:
            continue
        for agent in {owner[r] for r in ready}:
            assert frozenset(r for r in ready if owner[r] == agent) in found
            assert frozenset(r for r in ready if owner[r] != agent) in found
            parts += 1
    assert parts > 20


def test_idle_variants_are_offered() -> None:
    """Some snapshots have a candidate that keeps a prefix which no request of it needs."""
    idle = 0
    for seed in range(100):
        data = random_snapshot(seed)
        agent_of = {(w["name"], s["name"]): s["agent"] for w in data["workflows"] for s in w["stages"]}
        workflow_of = {t["id"]: t["workflow"] for t in data["tasks"]}
        owner = {r["id"]: agent_of[workflow_of[r["task"]], r["stage"]] for r in data["requests"]}
        for decision, _ in listed(Snapshot.from_dict(data), 64):
            idle += set(decision.prefixes) > {owner[r] for r in decision.requests}
    assert idle > 20
