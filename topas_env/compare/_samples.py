"""What the runs of a point gave, and differences between policies with bootstrap intervals over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env.compare._config import Scalar, policy_name
from topas_env.compare._statistics import BOOTSTRAP_SEED, Interval
from topas_env.compare._store import Record

__all__ = ["METRICS", "Samples", "interval_of", "resampled_percentile"]

Options = Mapping[str, Scalar]
METRICS = ("mean", "p99")
RESAMPLES = 1_000


class Samples:
    """Runs by operating point, policy and seed; only some seeds, so that all that is compared has the same.

    All statistics of all points use the same resamples of seeds, so every difference is paired: by trace within a
    point, by seed over points.

    Args:
        records: Finished runs.
        seeds: The seeds, in order; a policy that lacks one of them at a point counts as not run there.
        kind: What the operating points of the records are.
    """

    def __init__(self, records: Iterable[Record], seeds: Sequence[int], kind: type[msgspec.Struct]) -> None:
        self.seeds = list(seeds)
        self._runs: dict[tuple[bytes, str], dict[int, Record]] = {}
        for record in records:
            point = _key(msgspec.convert(record["point"], kind))
            self._runs.setdefault((point, policy_name(record["policy"], record["options"])), {})[record["seed"]] = (
                record
            )
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        n = len(self.seeds)
        draws = rng.integers(0, n, (RESAMPLES if n > 1 else 0, n))
        self._draws: NDArray[np.int64] = np.vstack([np.arange(n), draws])
        self._boot: dict[tuple[bytes, str, str], NDArray[np.float64]] = {}

    def has(self, setting: msgspec.Struct, policy: str, options: Options | None = None) -> bool:
        """Returns whether all seeds of a policy at a point are there."""
        runs = self._runs.get((_key(setting), policy_name(policy, options or {})), {})
        return all(seed in runs for seed in self.seeds)

    def complete(self, settings: Sequence[msgspec.Struct], policies: Sequence[str]) -> bool:
        """Returns whether all policies ran at all points."""
        return all(self.has(setting, policy) for setting in settings for policy in policies)

    def column(
        self, setting: msgspec.Struct, policy: str, field: str, options: Options | None = None
    ) -> NDArray[np.float64]:
        """Returns a figure of the runs, float64 (n_seeds,)."""
        runs = self._runs[_key(setting), policy_name(policy, options or {})]
        return np.array([runs[seed][field] for seed in self.seeds], np.float64)

    def jct_s(self, setting: msgspec.Struct, policy: str, options: Options | None = None) -> NDArray[np.float64]:
        """Returns the completion times, float64 (n_seeds, num_tasks)."""
        runs = self._runs[_key(setting), policy_name(policy, options or {})]
        return np.array([runs[seed]["jct_s"] for seed in self.seeds], np.float64)

    def value(
        self, settings: Sequence[msgspec.Struct], policy: str, metric: str, options: Options | None = None
    ) -> Interval:
        """Returns a metric averaged over points, seconds."""
        return interval_of(self.resampled(settings, policy, metric, options))

    def best(self, settings: Sequence[msgspec.Struct], policies: Sequence[str], metric: str) -> str:
        """Returns the policy with the lowest average over points; the first of equals."""
        return min(policies, key=lambda policy: self.resampled(settings, policy, metric)[0])

    def reduction(
        self,
        settings: Sequence[msgspec.Struct],
        policy: str,
        other: str,
        metric: str,
        *,
        options: Options | None = None,
        other_settings: Sequence[msgspec.Struct] | None = None,
    ) -> Interval:
        """Returns by how many per cent a policy's average over points lies below another's; negative is above.

        Args:
            settings: Points of the policy.
            policy: Name of the policy.
            other: What it is compared with.
            metric: `mean` or `p99`.
            options: Of the policy.
            other_settings: Points of the other, with the same traces; those of the policy if None.
        """
        mine = self.resampled(settings, policy, metric, options)
        theirs = self.resampled(other_settings or settings, other, metric)
        return interval_of(100.0 * (1.0 - mine / theirs))

    def ratio_of(
        self,
        setting: msgspec.Struct,
        policy: str,
        other: str,
        field: str,
        *,
        other_setting: msgspec.Struct | None = None,
    ) -> Interval:
        """Returns by how many per cent the mean of a figure of the runs exceeds another policy's."""
        mine = self.column(setting, policy, field)[self._draws].mean(axis=1)
        theirs = self.column(other_setting or setting, other, field)[self._draws].mean(axis=1)
        return interval_of(100.0 * (mine / theirs - 1.0))

    def mean_of(self, settings: Sequence[msgspec.Struct], policy: str, field: str) -> Interval:
        """Returns a figure of the runs, averaged over points."""
        columns = [self.column(setting, policy, field)[self._draws].mean(axis=1) for setting in settings]
        return interval_of(np.mean(columns, axis=0))

    def resampled(
        self, settings: Sequence[msgspec.Struct], policy: str, metric: str, options: Options | None = None
    ) -> NDArray[np.float64]:
        """Returns a metric averaged over points: its value, then those of the resamples, float64 (1 + resamples,)."""
        name = policy_name(policy, options or {})
        found = []
        for setting in settings:
            key = (_key(setting), name, metric)
            if key not in self._boot:
                self._boot[key] = _statistic(self.jct_s(setting, policy, options), self._draws, metric)
            found.append(self._boot[key])
        average: NDArray[np.float64] = np.mean(found, axis=0)
        return average


