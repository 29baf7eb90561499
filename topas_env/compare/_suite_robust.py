"""The robustness suite: the world is not what policies are told and were tuned on."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from topas_env.compare._config import Point, Scalar
from topas_env.compare._suite import Entry, Suite, SuitePoint, standard_points
from topas_env.compare._summary import PAPER_BASELINES

__all__ = ["FACTORS", "PARAMETERS", "robust_suite", "worlds"]

FACTORS = (0.7, 1.3)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "prefill time": ("prefill_base_s", "prefill_s_per_token"),
    "decode time": ("step_base_s", "step_s_per_request", "step_s_per_kv_token"),
    "load time": ("load_s_per_token", "offload_s_per_token"),
    "KV budget": ("kv_budget_tokens",),
}
"""Parameters of the engine that are off together, by name; `decode_s_per_token` is what policies are told anyway."""

WORKLOADS = ("chain-3", "dag-4", "dag-10-wide")
LOAD = 0.75
JOINT = 3  # worlds with everything off at once
_JOINT_SEED = 20_261_130
SURGE = 2.0
TENTH = 0.1
LIVE_S = 0.010  # what a decision may take in a live engine
POLICIES = (*PAPER_BASELINES, "kvflow", "continuum", "topas", "topas-keep", "tuned", "learned", "rollout")


def robust_suite(sessions: Path | None, tasks: int, seeds: Sequence[int]) -> Suite:
    """Returns three points of the leaderboard at which there is something to win, each in every world of `worlds`.

    MetaGPT's workloads and the recorded sessions are left out: there policies lie within some per cent of each other,
    and a run takes a planner up to half a minute.
    """
    del sessions
    plain = [at for at in standard_points(None, tasks, (LOAD,), ("all",)) if at.workload in WORKLOADS]
    found = [
        SuitePoint(f"{at.name}/{name}", at.workload, at.load, at.tier, name, point)
        for at in plain
        for name, point in worlds(at.point).items()
    ]
    return Suite("robust", tuple(found), tuple(map(Entry, POLICIES)), tuple(seeds))


def worlds(point: Point) -> dict[str, Point]:
    """Returns what a point becomes, by the name of the world; the first is the point itself.

    One thing at a time 30% below and above what is believed; three draws of everything at once, each factor uniform
    within 30%; a surge; decisions that take time; a tenth of the tasks with tags missing or wrong.
    """
    found = {"as told": point}
    for name in (*PARAMETERS, "output length", "arrival rate"):
        for factor in FACTORS:
            found[f"{name} x {factor:g}"] = _changed(point, {name: factor})
    rng = np.random.default_rng(_JOINT_SEED)
    for number in range(1, JOINT + 1):
        names = (*PARAMETERS, "output length", "arrival rate")
        drawn = rng.uniform(*FACTORS, len(names)).round(3).tolist()
        found[f"all at once {number}"] = _changed(point, dict(zip(names, drawn, strict=True)))
    replace = msgspec.structs.replace
    found[f"arrivals x {SURGE:g} in the middle third"] = replace(point, surge=SURGE)
    found[f"a decision takes {1e3 * LIVE_S:g} ms"] = replace(point, decision_time=LIVE_S)
    found["a decision takes what it takes here"] = replace(point, decision_time="measured")
    found["a tenth without tags"] = replace(point, untagged=TENTH)
    found["a tenth with wrong tags"] = replace(point, mistagged=TENTH)
    return found


def _changed(point: Point, factors: dict[str, float]) -> Point:
    """Returns the point with some things off by a factor; policies are told, and expect, what they were before."""
    from topas_env._profile import load_profile

    plain = load_profile(point.profile, **point.overrides)
    overrides: dict[str, Scalar] = {}
    for name, factor in factors.items():
        for field in PARAMETERS.get(name, ()):
            value = factor * getattr(plain, field)
            overrides[field] = round(value) if field == "kv_budget_tokens" else float(f"{value:.6g}")
    believed: dict[str, Scalar] = {field: getattr(plain, field) for field in overrides}
    rate = point.arrival_rate
    if rate is not None and "arrival rate" in factors:
        rate = float(f"{rate * factors['arrival rate']:.6g}")
    return msgspec.structs.replace(
        point,
        arrival_rate=rate,
        overrides={**point.overrides, **overrides},
        believed=believed,
        output_scale=factors.get("output length", 1.0),
    )
