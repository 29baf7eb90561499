"""What one run is, the grid of runs that a comparison is made of, and the key that a finished run is known by."""

import functools
import hashlib
import inspect
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

__all__ = ["Point", "RunConfig", "Scalar", "grid", "policy_name", "run_key"]

Scalar = bool | int | float | str | None
_PACKAGE = Path(__file__).resolve().parents[1]
_NOT_PART_OF_A_RUN = {"cli", "compare", "env", "report", "reproduce"}
_MOST_HASHED_BYTES = 256 * 2**20


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operating point: everything but the policy and the seed.

    The last five make the world another one than policies are told of.

    Attributes:
        workload: name or path, as `load_workload` takes it.
        arrival_rate: tasks a second; None for the workload's own.
        num_tasks: None for the workload's own number.
        profile: name or path, as `load_profile` takes it.
        overrides: parameters of the profile that are not its own.
        decision_time: seconds that each decision takes in simulated time, or "measured"; None for none.
        believed: parameters of the profile that policies are told, and that are not the engine's.
        output_scale: true outputs over those that the expected services come from.
        surge: arrival rate of the middle third of the tasks over that of the others.
        untagged: share of the tasks whose requests come without tags (see `HiddenTags`).
        mistagged: share of the tasks that are tagged as tasks of the reversed workflow.
    """

    workload: str
    arrival_rate: float | None = None
    num_tasks: int | None = None
    profile: str = "qwen2.5-32b-a100-80g"
    overrides: dict[str, Scalar] = {}
    decision_time: float | str | None = None
    believed: dict[str, Scalar] = {}
    output_scale: float = 1.0
    surge: float = 1.0
    untagged: float = 0.0
    mistagged: float = 0.0

    def label(self) -> str:
        """Returns the point in a few words, for a heading."""
        parts = [Path(self.workload).name or self.workload]
        if self.arrival_rate is not None:
            parts.append(f"{self.arrival_rate:g} task/s")
        parts += [f"{key}={value}" for key, value in self.overrides.items()]
        if self.decision_time is not None:
            parts.append(f"decision time {self.decision_time}")
        parts += [f"told {key}={value}" for key, value in self.believed.items()]
        for name, plain in (("output_scale", 1.0), ("surge", 1.0), ("untagged", 0.0), ("mistagged", 0.0)):
            if getattr(self, name) != plain:
                parts.append(f"{name}={getattr(self, name):g}")
        return ", ".join(parts)


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulation: a policy at an operating point with a seed.

    Attributes:
        point: the operating point.
        policy: the policy's registered name.
        options: keyword arguments of `make_policy`.
        seed: of the trace and of the policy.
        plugins: files or modules that register policies, imported before.
        timeline: whether the record keeps the run's requests and memory, for the Gantt chart.
    """

    point: Point
    policy: str
    options: dict[str, Scalar]
    seed: int
    plugins: tuple[str, ...] = ()
    timeline: bool = False


def policy_name(policy: str, options: Mapping[str, Scalar]) -> str:
    """Returns the policy's name, with its options where it has any."""
    return policy + "".join(f" {key}={value}" for key, value in options.items())


def grid(
    points: Sequence[Point],
    policies: Sequence[str],
    seeds: Sequence[int],
    options: Mapping[str, Mapping[str, Scalar]],
    plugins: Iterable[str] = (),
) -> list[RunConfig]:
    """Returns every run of a comparison, seed by seed, so that an interrupted one has whole seeds.

    Args:
        points: operating points.
        policies: names.
        seeds: the first one's runs keep their timelines.
        options: keyword arguments by policy.
        plugins: files or modules that register policies.
    """
    plugins = tuple(plugins)
    return [
        RunConfig(point, policy, dict(options.get(policy, {})), seed, plugins, timeline=seed == seeds[0])
        for seed, point, policy in itertools.product(seeds, points, policies)
    ]


def run_key(config: RunConfig, policy_type: type | None = None) -> str:
    """Returns the key of a run: the hash of its configuration, of the code behind it, and of its input files.

    A run that another version of the simulator, of the policy or of the input made has another key, so that it is
    made again and never mixed with new ones.
    """
    digest = hashlib.sha256(msgspec.json.encode(config))
    digest.update(_code_key().encode())
    for path in (config.point.workload, config.point.profile, *config.plugins, *map(str, config.options.values())):
        digest.update(_content_key(path).encode())
    if policy_type is not None:
        digest.update(_source_key(policy_type).encode())
    return digest.hexdigest()[:20]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _code_key() -> str:
    """Returns the hash of the kernels and of what decides a run's outcome, and the versions of what computes it."""
    paths = [
        path
        for path in sorted(_PACKAGE.rglob("*"))
        if path.suffix in {".py", ".json", ".jsonl"} and path.relative_to(_PACKAGE).parts[0] not in _NOT_PART_OF_A_RUN
    ]
    import numba
    import numpy as np

    return f"{_digest(paths)} {sys.version_info[:2]} {np.__version__} {numba.__version__}"


@functools.cache
def _content_key(name: str) -> str:
    """Returns the hash of a file or folder; nothing for what is a name only."""
    path = Path(name)
    try:
        if not name or not path.exists():
            return ""
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        if sum(file.stat().st_size for file in files) > _MOST_HASHED_BYTES:
            return " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
        return _digest(files)
    except (OSError, ValueError):
        return ""


@functools.cache
def _source_key(policy_type: type) -> str:
    """Returns the hash of the files beside the policy's own, where it is part of a package, else of its file."""
    try:
        path = Path(inspect.getfile(policy_type)).resolve()
    except (OSError, TypeError):
        return ""
    if (path.parent / "__init__.py").exists():
        # Weights and tuned parameters lie beside the code.
        kinds = {".py", ".json", ".safetensors"}
        return _digest(sorted(file for file in path.parent.rglob("*") if file.suffix in kinds))
    return _digest([path])
