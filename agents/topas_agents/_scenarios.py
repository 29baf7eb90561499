"""Operating points drawn from a distribution, and the simulated worlds at them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from topas_agents._config import Scenarios
from topas_agents._random_dag import RANDOM_DAG, SHAPES, random_dag
from topas_agents._session_like import POPULATIONS, SESSION_LIKE, session_like
from topas_env import EngineProfile, load_profile
from topas_env._core.world import World
from topas_env._errors import InputError
from topas_env._new_world import new_world
from topas_env._services import known_services, profile_services, profile_workload
from topas_env._utilisation import check_fits, most_tokens, task_engine_s
from topas_env._workload import Workload, WorkloadSpec, workload_names, workload_spec

__all__ = ["Scenario", "draw_scenario", "least_budget", "rate_for_load", "scenario_world"]

_RATE_SEED = 20_000_001  # of the draw that a workload's engine time is measured on
_RATE_TASKS = 400
_SESSION_PROFILE = "qwen2.5-7b-a100-80g"  # sessions are served by a small model in about half of its pool
_SESSION_BUDGET = 400_000
_TYPICAL_BATCH = 8
_SPEEDS = (
    ("prefill_base_s", "prefill_s_per_token"),
    ("step_base_s", "step_s_per_request", "step_s_per_kv_token", "decode_s_per_token"),
    ("load_s_per_token", "offload_s_per_token"),
)


@dataclass(frozen=True)
class Scenario:
    """An operating point and a seed.

    Attributes:
        given: The workload as the configuration names it.
        source: The workload.
        profile: The engine.
        arrival_rate: Tasks a second.
        num_tasks: Tasks of the episode.
        seed: Of the trace.
        overrides: What of the profile was changed.
    """

    given: str
    source: WorkloadSpec
    profile: EngineProfile
    arrival_rate: float
    num_tasks: int
    seed: int
    overrides: dict[str, Any]

    def workload(self) -> Workload:
        """Returns the trace."""
        return self.source.draw(seed=self.seed, num_tasks=self.num_tasks, arrival_rate=self.arrival_rate)


def rate_for_load(source: WorkloadSpec, profile: EngineProfile, load: float) -> float:
    """Returns the arrival rate, tasks per second, at which a workload has the given utilisation of an engine."""
    workload = _typical(source)
    return load / float(task_engine_s(workload, profile).mean())


def least_budget(workload: Workload, profile: EngineProfile) -> int:
    """Returns the smallest KV budget that every call fits, tokens."""
    return int(most_tokens(workload, profile).max())


def draw_scenario(scenarios: Scenarios, rng: np.random.Generator) -> Scenario:
    """Draws an operating point and a seed.

    Raises:
        InputError: A workload or profile is not known.
    """
    given = _one(scenarios.workloads, rng)
    base = load_profile(_one(scenarios.profiles, rng))
    source: WorkloadSpec
    if given == RANDOM_DAG:
        source = random_dag(int(rng.integers(SHAPES)))
    elif given == SESSION_LIKE:
        source = workload_spec(session_like(int(rng.integers(POPULATIONS))))
        base = load_profile(_SESSION_PROFILE, kv_budget_tokens=_SESSION_BUDGET)
    else:
        source = workload_spec(given)
    overrides: dict[str, Any] = {"host_tier": _one(scenarios.host_tiers, rng)}
    if scenarios.rebuilds:
        overrides["rebuild"] = _one(scenarios.rebuilds, rng)
    for names in _SPEEDS:
        factor = float(rng.uniform(*scenarios.speed_scale))
        overrides |= {name: getattr(base, name) * factor for name in names}
    if scenarios.other_engines > 0.0 and rng.random() < scenarios.other_engines:
        overrides |= _other_engine(base, rng)
    load = float(rng.uniform(*scenarios.loads))
    num_tasks = int(rng.integers(scenarios.num_tasks[0], scenarios.num_tasks[1] + 1))
    seed = int(rng.integers(scenarios.seeds[0], scenarios.seeds[1] + 1))
    budget = int(base.kv_budget_tokens * float(rng.uniform(*scenarios.kv_budget_scale)))
    profile = load_profile(base, **overrides)
    drawn = source.draw(seed=seed, num_tasks=num_tasks, arrival_rate=rate_for_load(source, profile, load))
    must_fit = [drawn, _typical(source)]
    if source.name in workload_names() or given == RANDOM_DAG:
        must_fit.append(profile_workload(source))
    overrides["kv_budget_tokens"] = max(budget, *(least_budget(each, profile) for each in must_fit))
    profile = load_profile(base, **overrides)
    return Scenario(given, source, profile, rate_for_load(source, profile, load), num_tasks, seed, overrides)


def _other_engine(base: EngineProfile, rng: np.random.Generator) -> dict[str, Any]:
    """Draws the costs of an engine of another kind; a decode step without requests takes what the profile says."""
    step = base.step_base_s
    request = step * float(rng.uniform(0.0, 0.2))
    kv_token = base.step_s_per_kv_token * 4.0 ** float(rng.uniform(-1.0, 1.0))
    prefill = 2.0 ** float(rng.uniform(-5.0, 2.0))
    load = 2.0 ** float(rng.uniform(-3.0, 3.0))
    return {
        "max_running_requests": int(2.0 ** rng.uniform(4.0, 11.0)),
        "step_base_s": step,
        "step_s_per_request": request,
        "step_s_per_kv_token": kv_token,
        "decode_s_per_token": step + _TYPICAL_BATCH * request + kv_token * base.kv_budget_tokens / 2,
        **{name: getattr(base, name) * prefill for name in _SPEEDS[0]},
        **{name: getattr(base, name) * load for name in _SPEEDS[2]},
    }


def scenario_world(scenario: Scenario) -> World:
    """Returns the world at time 0, policies told what `simulate` tells them."""
    workload = scenario.workload()
    check_fits(workload, scenario.profile)
    if scenario.given == RANDOM_DAG:
        known = profile_services(scenario.source, scenario.profile)
    else:
        known = known_services(workload, scenario.profile)
    return new_world(workload, scenario.profile, profile_s=known, record=0)


_typical_draws: dict[str, tuple[WorkloadSpec, Workload]] = {}


def _typical(source: WorkloadSpec) -> Workload:
    """Returns one large draw of a workload, the same each time."""
    known = _typical_draws.get(source.name)
    if known is None or known[0].workflows != source.workflows:
        try:
            drawn = source.draw(seed=_RATE_SEED, num_tasks=_RATE_TASKS)
        except InputError:  # a recording without a rate of its own is not repeated
            drawn = source.draw(seed=_RATE_SEED)
        known = _typical_draws[source.name] = (source, drawn)
    return known[1]


def _one(items: tuple[str, ...], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]
