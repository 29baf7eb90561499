"""The benchmark still runs: every measurement at a tiny size. What it measures is not checked here."""

from pathlib import Path

import pytest

from topas_env import Snapshot

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_measurement_runs() -> None:
    import bench

    assert bench.simulate_rate("spf", 5, plain=False) > 0
    assert bench.simulate_rate("spf", 5, plain=True) > 0
    assert bench.env_rate(5) > 0
    assert bench.batch_rate(2, 4) > 0
    assert min(bench.decision_times("metagpt-sop", 5)) > 0
    assert bench.synthetic_decision_ms(4, 12) > 0


def test_yardsticks_run() -> None:
    import yardsticks

    assert yardsticks.cartpole_steps_per_s(0.01) > 0
    assert yardsticks.heap_events_per_s(0.01) > 0


@pytest.mark.parametrize(("agents", "requests"), [(1, 1), (4, 64), (64, 250)])
def test_synthetic_snapshots_keep_the_rules_and_have_the_size(agents: int, requests: int) -> None:
    import snapshots

    made = Snapshot.from_dict(snapshots.big_snapshot(agents, requests))
    assert len(made.requests) == requests
    assert len({agent.name for workflow in made.workflows for agent in workflow.agents}) == agents
