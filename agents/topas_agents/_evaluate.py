"""Evaluation of a policy next to others, on traces that it was never trained on."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_agents._checkpoint import Score
from topas_agents._config import Evaluation, Scenarios
from topas_agents._scenarios import least_budget, rate_for_load
from topas_env import load_profile, simulate
from topas_env._workload import workload_spec
from topas_policies import make_policy

__all__ = ["evaluate", "paired_interval"]

_RESAMPLES = 2000


def evaluate(
    policy: Any, settings: Evaluation, trained_on: Scenarios, progress: Callable[[int, int], None] | None = None
) -> tuple[Score, ...]:
    """Runs a policy and those that it is compared with on the same traces.

    Points with a request that the engine's KV budget can never hold are left out.

    Args:
        policy: The one that is measured.
        settings: Points, seeds and the other policies.
        trained_on: What the policy was trained on, so that the scores say what was held out.
        progress: Called with the points so far and all points.
    """
    others = [make_policy(name) for name in settings.policies]
    seeds = range(settings.seeds[0], settings.seeds[1] + 1)
    grid = list(itertools.product(settings.workloads, settings.profiles, settings.host_tiers, settings.loads))
    scores = []
    for done, (name, profile_name, tier, load) in enumerate(grid):
        source, profile = workload_spec(name), load_profile(profile_name, host_tier=tier)
        rate = rate_for_load(source, profile, load)
        traces = [source.draw(seed=seed, num_tasks=settings.num_tasks, arrival_rate=rate) for seed in seeds]
        if max(least_budget(trace, profile) for trace in traces) <= profile.kv_budget_tokens:
            means = {
                each.name: np.array(
                    [simulate(t, each, profile=profile, seed=s).mean_jct_s for t, s in zip(traces, seeds, strict=True)]
                )
                for each in (*others, policy)
            }
            held_out = [
                what
                for what, known in (
                    (f"workload {name}", trained_on.workloads),
                    (f"profile {profile_name}", trained_on.profiles),
                )
                if what.split(" ", 1)[1] not in known
            ]
            scores.append(
                _score(
                    f"{name}, {profile_name}, host tier {tier}, load {load:g}",
                    held_out,
                    tuple(seeds),
                    means,
                    policy.name,
                )
            )
        if progress is not None:
            progress(done + 1, len(grid))
    return tuple(scores)


def _score(
    point: str, held_out: list[str], seeds: tuple[int, ...], means: dict[str, NDArray[np.float64]], own: str
) -> Score:
    average = {name: float(values.mean()) for name, values in means.items()}
    best = min((name for name in means if name != own), key=average.__getitem__)
    relative, low, high = paired_interval(means[own] / means[best] - 1.0)
    return Score(
        point=point,
        held_out=" and ".join(held_out),
        seeds=seeds,
        mean_jct_s={name: round(value, 3) for name, value in average.items()},
        best_baseline=best,
        relative=round(relative, 4),
        relative_low=round(low, 4),
        relative_high=round(high, 4),
    )


def paired_interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of paired differences and its 95% percentile-bootstrap interval.

    Args:
        values: float64 (n,), one for each seed.
        seed: Of the resampling.
    """
    draws = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(values.mean()), float(low), float(high)
