"""Suites: fixed sets of operating points, policies and seeds that one command runs."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from topas_env.compare._config import Point, RunConfig, Scalar, policy_name
from topas_env.compare._summary import BASELINES

__all__ = [
    "HEAVY",
    "LOADS",
    "PAPER_CHARGE",
    "SUITE_SEEDS",
    "TIERS",
    "Entry",
    "Suite",
    "SuitePoint",
    "balanced_point",
    "ordered_runs",
    "place_of",
    "standard_points",
    "standard_suite",
    "told_words",
]  # fmt: skip

SUITE_SEEDS = range(5_000, 5_020)
"""Nothing was trained, tuned or tried on these: training uses 1,000,000 and above, development those below 5,000."""

TASKS = 100  # a run; 20 seeds then give the 2,000 tasks that a p99 is taken from
LOADS = (0.5, 0.75, 0.95)
TIERS = ("all", "none")
PAPER_WORKLOADS = ("chain-3", "dag-4", "dag-10-wide", "metagpt-sop", "metagpt-tl")
SESSIONS = "sessions"
HEAVY = ("metagpt-tl", SESSIONS)  # a run of these takes a planner longest, so they come last
PAPER_CHARGE: dict[str, Scalar] = {"rebuild": "decode"}
_SMALL_ENGINE: dict[str, Scalar] = {"kv_budget_tokens": 480_000}  # half of the pool, so that memory is scarce
_RATE_SEED = 20_000_001
_RATE_TASKS = 400


class SuitePoint(msgspec.Struct, frozen=True):
    """An operating point and its place in the suite.

    Attributes:
        name: WORKLOAD/LOAD/TIER, and /WORLD where the world is not what policies are told.
        workload: Name of the workload; `sessions` for the recorded ones.
        load: Utilisation at which the arrival rate was set.
        tier: Who has the host tier.
        world: What is not as policies are told; "" for nothing.
        point: The point.
    """

    name: str
    workload: str
    load: float
    tier: str
    world: str
    point: Point


class Entry(msgspec.Struct, frozen=True):
    """A policy with its options.

    Attributes:
        policy: Registered name.
        options: Keyword arguments of `make_policy`.
        group: What of it is varied, for tables.
        told: Parameters of the profile that this policy is told in the place of the engine's own.
    """

    policy: str
    options: dict[str, Scalar] = {}
    group: str = ""
    told: dict[str, Scalar] = {}

    @property
    def label(self) -> str:
        """Its name in tables and records."""
        return policy_name(self.policy, self.options) + told_words(self.told)


class Suite(msgspec.Struct, frozen=True):
    """What is run.

    Attributes:
        name: Of the suite.
        points: Operating points.
        entries: Policies.
        seeds: Seeds of the traces.
        notes: What was left out and why, one line each.
        plugins: Files or modules that register policies.
    """

    name: str
    points: tuple[SuitePoint, ...]
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()

    def labels(self, policies: Sequence[str] | None = None) -> list[str]:
        """Returns the labels of the entries, or of those of some policies."""
        return [entry.label for entry in self.entries if policies is None or entry.policy in policies]


def told_words(told: dict[str, Scalar]) -> str:
    """Returns what a policy is told, as it is put after its name."""
    return "".join(f" told {key}={value}" for key, value in told.items())


def place_of(point: Point) -> tuple[Point, dict[str, Scalar]]:
    """Returns the point that a run belongs to, and what its policy alone was told there.

    Of `believed` what the point overrides is part of its world; anything else is a matter of the policy.
    """
    told = {name: value for name, value in point.believed.items() if name not in point.overrides}
    own = {name: value for name, value in point.believed.items() if name in point.overrides}
    return msgspec.structs.replace(point, believed=own), told


def balanced_point(point: Point, load: float) -> Point:
    """Returns the point at the arrival rate at which the engine's utilisation is `load`, to four digits.

    The engine time of a task is the mean over 400 tasks of a seed of their own, over all recorded ones for a recording.
    """
    from topas_env._profile import load_profile
    from topas_env._utilisation import task_engine_s
    from topas_env._workload import workload_names, workload_spec

    spec = workload_spec(point.workload)
    tasks = _RATE_TASKS if spec.name in workload_names() else spec.num_tasks
    drawn = spec.draw(seed=_RATE_SEED, num_tasks=tasks)
    rate = load / float(task_engine_s(drawn, load_profile(point.profile, **point.overrides)).mean())
    return msgspec.structs.replace(point, arrival_rate=float(f"{rate:.4g}"))


def standard_points(
    sessions: Path | None, tasks: int, loads: Sequence[float] = LOADS, tiers: Sequence[str] = TIERS
) -> list[SuitePoint]:
    """Returns the paper's workloads and the recorded sessions, at each load, with and without a host tier.

    Args:
        sessions: Folder of recorded sessions, None to leave them out. A small model serves them, in half of its pool.
        tasks: Tasks a run.
        loads: Utilisations.
        tiers: Values of `host_tier`.
    """
    plain = [(name, Point(name, num_tasks=tasks)) for name in PAPER_WORKLOADS]
    if sessions is not None:
        recorded = Point(str(sessions), num_tasks=tasks, profile="qwen2.5-7b-a100-80g", overrides=_SMALL_ENGINE)
        plain.append((SESSIONS, recorded))
    found = []
    for (name, point), load in itertools.product(plain, loads):
        at = balanced_point(point, load)
        for tier in tiers:
            over = {**at.overrides, "host_tier": tier}
            full = msgspec.structs.replace(at, overrides=over)
            found.append(SuitePoint(f"{name}/{load:g}/{tier}", name, load, tier, "", full))
    return found


def standard_suite(sessions: Path | None, tasks: int, seeds: Sequence[int]) -> Suite:
    """Returns the leaderboard: every registered policy at the standard points.

    TOPAS twice: told what the engine takes for preempted work, and told what the paper charges (equation 9).
    """
    from topas_policies import policy_names

    entries = [Entry(name) for name in sorted(policy_names(), key=lambda name: name not in BASELINES)]
    entries.append(Entry("topas", told=PAPER_CHARGE))
    return Suite("standard", tuple(standard_points(sessions, tasks)), tuple(entries), tuple(seeds))


def ordered_runs(suite: Suite, cost: Callable[[Entry], int]) -> list[RunConfig]:
    """Returns the runs of a suite, cheap policies first, then light workloads, then seed by seed.

    So a run that is cut short has whole seeds, and all of the cheap ones.

    Args:
        suite: The suite.
        cost: A rank for each policy, the cheap ones first.
    """
    runs = itertools.product(suite.entries, suite.points, suite.seeds)
    ranked = sorted(runs, key=lambda run: (cost(run[0]), run[1].workload in HEAVY, run[2]))
    return [
        RunConfig(_told(at.point, entry), entry.policy, dict(entry.options), seed, suite.plugins)
        for entry, at, seed in ranked
    ]


def _told(point: Point, entry: Entry) -> Point:
    return msgspec.structs.replace(point, believed={**point.believed, **entry.told}) if entry.told else point