def _key(setting: msgspec.Struct) -> bytes:
    return msgspec.json.encode(setting, order="sorted")


def _statistic(jct: NDArray[np.float64], draws: NDArray[np.int64], metric: str) -> NDArray[np.float64]:
    if metric == "mean":
        means: NDArray[np.float64] = jct.mean(axis=1)[draws].mean(axis=1)
        return means
    return resampled_percentile(jct, draws, 99.0)


def resampled_percentile(jct: NDArray[np.float64], draws: NDArray[np.int64], q: float) -> NDArray[np.float64]:
    """Returns the percentile of all tasks of each resample of seeds, as `np.percentile` has it, without sorting each.

    A resample takes all tasks of a seed as often as it draws the seed. So from the top of all tasks in order, the one
    at rank k of a resample is the first at which the draws so far exceed k.

    Args:
        jct: float64 (n_seeds, num_tasks).
        draws: int64 (resamples, n_seeds), seeds drawn.
        q: Per cent.
    """
    seeds, tasks = jct.shape
    place = q / 100.0 * (seeds * tasks - 1)
    lower = seeds * tasks - 1 - int(place)  # ranks from the top
    order = np.argsort(-jct, axis=None, kind="stable")
    values = jct.ravel()[order]
    times = np.zeros((len(draws), seeds), np.int64)
    np.add.at(times, (np.arange(len(draws))[:, None], draws), 1)
    enough = min(seeds * tasks, 16 * (lower + 1))
    upto = np.cumsum(times[:, order[:enough] // tasks], axis=1)
    if (upto[:, -1] <= lower).any():
        upto = np.cumsum(times[:, order // tasks], axis=1)
    found = [values[np.argmax(upto > rank, axis=1)] for rank in (lower, max(lower - 1, 0))]
    percentile: NDArray[np.float64] = found[0] + (place - int(place)) * (found[1] - found[0])
    return percentile


def interval_of(values: NDArray[np.float64]) -> Interval:
    """Returns a value and the 95% interval of its resamples, given in this order, float64 (1 + resamples,)."""
    if len(values) == 1:  # one seed: nothing to resample
        return Interval(float(values[0]), math.nan, math.nan)
    low, high = np.percentile(values[1:], (2.5, 97.5))
    return Interval(float(values[0]), float(low), float(high))
