"""Suites: what they hold, that they can be cut down and gone on with, and what their pages say."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topas_env import load_profile, load_workload
from topas_env._errors import InputError
from topas_env._utilisation import task_engine_s
from topas_env.cli import main
from topas_env.compare import (
    BASELINES,
    SUITES,
    Point,
    Record,
    Suite,
    SuitePoint,
    make_suite,
    ordered_runs,
    place_of,
    policy_name,
    run_cost,
)
from topas_env.compare._execute import key_of
from topas_env.compare._suite import SUITE_SEEDS, Entry
from topas_env.report import suite_document
from topas_env.report._document import Table
from topas_env.report._standings import Standings, mean_difference
from topas_policies import policy_names

ROOT = Path(__file__).resolve().parents[1]
NOWHERE = Path("/no/such/folder")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Runs `topas compare --suite` in this process; returns status, output and error output, spaces made one."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--suite", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, " ".join(captured.err.split())


def test_the_standard_points_have_the_loads_that_they_say() -> None:
    suite = make_suite("standard", sessions=NOWHERE)
    assert len(suite.points) == 5 * 3 * 2
    assert len({at.name for at in suite.points}) == len(suite.points)
    for at in suite.points:
        assert at.point.overrides["host_tier"] == at.tier
        profile = load_profile(at.point.profile, **at.point.overrides)
        # Other tasks than those that the rate was set by: lengths vary, so to a tenth.
        drawn = load_workload(at.point.workload, num_tasks=300, seed=3, arrival_rate=at.point.arrival_rate)
        assert at.point.arrival_rate is not None
        assert at.point.arrival_rate * task_engine_s(drawn, profile).mean() == pytest.approx(at.load, rel=0.1)
    assert {entry.policy for entry in suite.entries} == set(policy_names())
    assert len(suite.seeds) * (suite.points[0].point.num_tasks or 0) >= 2_000


def test_the_seeds_are_held_out() -> None:
    tuned = json.loads((ROOT / "policies/topas_policies/tuned.json").read_text())["record"]
    learned = json.loads((ROOT / "agents/topas_agents/checkpoints/learned.json").read_text())["record"]
    first, last = learned["data"]["config"]["scenarios"]["seeds"]
    training = set(tuned["settings"]["seeds"]) | set(range(first, last + 1))
    training |= set(range(*learned["data"]["config"]["evaluation"]["seeds"]))
    assert not training & set(SUITE_SEEDS)
    assert len(SUITE_SEEDS) >= 20


@pytest.mark.parametrize("name", SUITES)
def test_every_run_of_a_suite_can_be_made(name: str) -> None:
    suite = make_suite(name, sessions=NOWHERE, seeds=[5000])
    keys = [key_of(run) for run in ordered_runs(suite, run_cost)]  # checks workloads, profiles, policies and options
    assert len(set(keys)) == len(keys) == len(suite.points) * len(suite.entries)


def test_cheap_policies_come_first_then_light_workloads_then_whole_seeds() -> None:
    suite = make_suite(
        "standard", sessions=NOWHERE, seeds=[1, 2], only=["0.5/all"], policies=["rollout", "hrrn", "fcfs"]
    )
    runs = [(run.policy, run.point.workload, run.seed) for run in ordered_runs(suite, run_cost)]
    assert [policy for policy, _, _ in runs] == ["fcfs"] * 10 + ["hrrn"] * 10 + ["rollout"] * 10
    mine = [(workload, seed) for policy, workload, seed in runs if policy == "rollout"]
    assert [seed for _, seed in mine[:8]] == [1] * 4 + [2] * 4
    assert mine[8:] == [("metagpt-tl", 1), ("metagpt-tl", 2)]


def test_what_is_not_there_is_refused_or_said() -> None:
    with pytest.raises(InputError, match="chain-9"):
        make_suite("standard", sessions=NOWHERE, only=["chain-9"])
    with pytest.raises(InputError, match="everything"):
        make_suite("everything", sessions=NOWHERE)
    with pytest.raises(InputError, match="speed"):
        make_suite("ablation", sessions=NOWHERE, policies=["speed"])
    (note,) = make_suite("standard", sessions=NOWHERE).notes
    assert "/no/such/folder is not there" in note


def test_recorded_sessions_are_served_where_they_are(tmp_path: Path) -> None:
    requests = [{"t": 1.0 + k, "model": "m", "in": 900 + k, "out": 20, "hash_ids": [1, 2]} for k in range(3)]
    session = {"id": "s", "block_size": 64, "tool_tokens": 300, "system_tokens": 400, "requests": requests}
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    (sessions / "one.json").write_text(json.dumps({**session, "hash_id_scope": "local"}))
    suite = make_suite("standard", sessions=sessions, only=["sessions"], policies=["fcfs"])
    assert [at.name for at in suite.points] == [
        f"sessions/{load}/{tier}" for load in (0.5, 0.75, 0.95) for tier in ("all", "none")
    ]
    assert suite.notes == ()
    assert suite.points[0].point.profile == "qwen2.5-7b-a100-80g"


def test_the_command_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["standard", "--only", "chain-3/0.5", "--seeds", "5000:5002", "--tasks", "6", "--sessions", NOWHERE]
    small += ["-o", tmp_path, "--jobs", "1"]
    code, out, err = command(capsys, *small, "-p", "fcfs,spf", "--minutes", "0")
    assert code == 0, err
    assert "8 runs are missing" in err
    assert not (tmp_path / "results.jsonl").read_bytes()
    code, out, err = command(capsys, *small, "-p", "fcfs,spf")
    assert "/no/such/folder is not there: without the recorded sessions" in err
    assert "2 points, 2 policies, 2 seeds, 8 runs" in err
    page = tmp_path / "docs" / "board.md"
    code, out, err = command(capsys, *small, "-p", "fcfs,spf,topas-keep", "--page", page, "--json")
    assert code == 0, err
    assert "8 of 12 runs were finished before" in err
    facts = [json.loads(line) for line in out.splitlines()]
    assert {(fact["point"], fact["policy"]) for fact in facts if "point" in fact} == {
        (f"chain-3/0.5/{tier}", policy) for tier in ("all", "none") for policy in ("fcfs", "spf", "topas-keep")
    }
    assert page.read_text().startswith("# Leaderboard")
    assert (page.parent / "img" / "board-mean-all.svg").is_file()
    for ending in ("html", "md", "jsonl"):
        assert (tmp_path / f"standard.{ending}").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["standard", "-w", "chain-3"], "--workload: cannot be given with --suite"),
        (["standard", "--rate", "1"], "--rate: cannot be given with --suite"),
        (["standard", "--set", "profile.rebuild=decode"], "--set profile.rebuild"),
        (["standard", "-p", "no-such"], "no-such"),
        (["nothing"], "--suite: 'nothing'"),
    ],
)
def test_options_that_a_suite_fixes_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = command(capsys, *arguments, "--sessions", NOWHERE, "-o", tmp_path, "--only", "chain-3/0.5/all")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("topas: ") == 1


POINT = SuitePoint(
    "chain-3/0.5/all", "chain-3", 0.5, "all", "", Point("chain-3", 0.1, 2, overrides={"host_tier": "all"})
)


def record(policy: str, seed: int, jct: list[float], at: SuitePoint = POINT, **options: Any) -> Record:
    return {
        "policy": policy, "options": options, "seed": seed, "point": msgspec.to_builtins(at.point), "jct_s": jct,
        "mean_jct_s": sum(jct) / len(jct), "bound_s": 5.0, "decision_ms": 0.1, "utilisation": 0.5,
    }  # fmt: skip


def test_differences_by_hand() -> None:
    """spf's mean is 10 and lpm's 12.5, and their p99 are 11 and about 13: spf is the best baseline of both."""
    records = [record("spf", seed, [9.0, 11.0]) for seed in (1, 2, 3)]
    records += [record("lpm", seed, [12.0, 13.0]) for seed in (1, 2, 3)]
    records += [record("rollout", seed, [7.0, 9.0]) for seed in (1, 2)]
    standings = Standings(records)
    assert standings.best(POINT, "mean") == standings.best(POINT, "p99") == "spf"
    found = standings.against_best(POINT, "rollout", "mean")
    assert found is not None
    assert found.difference == pytest.approx((-20.0, -20.0, -20.0))
    assert found.seeds == 2
    assert standings.over_bound(POINT, "spf") == pytest.approx(2.0)
    # Of the others lpm and spf have both of rollout's seeds; of itself and of what it lacks nothing is said.
    assert standings.best_of_others(POINT, "rollout", "mean", ["rollout", "lpm", "spf"]) == "spf"
    assert standings.best_of_others(POINT, "spf", "mean", ["rollout"]) == ""
    assert standings.against_best(POINT, "topas", "mean") is None


def test_the_best_baseline_is_chosen_over_seeds_that_all_have() -> None:
    """On seed 1 alone fcfs is ahead of lpm; its second seed is not there yet, so nothing else counts."""
    records = [record("fcfs", 1, [9.0, 9.0]), record("lpm", 1, [10.0, 10.0]), record("lpm", 2, [1.0, 1.0])]
    assert Standings(records).best(POINT, "mean") == "fcfs"
    assert Standings([record("topas", 1, [9.0, 9.0])]).best(POINT, "mean") == ""


def test_averages_over_points_are_geometric() -> None:
    """Ratios 0.5 and 2: on average 1, though the differences are -50 and +100%."""
    other = msgspec.structs.replace(POINT, name="chain-3/0.5/none", point=Point("chain-3", 0.1, 2))
    records = [record("spf", seed, [10.0, 10.0], at) for seed in (1, 2) for at in (POINT, other)]
    records += [record("topas", seed, [5.0, 5.0]) for seed in (1, 2)]
    records += [record("topas", seed, [20.0, 20.0], other) for seed in (1, 2)]
    standings = Standings(records)
    both = [standings.against_best(at, "topas", "mean") for at in (POINT, other)]
    assert mean_difference([each for each in both if each is not None]) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    alone = Standings([record("spf", 1, [10.0, 10.0]), record("topas", 1, [5.0, 5.0])])
    one = alone.against_best(POINT, "topas", "mean")
    assert one is not None
    found = mean_difference([one])
    assert found.value == pytest.approx(-50.0)
    assert math.isnan(found.low)


def goals(rollout: float, learned: float, topas: float = 10.0) -> dict[str, str]:
    """Returns what the page says of the goals where the best baseline takes 10 s and the bound is 5 s."""
    times = {"spf": 10.0, "rollout": rollout, "learned": learned, "topas": topas}
    records = [record(policy, seed, [time, time]) for policy, time in times.items() for seed in (1, 2, 3)]
    suite = Suite("standard", (POINT,), tuple(Entry(policy) for policy in times), (1, 2, 3))
    tables = [block for block in suite_document(suite, records).blocks if isinstance(block, Table)]
    return {row[0]: row[2] for row in next(table for table in tables if table.header[0] == "goal").rows}


def test_goals_by_hand() -> None:
    found = goals(rollout=8.0, learned=8.3)
    assert found["points where `rollout` is worse than the best of all others by more than 1%"] == "0 of 1: reached"
    assert found["`rollout` against the best baseline, 1 contended points"].endswith(": reached")
    assert "85% (-17.0% of -20.0%): reached" in found.values()
    found = goals(rollout=10.2, learned=9.0)
    assert found["points where `rollout` is worse than the best of all others by more than 1%"] == "1 of 1: not reached"
    assert found["`rollout` against `topas`, 1 contended points"] == "+2.0% (+2.0 to +2.0): not reached"
    assert "`learned` -10.0%, `rollout` +2.0%: no gain to keep" in found.values()


def test_baselines_are_registered_and_have_a_row_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for name in BASELINES:
        assert name in policy_names()
        assert f"`{name}`" in text
    assert policy_name("rollout", {"arrivals": 8}) == "rollout arrivals=8"


def test_the_robust_page_says_what_is_left_of_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(
        capsys, "robust", "--only", "chain-3*as told,chain-3*tags,chain-3*decode time*", "--seeds", "5000:5002",
        "--tasks", "10", "-p", "fcfs,spf,topas-keep,rollout", "-o", tmp_path, "--jobs", "1", "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = [json.loads(line) for line in out.splitlines()]
    worlds = ["as told", "decode time x 0.7", "decode time x 1.3", "a tenth without tags", "a tenth with wrong tags"]
    shares = {fact["world"]: fact["share"] for fact in facts if fact.get("goal") == "half of the gain"}
    assert list(shares) == worlds
    assert shares["as told"] == 1.0
    page = (tmp_path / "robust.md").read_text()
    assert "## What is left of the planner's gain" in page
    assert "| a tenth with wrong tags |" in page
    assert {fact["policy"] for fact in facts if "policy" in fact} == {"topas-keep", "rollout"}


def test_the_ablation_page_compares_the_planner_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(
        capsys, "ablation", "--only", "chain-3", "--seeds", "5000:5002", "--tasks", "8", "-p", "rollouts",
        "-o", tmp_path, "--jobs", "1", "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = [json.loads(line) for line in out.splitlines()]
    assert {fact["group"] for fact in facts} == {"rollouts"}
    assert {fact["metric"] for fact in facts} == {"mean", "p99"}
    page = (tmp_path / "ablation.md").read_text()
    for fact in facts:
        assert f"| rollouts: `{fact['policy'].removeprefix('rollout ')}` |" in page


def test_what_a_policy_alone_is_told_is_in_its_name() -> None:
    """A record at the point with another charge stands beside those at the plain point, under a name of its own."""
    (entry,) = [entry for entry in make_suite("standard", sessions=NOWHERE).entries if entry.told]
    assert entry.label == "topas told rebuild=decode"
    charged = msgspec.structs.replace(POINT, point=msgspec.structs.replace(POINT.point, believed=dict(entry.told)))
    records = [
        record("spf", 1, [10.0, 10.0]),
        record("topas", 1, [12.0, 12.0]),
        record("topas", 1, [9.0, 9.0], charged),
    ]
    standings = Standings(records)
    for label, value in (("topas", 20.0), (entry.label, -10.0)):
        found = standings.against_best(POINT, label, "mean")
        assert found is not None
        assert found.difference.value == pytest.approx(value)
    # What the point overrides is of the world, and stays with it.
    world = msgspec.structs.replace(
        POINT.point, overrides={"load_s_per_token": 2e-5}, believed={"load_s_per_token": 1e-5}
    )
    assert place_of(world) == (world, {})
