"""Statistics over seeds: intervals, paired differences, the choice of the best baseline, the file of results."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from topas_env._errors import InputError
from topas_env.compare import (
    Point,
    ResultFile,
    grid,
    mean_interval,
    paired_percent,
    read_results,
    run_key,
    summarise,
)
from topas_env.report._headline import headline


def record(policy: str, seed: int, mean: float, p99: float, rate: float = 0.1, **more: Any) -> dict[str, Any]:
    point = msgspec.to_builtins(Point("dag-4", rate, 100))
    return {
        "key": f"{policy}-{seed}-{rate}-{more}", "policy": policy, "options": {}, "workload": "dag-4", "seed": seed,
        "point": point, "mean_jct_s": mean, "p99_jct_s": p99, "profile": "p", "utilisation": 0.5, "num_tasks": 100,
        "task_throughput": 0.1, "mean_batch": 4.0, "prefix_moves": 5, "preemptions": 0, "retractions": 0,
        "decision_ms": 0.1, "bound_s": 20.0, **more,
    }  # fmt: skip


def test_mean_and_interval() -> None:
    interval = mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert interval.value == 3.0
    # Resampled means of five values have a standard deviation of sqrt(2 / 5) = 0.63: about 3 -+ 1.2.
    assert interval.low == pytest.approx(1.8, abs=0.25)
    assert interval.high == pytest.approx(4.2, abs=0.25)
    assert interval == mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0])), "the bootstrap's seed is fixed"


def test_one_seed_has_no_interval_and_equal_seeds_a_point() -> None:
    assert math.isnan(mean_interval(np.array([2.0])).low)
    assert mean_interval(np.array([2.0, 2.0])) == (2.0, 2.0, 2.0)


def test_pairing_removes_what_seeds_have_in_common() -> None:
    # Seeds differ by a factor of ten, the policy is 10% faster on each: paired, the difference is certain.
    baseline = np.array([10.0, 20.0, 50.0, 100.0])
    interval = paired_percent(0.9 * baseline, baseline)
    assert interval.value == pytest.approx(-10.0)
    assert interval.low == pytest.approx(-10.0)
    assert interval.high == pytest.approx(-10.0)
    assert interval.sign == -1
    shuffled = paired_percent(0.9 * baseline[::-1], baseline)
    assert shuffled.high > 0.0, "without the right pairs nothing is certain"


def test_best_baseline_has_the_lowest_mean_over_seeds_and_p99_its_own() -> None:
    # spf is better on two of three seeds, lpm by the mean: (10 + 10 + 10) / 3 < (9 + 9 + 30) / 3.
    records = [record("lpm", s, 10.0, 40.0) for s in range(3)]
    records += [record("spf", s, m, 30.0) for s, m in enumerate((9.0, 9.0, 30.0))]
    records += [record("topas", s, 5.0, 60.0) for s in range(3)]
    (point,) = summarise(records)
    assert (point.best_mean, point.best_p99) == ("lpm", "spf")
    rows = {row.policy: row for row in point.rows}
    assert rows["topas"].mean_difference is not None
    assert rows["topas"].mean_difference.value == pytest.approx(-50.0)
    assert rows["topas"].p99_difference is not None
    assert rows["topas"].p99_difference.value == pytest.approx(100.0)
    assert [row.policy for row in point.rows] == ["lpm", "spf", "topas"]


def test_only_common_seeds_count() -> None:
    records = [record("lpm", s, 10.0 + s, 40.0) for s in range(4)] + [record("topas", s, 9.0, 40.0) for s in (1, 2)]
    (point,) = summarise(records)
    assert {row.seeds for row in point.rows} == {2}
    assert next(row for row in point.rows if row.policy == "lpm").mean_jct_s.value == 11.5


def test_headline_says_when_it_may_be_chance() -> None:
    lpm, clear, unclear = (20.0, 21.0, 22.0), (10.0, 10.5, 11.0), (10.0, 21.0, 33.0)
    for values, words in ((clear, "below the best baseline's (lpm) (95% interval"), (unclear, "may be chance")):
        records = [record("lpm", s, m, 50.0) for s, m in enumerate(lpm)]
        records += [record("topas", s, m, 50.0) for s, m in enumerate(values)]
        assert words in headline(summarise(records))


def test_results_survive_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultFile(path) as results:
        results.append(record("lpm", 0, 1.0, 2.0))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])  # a kill in the middle of the second line
    assert len(read_results(path)) == 1
    with ResultFile(path) as results:
        assert len(results.known) == 1
        results.append(record("lpm", 1, 1.0, 2.0))
    with ResultFile(path) as results:
        assert len(results.known) == 2, "what was appended after the cut line is on a line of its own"


def test_bad_results_name_file_line_and_path(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(msgspec.json.encode(record("lpm", 0, 1.0, 2.0)) + b'\n{"key": "a"}\n' + b"{}\n")
    with pytest.raises(InputError, match=r"results.jsonl:2: \$.policy"):
        read_results(path)
    with pytest.raises(InputError, match="no-such"):
        read_results(tmp_path / "no-such")
    path.write_bytes(b"")
    with pytest.raises(InputError, match="no finished run"):
        read_results(path)


def test_keys_differ_where_runs_do() -> None:
    points = [
        Point("dag-4", 0.1, 10),
        Point("dag-4", 0.2, 10),
        Point("dag-4", 0.1, 10, overrides={"host_tier": "none"}),
    ]
    runs = grid(points, ["spf", "lpm"], [0, 1], {"spf": {"a": 1}})
    assert len({run_key(run) for run in runs}) == len(runs) == 12
    assert run_key(runs[0]) == run_key(grid(points, ["spf"], [0, 1], {"spf": {"a": 1}})[0])
