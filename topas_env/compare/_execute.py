"""One run of a comparison: from its configuration to its record."""

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from topas_env.compare._config import Point, RunConfig, run_key
from topas_env.compare._plugins import import_plugins
from topas_env.compare._store import Record

if TYPE_CHECKING:
    from topas_env._profile import EngineProfile
    from topas_env._workload import Workload, WorkloadSpec

__all__ = ["execute", "key_of"]


def key_of(config: RunConfig) -> str:
    """Returns the key of a run, after checking all that can be checked before it.

    Raises:
        InputError: for an unknown workload, profile, policy or parameter, or a workload that can never fit.
    """
    _check_point(msgspec.json.encode(config.point))
    return run_key(config, type(_policy(config)))


def execute(config: RunConfig) -> Record:
    """Makes the run and returns its record, without the key.

    Raises:
        InputError: as `key_of` does, and where a policy answers with an infeasible decision.
    """
    raise NotImplementedError


def _policy(config: RunConfig) -> Any:
    from topas_policies import make_policy

    import_plugins(config.plugins)
    return make_policy(config.policy, **config.options)


@functools.lru_cache(maxsize=8)
def _spec(source: str) -> "WorkloadSpec":
    from topas_env._workload import workload_spec

    return workload_spec(source)


def _workload(point: Point, seed: int) -> "Workload":
    return _spec(point.workload).draw(seed=seed, num_tasks=point.num_tasks, arrival_rate=point.arrival_rate)


def _profile(point: Point) -> "EngineProfile":
    from topas_env._profile import load_profile

    return load_profile(point.profile, **point.overrides)


@functools.cache
def _check_point(encoded: bytes) -> None:
    from topas_env._utilisation import check_fits

    point = msgspec.json.decode(encoded, type=Point)
    check_fits(_workload(point, 0), _profile(point))


def _trace_key(workload: "Workload") -> str:
    """Returns a short hash of what is served, by which anyone can see that all policies saw the same."""
    digest = hashlib.sha256()
    for column in workload.trace:
        digest.update(column.tobytes())
    return digest.hexdigest()[:12]
