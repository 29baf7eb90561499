"""The arguments of the environments, checked once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import default_params
from topas_env._errors import InputError
from topas_env._profile import EngineProfile, load_profile
from topas_env._topology import Topology, topology
from topas_env._workload import WorkloadSpec, workload_spec

__all__ = ["LISTS", "MODES", "Settings", "json_ready", "make_settings", "trace_seed"]

MODES = ("candidates", "state")
LISTS = ("full", "short")
_RENDER_MODES = (None, "ansi", "rgb_array")
_DEFAULT_REQUESTS = 128  # rows of requests in the state mode


@dataclass(frozen=True, slots=True)
class Settings:
    """What an environment was asked for, in the form that it works with.

    Attributes:
        source: Where the trace of each episode comes from.
        arrival_rate: Tasks per second; None for the source's own.
        num_tasks: Tasks of an episode.
        profile: The engine.
        mode: One of `MODES`.
        max_candidates: Actions in the candidates mode.
        candidate_list: One of `LISTS`; `params` says it too.
        max_agents: Rows of agents in the state mode.
        max_requests: Rows of requests in the state mode.
        skip_forced: Whether points with one candidate are passed without asking.
        reward_scale: What rewards are divided by.
        decision_s: Simulated seconds that each decision takes.
        params: PARAMS (1,), beta and rho of the score among them.
        render_mode: How `render` draws.
        topology: Agents, stages and their names.
        stage_names: Name of each row of `topology.stages`.
    """

    source: WorkloadSpec
    arrival_rate: float | None
    num_tasks: int
    profile: EngineProfile
    mode: str
    max_candidates: int
    candidate_list: str
    max_agents: int
    max_requests: int
    skip_forced: bool
    reward_scale: float
    decision_s: float
    params: NDArray[Any]
    render_mode: str | None
    topology: Topology
    stage_names: tuple[str, ...]


def make_settings(
    *,
    workload: Any = "dag-4",
    arrival_rate: float | None = None,
    num_tasks: int | None = None,
    profile: Any = "qwen2.5-32b-a100-80g",
    max_candidates: int = 32,
    candidate_list: str = "full",
    action_mode: str = "candidates",
    max_agents: int | None = None,
    max_requests: int | None = None,
    skip_forced: bool = True,
    reward_scale: float = 1.0,
    host_tier: str | None = None,
    eviction: str | None = None,
    profile_overrides: Mapping[str, Any] | None = None,
    decision_time_s: float | None = None,
    beta: float = 1.0,
    rho: float = 0.5,
    render_mode: str | None = None,
) -> Settings:
    """Checks the arguments of an environment; `TopasPrefixStateEnv` says what each of them means.

    Raises:
        InputError: One line with the argument and its value.
    """
    _one_of("action_mode", action_mode, MODES)
    _one_of("candidate_list", candidate_list, LISTS)
    _one_of("render_mode", render_mode, _RENDER_MODES)
    source = workload_spec(workload)
    direct = {"host_tier": host_tier, "eviction": eviction}
    overrides = {**(profile_overrides or {}), **{name: value for name, value in direct.items() if value is not None}}
    if not isinstance(skip_forced, bool | np.bool_):
        raise InputError(f"skip_forced: expected true or false, got {skip_forced!r}")
    names = topology(source.workflows)
    return Settings(
        source=source,
        arrival_rate=None if arrival_rate is None else float(_number("arrival_rate", arrival_rate)),
        num_tasks=_count("num_tasks", source.num_tasks if num_tasks is None else num_tasks),
        profile=load_profile(profile, **overrides),
        mode=action_mode,
        max_candidates=_count("max_candidates", max_candidates),
        candidate_list=candidate_list,
        max_agents=_count("max_agents", len(names.agent_names) if max_agents is None else max_agents),
        max_requests=_count("max_requests", _DEFAULT_REQUESTS if max_requests is None else max_requests),
        skip_forced=bool(skip_forced),
        reward_scale=_number("reward_scale", reward_scale),
        decision_s=0.0 if decision_time_s is None else _number("decision_time_s", decision_time_s, zero=True),
        params=default_params(
            beta=_number("beta", beta, zero=True),
            rho=_number("rho", rho, zero=True),
            short=int(candidate_list == "short"),
        ),
        render_mode=render_mode,
        topology=names,
        stage_names=tuple(stage.name for workflow in source.workflows for stage in workflow.stages),
    )


def json_ready(value: Any) -> Any:
    """Returns an argument of an environment as what JSON can hold: paths as text, profiles and mappings as dicts."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, EngineProfile):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def trace_seed(stream: np.random.Generator, options: Mapping[str, Any] | None) -> int:
    """Returns the seed of an episode's trace: the one asked for, else the next of a stream, at least 0.

    Raises:
        InputError: There is another option, or the seed is no integer of at least 0.
    """
    drawn = int(stream.integers(2**31))
    if not options:
        return drawn
    for name in options:
        if name != "trace_seed":
            raise InputError(f"options: the one option of reset is trace_seed, got {name!r}")
    seed = options["trace_seed"]
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"options['trace_seed']: expected an integer of at least 0, got {seed!r}")
    return int(seed)


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise InputError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name}: expected an integer of at least 1, got {value!r}")
    return int(value)


def _number(name: str, value: object, *, zero: bool = False) -> float:
    number = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):  # type: ignore[arg-type,operator]
        raise InputError(f"{name}: expected a {'number of at least 0' if zero else 'positive number'}, got {value!r}")
    return float(value)  # type: ignore[arg-type]
