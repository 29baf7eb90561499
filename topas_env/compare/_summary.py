"""What a comparison found: one row for each policy at each operating point."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env.compare._config import Point, policy_name
from topas_env.compare._statistics import Interval, mean_interval, paired_percent
from topas_env.compare._store import Record

__all__ = ["BASELINES", "LITERATURE", "PAPER_BASELINES", "PointSummary", "Row", "policy_label", "summarise"]

PAPER_BASELINES = ("fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm")
"""What the paper of TOPAS compares with, figures 1 and 2 included."""

LITERATURE = ("kvflow", "continuum", "infercept", "plas", "atlas", "lpm-bounded", "hrrn")
"""After other papers and from practice."""

BASELINES = (*PAPER_BASELINES, *LITERATURE)
"""What a policy is measured against: the best of these that ran."""


class Row(msgspec.Struct, frozen=True):
    """One policy at one operating point; means over seeds, intervals are 95% bootstrap over seeds.

    Attributes:
        policy: its name, with its options where it has any.
        seeds: number of seeds.
        mean_jct_s: mean job completion time, seconds.
        p99_jct_s: 99th percentile of a run, mean over seeds, seconds.
        mean_difference: per cent by which the mean differs from the best baseline's, paired; None without a baseline.
        p99_difference: the same for p99, against the best baseline of p99.
        task_throughput: finished tasks a second.
        mean_batch: running requests, mean over the time that at least one runs.
        prefix_moves: prefixes that were loaded, computed again or released, a run.
        preemptions: requests that the policy preempted, a run.
        retractions: requests that the engine retracted for want of memory, a run.
        decision_ms: wall time of one decision, milliseconds.
        bound_s: mean over tasks of the critical path alone on the engine with its prefixes resident, seconds.
    """

    policy: str
    seeds: int
    mean_jct_s: Interval
    p99_jct_s: Interval
    mean_difference: Interval | None
    p99_difference: Interval | None
    task_throughput: float
    mean_batch: float
    prefix_moves: float
    preemptions: float
    retractions: float
    decision_ms: float
    bound_s: float


class PointSummary(msgspec.Struct, frozen=True):
    """All policies at one operating point.

    Attributes:
        point: the operating point.
        profile: name of the engine profile.
        utilisation: share of the engine's capacity that the workload asks for.
        tasks: tasks of one run.
        best_mean: the baseline with the smallest mean JCT; "" without a baseline.
        best_p99: the baseline with the smallest p99.
        rows: in the order of the records.
    """

    point: Point
    profile: str
    utilisation: float
    tasks: int
    best_mean: str
    best_p99: str
    rows: list[Row]


def summarise(records: Sequence[Record]) -> list[PointSummary]:
    """Returns the summary of each operating point; shipped workloads first, rates ascending, baselines first.

    At each point only the seeds that every policy of it has are used, so that all differences are paired.

    Args:
        records: as `read_results` and `run_all` give them.
    """
    points: dict[bytes, list[Record]] = {}
    for record in records:
        points.setdefault(msgspec.json.encode(record["point"], order="sorted"), []).append(record)
    return sorted((_summary(group) for group in points.values()), key=_place)


def _place(summary: PointSummary) -> tuple[bool, str, str, str, float]:
    point = summary.point
    overrides = msgspec.json.encode(point.overrides).decode()
    return "/" in point.workload, point.workload, point.profile, overrides, point.arrival_rate or 0.0


def policy_label(record: Record) -> str:
    """Returns the policy's name, with its options where it has any."""
    return policy_name(str(record["policy"]), record.get("options") or {})


def _summary(records: list[Record]) -> PointSummary:
    runs: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=_rank):
        runs.setdefault(policy_label(record), {})[record["seed"]] = record
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    common = {label: [by_seed[seed] for seed in seeds] for label, by_seed in runs.items() if seeds}
    first = records[0]
    means = {label: _column(group, "mean_jct_s") for label, group in common.items()}
    tails = {label: _column(group, "p99_jct_s") for label, group in common.items()}
    best_mean, best_tail = _best(means, common), _best(tails, common)
    rows = [
        Row(
            policy=label,
            seeds=len(seeds),
            mean_jct_s=mean_interval(means[label]),
            p99_jct_s=mean_interval(tails[label]),
            mean_difference=_difference(means, label, best_mean),
            p99_difference=_difference(tails, label, best_tail),
            **{name: _mean(group, name) for name in _PLAIN},
        )
        for label, group in common.items()
    ]
    return PointSummary(
        point=msgspec.convert(first["point"], Point),
        profile=str(first.get("profile", "")),
        utilisation=_mean([record for group in common.values() for record in group], "utilisation"),
        tasks=int(first.get("num_tasks", 0)),
        best_mean=best_mean,
        best_p99=best_tail,
        rows=rows,
    )


def _rank(record: Record) -> tuple[int, str]:
    """Orders baselines as they are listed, then the others by name."""
    name = record["policy"]
    return (BASELINES.index(name) if name in BASELINES else len(BASELINES)), policy_label(record)


_PLAIN = (
    "task_throughput", "mean_batch", "prefix_moves", "preemptions", "retractions", "decision_ms", "bound_s",
)  # fmt: skip


def _column(records: Sequence[Record], name: str) -> NDArray[np.float64]:
    return np.array([record[name] for record in records], np.float64)


def _mean(records: Sequence[Record], name: str) -> float:
    values: list[Any] = [record.get(name) for record in records]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return float(np.mean(known)) if known else math.nan


def _best(columns: dict[str, NDArray[np.float64]], runs: dict[str, list[Record]]) -> str:
    """Returns the baseline with the smallest mean over seeds; the first of equals."""
    baselines = [label for label, group in runs.items() if group[0]["policy"] in BASELINES]
    return min(baselines, key=lambda label: float(columns[label].mean()), default="")


def _difference(columns: dict[str, NDArray[np.float64]], label: str, best: str) -> Interval | None:
    return paired_percent(columns[label], columns[best]) if best else None
