"""Statistics by hand, table I and figure 2, the document, and the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topas_env.cli import main
from topas_env.compare import Interval, Record
from topas_env.compare._samples import Samples, resampled_percentile
from topas_env.report._document import Document, Figure, Heading, Table, Text, write_document
from topas_env.report._words import verdict
from topas_env.reproduce._cases import section_cases
from topas_env.reproduce._findings import document
from topas_env.reproduce._micro import gantt, table_1
from topas_env.reproduce._run import run_cases
from topas_env.reproduce._settings import Setting

A, B = Setting("chain-3", 0.1, num_tasks=2), Setting("chain-3", 0.2, num_tasks=2)


def record(setting: Setting, policy: str, seed: int, jct: list[float], **options: Any) -> Record:
    import msgspec

    point = msgspec.to_builtins(setting)
    return {"policy": policy, "options": options, "seed": seed, "point": point, "jct_s": jct, "requests": 6}


def test_reductions_by_hand() -> None:
    """Averages over both points: topas (10 + 30) / 2 = 20, lpm (20 + 30) / 2 = 25, spf (12 + 44) / 2 = 28.

    So lpm is the best baseline, and topas is 100 * (1 - 20 / 25) = 20% below it. Both seeds are alike, so every
    resample gives the same and the interval is a point.
    """
    values = {("topas", 0): 10, ("topas", 1): 30, ("lpm", 0): 20, ("lpm", 1): 30, ("spf", 0): 12, ("spf", 1): 44}
    records = [
        record((A, B)[point], policy, seed, [value - 1.0, value + 1.0])
        for (policy, point), value in values.items()
        for seed in (0, 1)
    ]
    samples = Samples(records, (0, 1), Setting)
    assert samples.best([A, B], ("spf", "lpm"), "mean") == "lpm"
    assert samples.best([A], ("spf", "lpm"), "mean") == "spf"
    assert samples.reduction([A, B], "topas", "lpm", "mean") == pytest.approx((20.0, 20.0, 20.0))
    assert samples.reduction([A], "topas", "spf", "mean").value == pytest.approx(100 / 6)
    # p99 of 9, 9, 11, 11 by linear interpolation is 11.
    assert samples.value([A], "topas", "p99").value == pytest.approx(11.0)
    assert samples.reduction([B], "topas", "lpm", "mean", other_settings=[A]).value == pytest.approx(-50.0)


def test_intervals_are_paired_over_seeds() -> None:
    """Seeds differ by a factor of 10, the policy is 10% below in each: with pairs there is no doubt."""
    records = []
    for seed, value in enumerate((1.0, 10.0, 100.0, 1000.0)):
        records += [record(A, "lpm", seed, [value, value]), record(A, "topas", seed, [0.9 * value, 0.9 * value])]
    samples = Samples(records, range(4), Setting)
    found = samples.reduction([A], "topas", "lpm", "mean")
    assert found == pytest.approx((10.0, 10.0, 10.0))
    spread = samples.value([A], "lpm", "mean")
    assert spread.low < 0.5 * spread.value
    assert spread.high > 1.5 * spread.value


def test_percentiles_of_resamples_are_those_of_the_tasks_that_were_drawn() -> None:
    rng = np.random.default_rng(0)
    for seeds, tasks in ((10, 40), (3, 7), (2, 2), (1, 1)):
        jct = np.round(rng.exponential(10.0, (seeds, tasks)) * rng.choice([1, 30], (seeds, 1)), 1)
        draws = rng.integers(0, seeds, (200, seeds))
        expected = np.percentile(jct[draws].reshape(200, -1), 99, axis=1)
        assert resampled_percentile(jct, draws, 99.0) == pytest.approx(expected, rel=1e-12)


def test_a_policy_without_all_seeds_has_not_run() -> None:
    samples = Samples([record(A, "lpm", 0, [1.0, 1.0]), record(A, "lpm", 1, [1.0, 1.0], K=1)], (0, 1), Setting)
    assert not samples.has(A, "lpm")
    assert not samples.has(A, "lpm", {"K": 1})
    assert Samples([record(A, "lpm", 0, [1.0, 1.0])], (0,), Setting).complete([A], ("lpm",))


def test_no_claim_where_the_interval_has_zero_in_it() -> None:
    assert verdict(Interval(5.0, -0.1, 9.0), "lower", "higher") == "no clear difference"
    assert verdict(Interval(5.0, 0.1, 9.0), "lower", "higher") == "clearly lower"
    assert verdict(Interval(-5.0, -9.0, -0.1), "lower", "higher") == "clearly higher"
    one = Samples([record(A, p, 0, [v, v]) for p, v in (("lpm", 10.0), ("topas", 5.0))], (0,), Setting)
    found = one.reduction([A], "topas", "lpm", "p99")
    assert found.value == pytest.approx(50.0)
    assert verdict(found, "lower", "higher") == "one seed, no interval"


def test_figure_2_by_hand() -> None:
    """A set-up is 1 s, a request 4 s, one at a time, one prefix in memory.

    lpm: A A A, B B B, C C C, 3 set-ups, 3 + 9 * 4 = 39 s. The C's end at 31, 35 and 39 s: mean 35.
    srpt: one chain after the other, 9 set-ups, each chain 3 * 5 = 15 s: 15, 30 and 45 s, mean 30.
    """
    lpm, srpt = gantt("lpm"), gantt("srpt")
    assert (lpm.setups, lpm.mean_jct_s, lpm.makespan_s) == (3, 35.0, 39.0)
    assert (srpt.setups, srpt.mean_jct_s, srpt.makespan_s) == (9, 30.0, 45.0)
    assert [box[0] for box in sorted(srpt.boxes, key=lambda box: box[2])] == list("ABCABCABC")


def test_table_1_shows_the_cost_of_two_prefixes() -> None:
    """Beside one prefix of 6,400 tokens 12,160 are left, beside two 5,760: less than half."""
    order = table_1(16)
    assert order.batch[0] > 1.8 * order.batch[1]
    assert order.makespan_s[1] > 1.4 * order.makespan_s[0]


def test_document_of_a_small_run(tmp_path: Path) -> None:
    cases = section_cases(["ablation", "overhead"], 4, (0, 1))
    records = run_cases(cases, tmp_path / "results.jsonl", jobs=1)
    made = document(records, (0, 1), 4, missing=3)
    results = [fact["result"] for fact in made.facts if "paper" in fact]
    assert results.count("figure 5: mean JCT") == 3
    assert "overhead: ms a decision" in results
    assert not any("chain-3" in result for result in results)  # the main part has not run
    texts = [block.text for block in made.blocks if isinstance(block, Text)]
    assert "3 runs are missing" in texts[0]
    assert "not to be relied on" in texts[0]  # 8 tasks are not 2,000
    for fact in made.facts:
        if fact.get("verdict", "").startswith("clearly"):
            assert fact["low"] * fact["high"] > 0


def test_ours_and_another_m_beside_the_paper(tmp_path: Path) -> None:
    """What is not the paper's is said to be ours, and what was not run is said as well."""
    cases = section_cases(["main", "keep", "ours", "enumeration", "literature"], 2, (0,))
    cases = [case for case in cases if (case.policy, case.setting.workload) != ("rollout", "metagpt-tl")]
    made = document(run_cases(cases, tmp_path / "results.jsonl", jobs=1), (0,), 2)
    tables = {block.header[0] + block.header[-1]: block for block in made.blocks if isinstance(block, Table)}
    planned = tables["average over 4 ratestuned (ours)"]
    assert planned.header[2:] == ("rollout (ours)", "learned (ours)", "hold-many (ours)", "tuned (ours)")
    missing = [row[0] for row in planned.rows if "not run" in row]
    assert missing == ["metagpt-tl: mean", "metagpt-tl: p99"]
    literature = {row[0]: row for row in tables["mean JCT, smetagpt-tl"].rows}
    assert literature["rollout (ours)"][-1] == "not run"
    assert {"fcfs", "kvflow", "hrrn", "learned (ours)"} <= set(literature)
    enumerated = tables["TOPAS against itself with M = 6M = 10"]
    # chain-3 has three agents, so from M = 4 on nothing changes.
    mean = enumerated.rows[0]
    assert mean[0] == "chain-3: mean"
    assert mean[3:] == ("0.0%", "0.0%", "0.0%")


