"""The compiled search against the plain reading of SCHEDULER.md, and against brute force."""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from reference.random_snapshots import random_snapshot, tiny_snapshot
from reference.topas_reading import Reading, State
from reference.topas_reference import decide
from topas_env import Decision, InfeasibleDecision, Snapshot, check_decision
from topas_env._core.choice import default_params
from topas_env._core.codes import CODES
from topas_env._core.decide import decide as compiled_decide
from topas_env._pack import pack
from topas_policies import make_policy

SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_changes": 1},
    {"max_changes": 2, "max_enumerated": 1},
    {"max_enumerated": 2},
    {"max_enumerated": 0, "beta": 0.0, "rho": 0.0},
    {"exact_limit": 0, "max_enumerated": 3},
    {"exact_limit": 300, "beta": 3.0, "rho": 2.0},
    {"exact_limit": 2, "scenarios": 7, "beta": 0.0},
]


def kernel_state(data: dict[str, Any], params: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Returns what the kernel chooses as (prefixes, requests in order) and its info record."""
    packed = pack(Snapshot.from_dict(data))
    choice = packed.room()
    compiled_decide(packed.v, CODES["topas"], default_params(**params), choice)
    decision = packed.decision(choice)
    return (decision.prefixes, decision.requests), choice.info[0]


def check_equal(data: dict[str, Any], params: dict[str, Any], where: str) -> State | None:
    result = decide(data, **params)
    state, info = kernel_state(data, params)
    if result.chosen is None:
        assert state == ((), ()), where
        return None
    expected = result.chosen
    assert state == (expected.prefixes, expected.requests), where
    for name in ("admit", "move", "redo", "revoke", "reuse", "total"):
        assert info[name] == pytest.approx(getattr(expected.terms, name), rel=1e-9, abs=1e-9), (where, name)
    assert info["n_scored"] == len(result.emitted), where
    return expected


def outcomes(data: dict[str, Any]) -> int:
    """Returns the largest number of joint outcomes of any task."""
    reading = Reading(data, beta=1.0, rho=0.5, exact_limit=64, scenarios=64)
    return max((math.prod(len(z) for z in reading.residuals(task).values()) for task in reading.tasks), default=0)


@pytest.mark.parametrize("block", range(8))
def test_kernel_and_reference_choose_the_same_state(block: int) -> None:
    """2,400 random snapshots, each under one of eight settings."""
    seen = dict.fromkeys(("preempted", "admitted", "moved", "empty", "over budget", "idle", "bounded", "sampled"), 0)
    for seed in range(block * 300, (block + 1) * 300):
        params = SETTINGS[seed % len(SETTINGS)]
        data = random_snapshot(seed)
        state = check_equal(data, params, f"seed {seed}, {params}")
        reading = Reading(data, beta=1.0, rho=0.5, exact_limit=64, scenarios=64)
        active = {reading.agent(r) for r in reading.order}
        busy = {reading.agent(r) for r in reading.running}
        held = sum(reading.reserved(r) for r in reading.running) + sum(reading.prefix[a] for a in busy)
        seen["empty"] += state is None
        seen["idle"] += bool(reading.resident - busy)
        seen["over budget"] += held > reading.budget
        seen["bounded"] += len(active) > params.get("max_enumerated", 6)
        seen["sampled"] += outcomes(data) > params.get("exact_limit", 64)
        if state is not None:
            seen["preempted"] += bool(state.preempted)
            seen["admitted"] += bool(state.admitted)
            seen["moved"] += state.moved > 0
    # The generator reaches the corners: otherwise the comparison would show little.
    assert min(seen.values()) >= 8, seen


def test_kernel_and_reference_agree_on_many_agents() -> None:
    """Pools of 12 to 24 agents, where only the bounded search can run."""
    most = 0
    for seed in range(10000, 10030):
        data = random_snapshot(seed, agents=12 + seed % 13)
        params = SETTINGS[seed % 2]
        check_equal(data, params, f"seed {seed}, {params}")
        reading = Reading(data, beta=1.0, rho=0.5, exact_limit=64, scenarios=64)
        most = max(most, len({reading.agent(r) for r in reading.order}))
    assert most >= 12


def test_reference_emits_feasible_states_only() -> None:
    """GreedyPack never leaves the budget, the slots or the cap; only the incumbent may be over the budget."""
    checked = 0
    for seed in range(5000, 5400):
        data = random_snapshot(seed)
        cap = seed % 3
        snapshot = Snapshot.from_dict(data)
        running = [r["id"] for r in data["requests"] if r["status"] == "running"]
        for state in decide(data, max_changes=cap).emitted:
            if state.requests == tuple(running):
                continue
            check_decision(snapshot, Decision(state.prefixes, state.requests))
            assert not cap or max(len(state.admitted), len(state.preempted)) <= cap
            checked += 1
    assert checked > 2000


def all_states(data: dict[str, Any]) -> Iterator[State]:
    """Yields every feasible state that keeps or preempts an agent's running requests together, in every order."""
    snapshot = Snapshot.from_dict(data)
    reading = Reading(data, beta=1.0, rho=0.5, exact_limit=64, scenarios=64)
    for kept_agents in subsets(sorted({reading.agent(r) for r in reading.running})):
        kept = [r for r in reading.running if reading.agent(r) in kept_agents]
        for chosen in subsets(reading.ready):
            agents = {reading.agent(r) for r in [*kept, *chosen]}
            if any(reading.agent(r) in agents for r in reading.running if r not in kept):
                continue  # preempted although its agent stays
            try:
                check_decision(snapshot, Decision(tuple(sorted(agents)), (*kept, *chosen)))
            except InfeasibleDecision:
                continue
            for order in itertools.permutations(chosen):
                if kept or order:
                    yield reading.state(agents, kept, order)


def subsets(items: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(items) + 1):
        yield from itertools.combinations(items, size)


def test_brute_force_on_small_pools() -> None:
    """The search returns the best emitted state; no feasible state beats it where packing has no choice to make."""
    full = 0
    optimal = 0
    for seed in range(20000, 20700):
        data = tiny_snapshot(seed)
        ready = sum(r["status"] == "ready" for r in data["requests"])
        if not data["requests"] or ready > 4:
            continue
        (prefixes, requests), info = kernel_state(data, {})
        emitted = decide(data).emitted
        best = max(s.terms.total for s in emitted)
        assert info["total"] == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert (prefixes, tuple(sorted(requests))) in {s.key for s in emitted}
        every = list(all_states(data))
        keys = {s.key for s in every}
        over = {s.key for s in emitted if not s.admitted and not s.preempted}  # the incumbent, perhaps over the budget
        assert {s.key for s in emitted} <= keys | over
        top = max((s.terms.total for s in every), default=-math.inf)
        if ready <= 1:
            # One ready request at most: GreedyPack emits every state that `all_states` yields.
            assert info["total"] >= top - 1e-9 * max(1.0, abs(top)), seed
            full += 1
        optimal += info["total"] >= top - 1e-9 * max(1.0, abs(top))
    assert full > 100
    assert optimal > full  # and often the best of all where it has choices


def test_decision_does_not_depend_on_the_order_of_lists() -> None:
    """Order of requests, tasks and workflows says nothing beyond the order of the kept requests."""
    for seed in range(30000, 30100):
        data = random_snapshot(seed)
        rng = random.Random(seed)
        other = {**data, "tasks": rng.sample(data["tasks"], len(data["tasks"]))}
        other["requests"] = rng.sample(data["requests"], len(data["requests"]))
        other["workflows"] = rng.sample(data["workflows"], len(data["workflows"]))
        first, _ = kernel_state(data, {})
        second, _ = kernel_state(other, {})
        assert (first[0], sorted(first[1])) == (second[0], sorted(second[1])), seed


@pytest.mark.parametrize("name", ["topas", "topas-base", "topas-reuse", "topas-aging"])
def test_policy_gives_its_parameters_to_the_search(name: str) -> None:
    given = {
        "topas-base": {},
        "topas-reuse": {"beta": 2.0},
        "topas-aging": {"rho": 1.5},
        "topas": {"beta": 2.0, "rho": 1.5},
    }
    beta = given[name].get("beta", 0.0)
    rho = given[name].get("rho", 0.0)
    policy = make_policy(name, **given[name], M=3, K=2, exact_limit=16, scenarios=32)
    assert policy.manages_prefixes
    wanted = {"max_enumerated": 3, "max_changes": 2, "exact_limit": 16, "scenarios": 32, "beta": beta, "rho": rho}
    code, params = policy.compiled()
    for seed in range(40000, 40060):
        data = random_snapshot(seed)
        chosen = decide(data, **wanted).chosen
        decision = policy.decide(Snapshot.from_dict(data))
        assert (decision.prefixes, decision.requests) == ((chosen.prefixes, chosen.requests) if chosen else ((), ()))
        packed = pack(Snapshot.from_dict(data))
        choice = packed.room()
        compiled_decide(packed.v, code, params, choice)
        assert packed.decision(choice) == decision


def test_point_estimates_are_the_means_of_the_totals() -> None:
    policy = make_policy("topas", estimates="point")
    assert policy.compiled() is None
    differ = 0
    for seed in range(50000, 50200):
        data = random_snapshot(seed)
        for entry in data["service"]:
            totals = entry.get("stage_totals_s")
            if totals:
                entry["stage_totals_s"] = [sum(totals) / len(totals)]
        chosen = decide(data).chosen
        decision = policy.decide(Snapshot.from_dict(random_snapshot(seed)))
        assert (decision.prefixes, decision.requests) == ((chosen.prefixes, chosen.requests) if chosen else ((), ()))
        differ += decision != make_policy("topas").decide(Snapshot.from_dict(random_snapshot(seed)))
    assert differ > 5
