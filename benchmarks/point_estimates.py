"""What the expectation outside the max is worth: TOPAS with distributions against TOPAS with their means.

With a point mass for each stage every branch of a fork but the longest has zero marginal progress, so TOPAS sees no
reason to admit it. This prints mean JCT of lpm, of TOPAS and of TOPAS with point estimates on the same traces.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from topas_env import load_workload, simulate
from topas_env.compare._statistics import Interval, mean_interval, paired_percent
from topas_policies import make_policy

POLICIES = {
    "lpm": ("lpm", {}),
    "topas": ("topas", {}),
    "topas, point estimates": ("topas", {"estimates": "point"}),
}


def measure(workload: str, rate: float, seeds: int, tasks: int, profile: str) -> dict[str, np.ndarray]:
    """Returns the mean JCT of each policy on each seed, float64 (seeds,) by label."""
    found: dict[str, list[float]] = {label: [] for label in POLICIES}
    for seed in track(range(seeds), f"{workload} at {rate:g} task/s", transient=True):
        drawn = load_workload(workload, arrival_rate=rate, num_tasks=tasks, seed=1000 + seed)
        for label, (name, params) in POLICIES.items():
            found[label].append(simulate(drawn, make_policy(name, **params), profile=profile, seed=seed).mean_jct_s)
    return {label: np.array(values) for label, values in found.items()}


def show(interval: Interval, digits: int = 1) -> str:
    """Returns an estimate with its 95% interval."""
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="dag-10-wide")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.03, 0.04])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--profile", default="qwen2.5-32b-a100-80g")
    options = parser.parse_args()
    table = Table(title=f"{options.workload}, {options.seeds} seeds of {options.tasks} tasks, 95% intervals")
    for heading in ("task/s", "policy", "mean JCT s", "against lpm %", "against topas %"):
        table.add_column(heading)
    for rate in options.rates:
        found = measure(options.workload, rate, options.seeds, options.tasks, options.profile)
        for label, values in found.items():
            against = [
                "" if label == other else show(paired_percent(values, found[other])) for other in ("lpm", "topas")
            ]
            table.add_row(f"{rate:g}", label, show(mean_interval(values)), *against)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
