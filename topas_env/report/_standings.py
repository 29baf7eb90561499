"""How the policies of a suite stand at each operating point, from what has run so far."""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env.compare import (
    BASELINES,
    Interval,
    Point,
    Record,
    Samples,
    SuitePoint,
    interval_of,
    place_of,
    policy_label,
    told_words,
)

__all__ = ["Standing", "Standings", "mean_difference"]


class Standing(msgspec.Struct, frozen=True):
    """One policy against another at one point.

    Attributes:
        difference: Per cent by which its metric differs; negative is better.
        logs: Natural logarithm of the ratio: its value, then those of the resamples of seeds.
        seeds: Seeds that both have.
    """

    difference: Interval
    logs: NDArray[np.float64]
    seeds: int


class Standings:
    """Comparisons of policies, each over all seeds that the two have at a point.

    Args:
        records: Of `run_all`.
        baselines: Labels of the policies that the best one is taken from, the first of equals.
    """

    def __init__(self, records: Iterable[Record], baselines: Sequence[str] = BASELINES) -> None:
        self._records = [_placed(record) for record in records]
        self._baselines = tuple(baselines)
        self._by_run: dict[tuple[bytes, str], dict[int, Record]] = {}
        for record in self._records:
            key = _key(msgspec.convert(record["point"], Point))
            self._by_run.setdefault((key, policy_label(record)), {})[record["seed"]] = record
        self._samples: dict[tuple[int, ...], Samples] = {}
        self._found: dict[tuple[bytes, str, str, str], Standing | None] = {}
        self._chosen: dict[tuple[bytes, str], str] = {}

    def seeds(self, at: SuitePoint, label: str) -> tuple[int, ...]:
        """Returns the seeds of a policy at a point, ascending."""
        return tuple(sorted(self._by_run.get((_key(at.point), label), {})))

    def best(self, at: SuitePoint, metric: str) -> str:
        """Returns the best baseline at a point, over the seeds that all baselines with a run have; "" without one."""
        key = _key(at.point), metric
        if key not in self._chosen:
            ran = [label for label in self._baselines if self.seeds(at, label)]
            common = tuple(sorted(set.intersection(*(set(self.seeds(at, label)) for label in ran)))) if ran else ()
            self._chosen[key] = self._of(common).best([at.point], ran, metric) if common else ""
        return self._chosen[key]

    def best_of_others(self, at: SuitePoint, label: str, metric: str, others: Sequence[str]) -> str:
        """Returns the best of some policies but one, over the seeds of that one that they have too; "" without any."""
        mine = set(self.seeds(at, label))
        usable = [other for other in others if other != label and mine and mine <= set(self.seeds(at, other))]
        return self._of(tuple(sorted(mine))).best([at.point], usable, metric) if usable else ""

    def against(self, at: SuitePoint, label: str, other: str, metric: str) -> Standing | None:
        """Returns how a policy stands against another; None where they have no seed in common."""
        key = _key(at.point), label, other, metric
        if key not in self._found:
            self._found[key] = self._stand(at, label, other, metric)
        return self._found[key]

    def against_best(self, at: SuitePoint, label: str, metric: str) -> Standing | None:
        """Returns how a policy stands against the best baseline at a point."""
        best = self.best(at, metric)
        return self.against(at, label, best, metric) if best else None

    def value(self, at: SuitePoint, label: str, metric: str) -> Interval:
        """Returns a metric in seconds; NaN where there is no run."""
        seeds = self.seeds(at, label)
        return self._of(seeds).value([at.point], label, metric) if seeds else Interval(math.nan, math.nan, math.nan)

    def over_bound(self, at: SuitePoint, label: str) -> float:
        """Returns the mean JCT over the mean bound of the same tasks; NaN where there is no run."""
        runs = self._by_run.get((_key(at.point), label), {}).values()
        bound = sum(run["bound_s"] for run in runs)
        return float(sum(run["mean_jct_s"] for run in runs) / bound) if bound else math.nan

    def field(self, at: SuitePoint, label: str, name: str) -> float:
        """Returns the mean of a number of the records over seeds; NaN where there is no run."""
        values = [run[name] for run in self._by_run.get((_key(at.point), label), {}).values() if run[name] is not None]
        return float(np.mean(values)) if values else math.nan

    def _stand(self, at: SuitePoint, label: str, other: str, metric: str) -> Standing | None:
        common = tuple(sorted(set(self.seeds(at, label)) & set(self.seeds(at, other))))
        if not common:
            return None
        samples = self._of(common)
        ratio = samples.resampled([at.point], label, metric) / samples.resampled([at.point], other, metric)
        return Standing(interval_of(100.0 * (ratio - 1.0)), np.log(ratio), len(common))

    def _of(self, seeds: tuple[int, ...]) -> Samples:
        if seeds not in self._samples:
            self._samples[seeds] = Samples(self._records, seeds, Point)
        return self._samples[seeds]


def _placed(record: Record) -> Record:
    """Returns the record at the point that it belongs to, with all that is its policy's own in the policy's name."""
    point, told = place_of(msgspec.convert(record["point"], Point))
    name = policy_label(record) + told_words(told)
    return {**record, "point": msgspec.to_builtins(point), "policy": name, "options": {}}


def _key(point: Point) -> bytes:
    return msgspec.json.encode(point, order="sorted")


def mean_difference(standings: Sequence[Standing]) -> Interval:
    """Returns the geometric mean over points of ratios, as a difference in per cent.

    Resamples of points with the same number of seeds go together, seed by seed; others are independent.
    """
    if any(len(each.logs) == 1 for each in standings):
        value = 100.0 * (math.exp(float(np.mean([each.logs[0] for each in standings]))) - 1.0)
        return Interval(value, math.nan, math.nan)
    logs = np.mean([each.logs for each in standings], axis=0)
    return interval_of(100.0 * np.expm1(logs))
