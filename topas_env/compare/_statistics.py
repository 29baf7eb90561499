"""Means over seeds with bootstrap intervals, and paired differences."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BOOTSTRAP_SEED", "Interval", "mean_interval", "paired_percent"]

RESAMPLES = 9_999
BOOTSTRAP_SEED = 20_261_129


class Interval(NamedTuple):
    """An estimate and its 95% interval; the ends are NaN where one seed gives none."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """-1 or 1 where the whole interval lies below or above zero, else 0."""
        if math.isnan(self.low) or self.low <= 0.0 <= self.high:
            return 0
        return -1 if self.high < 0.0 else 1


def mean_interval(values: NDArray[np.float64]) -> Interval:
    """Returns the mean over seeds and its 95% percentile-bootstrap interval.

    Args:
        values: float64 (n_seeds,).
    """
    return _bootstrap((np.asarray(values, np.float64),), _mean)


def paired_percent(values: NDArray[np.float64], baseline: NDArray[np.float64]) -> Interval:
    """Returns by how many per cent the mean of `values` differs from that of `baseline`, seeds resampled in pairs.

    Args:
        values: float64 (n_seeds,).
        baseline: float64 (n_seeds,), of the same seeds in the same order.
    """
    return _bootstrap((np.asarray(values, np.float64), np.asarray(baseline, np.float64)), _percent)


def _mean(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.asarray(values.mean(axis=axis))


def _percent(values: NDArray[np.float64], baseline: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.asarray(100.0 * (values.mean(axis=axis) / baseline.mean(axis=axis) - 1.0))


def _bootstrap(samples: tuple[NDArray[np.float64], ...], statistic: object) -> Interval:
    assert callable(statistic)
    value = float(statistic(*samples))
    if samples[0].size < 2:
        return Interval(value, math.nan, math.nan)
    if all(np.ptp(sample) == 0.0 for sample in samples):
        return Interval(value, value, value)
    from scipy.stats import bootstrap

    # The percentile interval: with few seeds BCa's correction is itself an estimate from those few.
    found = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        paired=len(samples) > 1,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
