"""The ablation suite: the planner with one thing changed at a time."""

from collections.abc import Sequence
from pathlib import Path

from topas_env.compare._config import Scalar
from topas_env.compare._suite import Entry, Suite, standard_points

__all__ = ["ABLATIONS", "ablation_suite"]

POINTS = ("chain-3/0.75/all", "dag-4/0.75/none", "dag-10-wide/0.75/all", "metagpt-sop/0.75/all")
ABLATIONS: dict[str, tuple[dict[str, Scalar], ...]] = {
    "candidates": ({"max_candidates": 0}, {"max_candidates": 15}, {"max_candidates": 30}),
    "idle prefixes": ({"max_candidates": 30, "idle": False},),
    "base policies": (
        {"base_policies": "hold-many,hold-depth"},
        {"base_policies": "hold-many"},
        {"base_policies": "hold-depth"},
        {"base_policies": "gated-lpm"},
        {"base_policies": "many,depth,gated-lpm"},
        {"base_policies": "gated-lpm,lpm,spf"},
    ),
    "continuations": ({"continuations": 1}, {"continuations": 3}),
    "horizon": ({"horizon_s": 20.0}, {"horizon_s": 60.0}, {"horizon_s": 180.0}),
    "arrivals": ({"arrivals": 8}, {"arrivals": 8, "counted_arrivals": 8}, {"arrivals": 32, "counted_arrivals": 16}),
    "samples": ({"scenarios": 1}, {"scenarios": 2}, {"scenarios": 8, "rollouts": 64}),
    "rollouts": ({"rollouts": 4}, {"rollouts": 8}, {"rollouts": 16}, {"rollouts": 128}),
    "margin": ({"margin": 0.0}, {"margin": 0.1}),
    "early stopping": ({"give_up": 10.0},),
    "preemption": ({"max_candidates": 15, "preempt": "none"}, {"max_candidates": 15, "preempt": "all"}),
    "tail weight": ({"tail_weight": 0.5}, {"tail_weight": 2.0}),
}
"""What differs from the planner's defaults, by what it is."""


def ablation_suite(sessions: Path | None, tasks: int, seeds: Sequence[int]) -> Suite:
    """Returns the planner as it is and with each of `ABLATIONS`, at four points of the leaderboard."""
    del sessions
    points = tuple(at for at in standard_points(None, tasks) if at.name in POINTS)
    entries = [Entry("rollout", group="as it is")]
    entries += [Entry("rollout", options, name) for name, variants in ABLATIONS.items() for options in variants]
    return Suite("ablation", points, tuple(entries), tuple(seeds))
