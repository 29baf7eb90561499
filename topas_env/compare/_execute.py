"""One run of a comparison: from its configuration to its record."""

import functools
import hashlib
import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from topas_env.compare._config import Point, RunConfig, run_key
from topas_env.compare._plugins import import_plugins
from topas_env.compare._store import Record
from topas_env.compare._timeline import make_timeline

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
    return run_key(config, _policy_type(config.policy, msgspec.json.encode(config.options), config.plugins))


def execute(config: RunConfig) -> Record:
    """Makes the run and returns its record, without the key.

    Raises:
        InputError: as `key_of` does, and where a policy answers with an infeasible decision.
    """
    from topas_env._errors import InfeasibleDecision, InputError
    from topas_env._services import bound_s
    from topas_env._simulate import simulate
    from topas_env._utilisation import utilisation

    point = config.point
    workload, profile = _workload(point, config.seed), _profile(point)
    policy = _disguised(_policy(config), workload, config)
    start = time.perf_counter()
    try:
        result = simulate(
            workload,
            policy,
            profile=profile,
            seed=config.seed,
            believed=_believed(point),
            decision_time_s=point.decision_time,  # type: ignore[arg-type]
            record=config.timeline,
        )
    except InfeasibleDecision as error:
        raise InputError(f"policy {config.policy}: {error}") from error
    record: Record = {
        "policy": config.policy,
        "options": dict(config.options),
        "workload": workload.name,
        "profile": profile.name,
        "seed": config.seed,
        "point": msgspec.to_builtins(point),
        "utilisation": _finite(utilisation(workload, profile)),
        "bound_s": float(bound_s(workload, profile).mean()),
        "trace": _trace_key(workload),
        **result.summary(),
        "wall_s": time.perf_counter() - start,
        "jct_s": result.jct_s.round(4).tolist(),
    }
    if config.timeline:
        record["timeline"] = make_timeline(
            workload,
            result.agent_names,
            profile.kv_budget_tokens,
            float((workload.trace.arrival + result.jct_s).max()),
            result.spans,
            result.samples,
            result.sample_tokens,
        )
    return record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _policy(config: RunConfig) -> Any:
    from topas_policies import make_policy

    import_plugins(config.plugins)
    return make_policy(config.policy, **config.options)


@functools.cache
def _policy_type(name: str, options: bytes, plugins: tuple[str, ...]) -> type:
    from topas_policies import make_policy

    import_plugins(plugins)
    return type(make_policy(name, **msgspec.json.decode(options)))


@functools.lru_cache(maxsize=8)
def _spec(source: str) -> "WorkloadSpec":
    from topas_env._workload import workload_spec

    return workload_spec(source)


def _workload(point: Point, seed: int) -> "Workload":
    """Draws what is served; the services known before are those of the engine and the lengths that are believed."""
    from dataclasses import replace

    from topas_env._services import known_services
    from topas_env.compare._worlds import scale_outputs, surge_arrivals

    drawn = _spec(point.workload).draw(seed=seed, num_tasks=point.num_tasks, arrival_rate=point.arrival_rate)
    if point.believed or point.output_scale != 1.0:
        drawn = replace(drawn, profile_s=known_services(drawn, _believed(point) or _profile(point)))
    if point.output_scale != 1.0:
        drawn = scale_outputs(drawn, point.output_scale)
    return surge_arrivals(drawn, point.surge) if point.surge != 1.0 else drawn


def _believed(point: Point) -> "EngineProfile | None":
    """Returns the engine that policies are told of; None for the engine itself."""
    from topas_env._profile import load_profile

    return load_profile(_profile(point), **point.believed) if point.believed else None


def _disguised(policy: Any, workload: "Workload", config: RunConfig) -> Any:
    """Returns the policy as it sees tasks whose tags are wrong or missing; the policy itself where all are right."""
    from topas_env.compare._tags import HiddenTags, pick_tasks

    point = config.point
    if not point.untagged and not point.mistagged:
        return policy
    untagged = pick_tasks(workload, point.untagged, config.seed)
    mistagged = pick_tasks(workload, point.mistagged, config.seed, besides=untagged)
    return HiddenTags(policy, workload, untagged, mistagged)


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