def test_documents_are_written_as_html_and_as_markdown(tmp_path: Path) -> None:
    made = Document(
        "A < B",
        [
            Heading("H"),
            Text("see `code`"),
            Table(("a", "b"), [("1 | 2", "3")], "note"),
            Figure("f", '<svg width="1"></svg>', "c"),
        ],
        [{"result": "r", "value": 1.5}],
    )
    page, plain, lines = write_document(made, tmp_path)
    html = page.read_text()
    assert "A &lt; B" in html
    assert "<code>code</code>" in html
    assert '<svg width="1"></svg>' in html
    text = plain.read_text()
    assert "| 1 \\| 2 | 3 |" in text
    assert "](img/reproduction-f.svg)" in text
    assert (tmp_path / "img" / "reproduction-f.svg").read_text().startswith("<svg xmlns=")
    assert json.loads(lines.read_text()) == {"result": "r", "value": 1.5}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_writes_its_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--section", "ablation", "--seeds", "2", "--tasks", "3", "--jobs", "1", "--out", str(tmp_path))
    assert run(*options) == 0
    shown = capsys.readouterr()
    assert "reason" in shown.err  # choices first
    assert "figure 5" in shown.out
    for name in ("results.jsonl", "reproduction.html", "reproduction.md", "reproduction.jsonl"):
        assert (tmp_path / name).stat().st_size > 0
    assert run(*options, "--json") == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any(fact["result"] == "figure 5: p99 JCT" and math.isfinite(fact["value"]) for fact in facts)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 16  # 4 variants, 2 charges, 2 seeds


def test_the_command_refuses_an_unknown_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--section", "figure-9") == 2
    assert "figure-9" in capsys.readouterr().err
