"""Suites by name, made smaller as the user asks."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from topas_env._errors import InputError
from topas_env.compare._config import Scalar
from topas_env.compare._suite import SUITE_SEEDS, TASKS, Entry, Suite, SuitePoint, standard_suite
from topas_env.compare._suite_ablation import ablation_suite
from topas_env.compare._suite_robust import robust_suite

__all__ = ["SUITES", "make_suite", "run_cost"]

SUITES: dict[str, Callable[[Path | None, int, Sequence[int]], Suite]] = {
    "standard": standard_suite,
    "robust": robust_suite,
    "ablation": ablation_suite,
}


def make_suite(
    name: str,
    *,
    sessions: Path,
    tasks: int | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    policies: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Scalar]] | None = None,
    plugins: Sequence[str] = (),
) -> Suite:
    """Returns a suite, or a part of it.

    Args:
        name: One of `SUITES`.
        sessions: Folder of recorded sessions; where it is not there, they are left out with a note.
        tasks: Tasks a run; 100 if None.
        seeds: Of the traces; `SUITE_SEEDS` if None.
        only: Names of points, with `*` for anything, or parts of names; all points if empty.
        policies: Names; those of the suite if empty. In the ablation suite: names of what is varied.
        options: Keyword arguments by policy.
        plugins: Files or modules that register policies.

    Raises:
        InputError: There is no such suite or point.
    """
    if name not in SUITES:
        raise InputError(f"--suite: {name!r} is none of {', '.join(SUITES)}")
    found = sessions if sessions.exists() else None
    suite = SUITES[name](found, tasks or TASKS, tuple(seeds or SUITE_SEEDS))
    notes = list(suite.notes)
    if found is None and name == "standard":
        notes.append(f"{sessions} is not there: without the recorded sessions (give their folder with --sessions)")
    entries = [
        msgspec.structs.replace(entry, options={**entry.options, **(options or {}).get(entry.policy, {})})
        for entry in _chosen(suite, policies)
    ]
    return msgspec.structs.replace(
        suite,
        points=tuple(_points(suite, only)),
        entries=tuple(entries),
        notes=tuple(notes),
        plugins=tuple(plugins),
    )


def run_cost(entry: Entry) -> int:
    """Returns a rank by what a run takes: 0 for compiled policies, 1 for plain ones, 2 for those that plan ahead."""
    from topas_policies import make_policy

    policy = make_policy(entry.policy, **entry.options)
    if getattr(policy, "compiled", lambda: None)() is not None:
        return 0
    return 2 if getattr(policy, "plans_ahead", False) else 1


def _points(suite: Suite, only: Sequence[str]) -> list[SuitePoint]:
    names = [at.name for at in suite.points]
    for pattern in only:
        if not any(_matches(name, pattern) for name in names):
            raise InputError(f"--only: no point of the suite is called {pattern!r}; there are {', '.join(names)}")
    return [at for at in suite.points if not only or any(_matches(at.name, pattern) for pattern in only)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or pattern in name


def _chosen(suite: Suite, policies: Sequence[str]) -> list[Entry]:
    """Returns the entries of some policies, in the suite's order; what is not in the suite is added."""
    if not policies:
        return list(suite.entries)
    if suite.name == "ablation":
        groups = {entry.group for entry in suite.entries}
        for name in policies:
            if name not in groups:
                raise InputError(f"--policy: the ablation suite varies {', '.join(sorted(groups))}, not {name!r}")
        return [entry for entry in suite.entries if entry.group in policies or entry is suite.entries[0]]
    chosen = [entry for entry in suite.entries if entry.policy in policies]
    known = {entry.policy for entry in chosen}
    return chosen + [Entry(name) for name in policies if name not in known]
