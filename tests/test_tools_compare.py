"""Comparisons: the grid, identical traces, going on after an interrupt, processes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topas_env._errors import InputError
from topas_env.compare import Point, RunConfig, grid, read_results, run_all, summarise
from topas_env.compare import _pool as pool

POINT = Point("chain-3", 0.15, 6)
POLICIES = ["fcfs", "spf", "topas"]


def small() -> list[RunConfig]:
    return grid([POINT], POLICIES, [0, 1], {})


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_all(small(), tmp_path_factory.mktemp("runs") / "results.jsonl", jobs=1)


def test_records_have_the_names_of_sglangs_benchmark(records: list[dict[str, Any]]) -> None:
    names = {
        "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "input_throughput",
        "output_throughput", "total_throughput", "concurrency", "mean_jct_s", "p99_jct_s", "decision_ms", "bound_s",
    }  # fmt: skip
    names |= {
        f"{statistic}_{metric}_ms"
        for metric in ("ttft", "tpot", "itl", "e2e_latency")
        for statistic in ("mean", "median", "std", "p90", "p95", "p99")
    }
    for record in records:
        assert names <= set(record), names - set(record)
        assert record["completed"] == 18
        assert record["num_tasks"] == 6
        assert record["request_throughput"] == pytest.approx(18 / record["duration"])
        assert record["total_throughput"] == pytest.approx(record["input_throughput"] + record["output_throughput"])
        assert 0 < record["mean_ttft_ms"] < record["mean_e2e_latency_ms"]
        assert record["mean_jct_s"] == pytest.approx(sum(record["jct_s"]) / 6, rel=1e-3)


def test_all_policies_see_the_same_trace_and_seeds_differ(records: list[dict[str, Any]]) -> None:
    traces = {seed: {r["trace"] for r in records if r["seed"] == seed} for seed in (0, 1)}
    assert len(traces[0]) == len(traces[1]) == 1
    assert traces[0] != traces[1]


def test_bound_is_below_every_policy_and_the_same_for_all(records: list[dict[str, Any]]) -> None:
    for seed in (0, 1):
        bounds = {record["bound_s"] for record in records if record["seed"] == seed}
        assert len(bounds) == 1
        assert all(record["mean_jct_s"] >= bounds.copy().pop() for record in records if record["seed"] == seed)


def test_the_first_seed_keeps_a_timeline(records: list[dict[str, Any]]) -> None:
    for record in records:
        timeline = record.get("timeline")
        assert (timeline is not None) == (record["seed"] == 0)
        if timeline is None:
            continue
        spans, held = timeline["spans"], timeline["memory"]
        assert len(spans["start_s"]) >= 18
        assert all(start < end for start, end in zip(spans["start_s"], spans["end_s"], strict=True))
        assert sum(not preempted for preempted in spans["preempted"]) == 18
        for sample in range(len(held["time_s"])):
            used = sum(tokens[sample] for tokens in held["prefix_tokens"])
            used += held["running_tokens"][sample] + held["history_tokens"][sample]
            assert used <= timeline["kv_budget_tokens"]


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    path = tmp_path / "results.jsonl"

    def stop(done: int, total: int, config: RunConfig | None) -> None:
        assert total == 6
        if done == 2 and config is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(small(), path, jobs=1, progress=stop)
    kept = path.read_bytes()
    assert len(read_results(path)) == 2
    seen: list[tuple[int, str | None]] = []
    again = run_all(small(), path, jobs=1, progress=lambda n, _, c: seen.append((n, c and c.policy)))
    # Two were there, so the first report says 2, and the third policy of seed 0 is the first to run.
    assert seen == [(2, None), (3, "topas"), (4, "fcfs"), (5, "spf"), (6, "topas")]
    assert path.read_bytes().startswith(kept)
    assert [timeless(record) for record in again] == [timeless(record) for record in records]
    assert run_all(small(), path, jobs=1) == again


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without what the machine's own clock measured."""
    return {key: value for key, value in record.items() if key not in {"decision_ms", "wall_s"}}


