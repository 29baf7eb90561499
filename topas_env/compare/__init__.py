"""Comparing policies: the grid of runs, the pool that makes them, their file, and the statistics over seeds."""

from topas_env.compare._config import Point, RunConfig, Scalar, grid, run_key
from topas_env.compare._plugins import import_plugins
from topas_env.compare._pool import run_all
from topas_env.compare._statistics import Interval, mean_interval, paired_percent
from topas_env.compare._store import Record, ResultFile, read_results
from topas_env.compare._summary import BASELINES, PointSummary, Row, policy_label, summarise

__all__ = [
    "BASELINES",
    "Interval",
    "Point",
    "PointSummary",
    "Record",
    "ResultFile",
    "Row",
    "RunConfig",
    "Scalar",
    "grid",
    "import_plugins",
    "mean_interval",
    "paired_percent",
    "policy_label",
    "read_results",
    "run_all",
    "run_key",
    "summarise",
]
