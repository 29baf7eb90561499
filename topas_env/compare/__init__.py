"""Comparing policies: the grid of runs, the pool that makes them, their file, and the statistics over seeds."""

from topas_env.compare._config import Point, RunConfig, Scalar, grid, policy_name, run_key
from topas_env.compare._plugins import import_plugins
from topas_env.compare._pool import run_all
from topas_env.compare._samples import METRICS, Samples, interval_of, resampled_percentile
from topas_env.compare._statistics import Interval, mean_interval, paired_percent
from topas_env.compare._store import Record, ResultFile, read_results
from topas_env.compare._suite import SUITE_SEEDS, Entry, Suite, SuitePoint, ordered_runs, place_of, told_words
from topas_env.compare._suites import SUITES, make_suite, run_cost
from topas_env.compare._summary import (
    BASELINES,
    LITERATURE,
    PAPER_BASELINES,
    PointSummary,
    Row,
    policy_label,
    summarise,
)

__all__ = [
    "BASELINES",
    "LITERATURE",
    "METRICS",
    "PAPER_BASELINES",
    "SUITES",
    "SUITE_SEEDS",
    "Entry",
    "Interval",
    "Point",
    "PointSummary",
    "Record",
    "ResultFile",
    "Row",
    "RunConfig",
    "Samples",
    "Scalar",
    "Suite",
    "SuitePoint",
    "grid",
    "import_plugins",
    "interval_of",
    "make_suite",
    "mean_interval",
    "ordered_runs",
    "paired_percent",
    "place_of",
    "policy_label",
    "policy_name",
    "read_results",
    "resampled_percentile",
    "run_all",
    "run_cost",
    "run_key",
    "summarise",
    "told_words",
]