def test_processes_give_the_same_records(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    found = run_all(small(), tmp_path / "results.jsonl", jobs=2)
    assert [timeless(record) for record in found] == [timeless(record) for record in records]


def test_a_changed_configuration_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    made: list[RunConfig] = []

    def fake(config: RunConfig) -> dict[str, Any]:
        made.append(config)
        return {
            "policy": config.policy, "workload": "chain-3", "seed": config.seed,
            "point": msgspec.to_builtins(config.point), "mean_jct_s": 1.0, "p99_jct_s": 1.0,
        }  # fmt: skip

    monkeypatch.setattr(pool, "execute", fake)
    run_all(grid([POINT], ["spf"], [0], {}), path, jobs=1)
    run_all(grid([POINT], ["spf"], [0], {}), path, jobs=1)
    assert len(made) == 1
    run_all(grid([Point("chain-3", 0.15, 6, overrides={"host_tier": "none"})], ["spf"], [0], {}), path, jobs=1)
    run_all(grid([POINT], ["spf"], [1], {}), path, jobs=1)
    assert len(made) == 3


def test_profile_values_make_points_and_change_the_run(tmp_path: Path) -> None:
    points = [Point("chain-3", 0.15, 40, overrides={"host_tier": tier}) for tier in ("all", "none")]
    found = summarise(run_all(grid(points, ["fcfs"], [0], {}), tmp_path / "r.jsonl", jobs=1))
    assert [summary.point.overrides["host_tier"] for summary in found] == ["all", "none"]
    # Loading a prefix again is about 25 times cheaper than computing it again.
    assert found[0].rows[0].mean_jct_s.value < found[1].rows[0].mean_jct_s.value


def test_bad_input_is_refused_before_any_run(tmp_path: Path) -> None:
    runs = grid([POINT], ["spf", "topas"], [0], {"topas": {"no_such": 1}})
    with pytest.raises(InputError, match="no_such"):
        run_all(runs, tmp_path / "results.jsonl", jobs=1)
    assert not (tmp_path / "results.jsonl").exists()


def test_a_request_that_never_fits_is_refused_with_both_numbers(tmp_path: Path) -> None:
    runs = grid([Point("chain-3", 0.15, 6, overrides={"kv_budget_tokens": 5000})], ["spf"], [0], {})
    with pytest.raises(InputError, match="5000"):
        run_all(runs, tmp_path / "results.jsonl", jobs=1)


PLUGIN = """
import time
from pathlib import Path
from topas_policies import SPF, register_policy

@register_policy("waits")
class Waits(SPF):
    name = "waits"

    def reset(self, *, seed=None):
        while seed >= 3 and not Path(__file__).with_name("gate").exists():
            time.sleep(0.01)
"""


def start_waiting(tmp_path: Path) -> tuple[list[str], "subprocess.Popen[str]"]:
    """Starts a comparison of which three runs end; the others wait for a file. Returns its command and process."""
    plugin, results = tmp_path / "waits.py", tmp_path / "results.jsonl"
    plugin.write_text(PLUGIN)
    command = [
        str(Path(sys.executable).with_name("topas")), "compare", "-w", "chain-3", "-p", "waits", "--tasks", "5",
        "--plugin", str(plugin), "--seeds", "8", "-o", str(tmp_path), "--json", "--jobs", "2",
    ]  # fmt: skip
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background may have it ignored
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    for _ in range(6000):  # a bound on the wait, not a measurement
        if process.poll() is not None or (results.exists() and results.read_bytes().count(b"\n") == 3):
            break
        time.sleep(0.05)
    return command, process


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_workers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    _, process = start_waiting(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=60)
    for _ in range(1200):
        left = [child for child in children if is_running(child)]
        if not left:
            break
        time.sleep(0.05)
    assert not left


def is_running(pid: str) -> bool:
    """Tells whether there is a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_interrupting_the_command_and_going_on(tmp_path: Path) -> None:
    """Three runs end, the others wait for a file that is made after the interrupt only."""
    results = tmp_path / "results.jsonl"
    command, process = start_waiting(tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "3 of 8 runs are kept" in " ".join(err.split())
    assert "the same command goes on from there" in " ".join(err.split())
    kept = results.read_bytes()
    assert kept.count(b"\n") == 3
    (tmp_path / "gate").touch()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 of 8 runs were finished before" in " ".join(done.stderr.split())
    assert results.read_bytes().startswith(kept)
    assert [json.loads(line)["seed"] for line in done.stdout.splitlines()] == list(range(8))
