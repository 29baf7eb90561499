"""Runs of the reproduction: what is run, that it goes on where it was, and what the settings mean."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from topas_env._utilisation import utilisation
from topas_env.reproduce._cases import ENGINES, SECTIONS, SHARES, Case, section_cases
from topas_env.reproduce._paper import BASELINES, HEADLINES, RATES
from topas_env.reproduce._run import execute, key_of, run_cases
from topas_env.reproduce._settings import CHARGE, Setting, balanced_rate, engine_of, workload_of
from topas_policies import policy_names

CHAIN = Setting("chain-3", 0.15, num_tasks=10)


def test_every_run_is_asked_for_once_and_can_be_made() -> None:
    cases = section_cases(list(SECTIONS), 50, range(3))
    keys = [msgspec.json.encode(case, order="sorted") for case in cases]
    assert len(set(keys)) == len(keys)
    assert {case.policy for case in cases} <= set(policy_names())
    assert {case.setting.workload for case in cases} == set(RATES) == set(HEADLINES)
    assert {case.seed for case in cases} == {0, 1, 2}
    for case in cases:
        if case.seed == 0:
            engine_of(case.setting)  # every override is a parameter of an engine
    main = section_cases(["main"], 50, [0])
    assert len(main) == 5 * 4 * (len(BASELINES) + 4)


def test_runs_go_on_where_they_were(tmp_path: Path) -> None:
    cases = [Case(CHAIN, policy, {}, seed) for seed in (0, 1) for policy in ("fcfs", "topas")]
    path = tmp_path / "results.jsonl"
    first = run_cases(cases[:2], path, jobs=1)
    assert len(path.read_bytes().splitlines()) == 2
    steps: list[tuple[int, int]] = []
    both = run_cases(cases, path, jobs=1, progress=lambda *step: steps.append(step))
    assert steps == [(2, 4), (4, 4)]  # a batch is all policies of a point and a seed
    assert both[:2] == first
    assert [(r["policy"], r["seed"]) for r in both] == [(c.policy, c.seed) for c in cases]
    assert len(path.read_bytes().splitlines()) == 4


def test_no_run_is_begun_after_the_limit_of_time(tmp_path: Path) -> None:
    assert run_cases([Case(CHAIN, "fcfs", {}, 0)], tmp_path / "results.jsonl", jobs=1, minutes=0.0) == []


def test_the_key_is_of_the_run() -> None:
    base = Case(CHAIN, "topas", {}, 0)
    others = [
        Case(CHAIN, "topas", {"K": 1}, 0),
        Case(CHAIN, "topas", {}, 1),
        Case(msgspec.structs.replace(CHAIN, believed={"rebuild": "decode"}), "topas", {}, 0),
        Case(msgspec.structs.replace(CHAIN, overrides={"rebuild": "decode"}), "topas", {}, 0),
    ]
    keys = {key_of(case) for case in [base, *others]}
    assert len(keys) == 5
    assert key_of(Case(CHAIN, "topas", {}, 0)) == key_of(base)


def test_a_tier_for_topas_alone_is_made_of_the_two_others() -> None:
    """So the share sweep and the split of the gain need no runs of it."""

    def jct(policy: str, tier: str) -> list[float]:
        setting = Setting("dag-4", 0.10, num_tasks=25, overrides={"host_tier": tier})
        return list(execute(Case(setting, policy, {}, 3))["jct_s"])

    assert jct("topas", "topas-only") == jct("topas", "all")
    assert jct("lpm", "topas-only") == jct("lpm", "none")
    assert jct("lpm", "all") != jct("lpm", "none")


def test_being_told_another_cost_changes_topas_only() -> None:
    told = Setting("dag-4", 0.10, num_tasks=40, believed={"rebuild": "decode"})
    plain = msgspec.structs.replace(told, believed={})
    assert execute(Case(told, "lpm", {}, 0))["jct_s"] == execute(Case(plain, "lpm", {}, 0))["jct_s"]
    charged, free = (execute(Case(setting, "topas", {}, 0)) for setting in (told, plain))
    assert charged["preemptions"] < free["preemptions"]


@pytest.mark.parametrize("workload", ["chain-3", "dag-4"])
def test_shares_and_rates_are_what_they_say(workload: str) -> None:
    for share in SHARES:
        setting = balanced_rate(Setting(workload, 1.0, num_tasks=50, prefix_share=share), 0.6)
        drawn = workload_of(setting, 7)
        assert utilisation(drawn, engine_of(setting)) == pytest.approx(0.6, rel=1e-3)
        agents = drawn.workflows[0].agents
        mean = np.mean([agent.prefix_tokens for agent in agents])
        assert mean / 18560 == pytest.approx(share, rel=1e-3)
    bare = balanced_rate(Setting(workload, 1.0, overrides={"host_tier": "none"}), 0.6)
    assert bare.arrival_rate == balanced_rate(Setting(workload, 1.0), 0.6).arrival_rate


def test_longer_outputs_are_longer() -> None:
    long, plain = (workload_of(Setting("chain-3", 0.1, num_tasks=3, output_scale=s), 0) for s in (2.0, 1.0))
    assert list(long.trace.calls["output"]) == [2 * n for n in plain.trace.calls["output"]]
    assert list(long.trace.arrival) == list(plain.trace.arrival)
    # A profiled stage of twice the output takes clearly longer, so policies are told of the changed lengths.
    assert long.profile_s["chain-3", "a"] > 1.5 * plain.profile_s["chain-3", "a"]


def test_rows_of_the_engine_sweep_differ_from_the_first() -> None:
    assert ENGINES["as in the main run"] == ({}, CHARGE, {})
    assert len({repr(row) for row in ENGINES.values()}) == len(ENGINES)


def test_baselines_run_once_whatever_the_score_is_charged() -> None:
    for case in section_cases(list(SECTIONS), 50, [0]):
        assert not case.setting.believed or case.policy.startswith("topas")
