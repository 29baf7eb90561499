"""Operating points of the reproduction: a paper workload, perhaps with other lengths, at a rate on an engine."""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from topas_env._profile import EngineProfile
    from topas_env._workload import GeneratedSpec, Workload

__all__ = ["Options", "Setting", "balanced_rate", "bare", "believed_of", "charged", "engine_of", "workload_of"]

Options = dict[str, bool | int | float | str | None]
CHARGE: Options = {"rebuild": "decode"}
PROFILE = "qwen2.5-32b-a100-80g"


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operating point.

    Attributes:
        workload: A shipped workload.
        arrival_rate: Tasks a second.
        num_tasks: Tasks a run.
        prefix_share: Mean prefix as a share of the KV budget; None for the workload's own lengths.
        output_scale: Factor on all output lengths and on what the client asks for.
        overrides: Parameters of the engine profile that are not its own.
        believed: Parameters that policies are told and that are not the engine's.
        decision_time: As `simulate` takes it.
    """

    workload: str
    arrival_rate: float
    num_tasks: int = 200
    prefix_share: float | None = None
    output_scale: float = 1.0
    overrides: Options = {}
    believed: Options = {}
    decision_time: str | float | None = None


def engine_of(setting: Setting) -> "EngineProfile":
    """Returns the engine of a point."""
    from topas_env._profile import load_profile

    return load_profile(PROFILE, **setting.overrides)


def believed_of(setting: Setting) -> "EngineProfile | None":
    """Returns the engine that policies are told of, None for the engine itself."""
    from topas_env._profile import load_profile

    return load_profile(engine_of(setting), **setting.believed) if setting.believed else None


def charged(setting: Setting) -> Setting:
    """Returns the point at which the score charges lost tokens at decode speed, as equation 9 of the paper does."""
    return msgspec.structs.replace(setting, believed=CHARGE)


def bare(setting: Setting) -> Setting:
    """Returns the point at which policies are told what the engine does; baselines run the same at both."""
    return msgspec.structs.replace(setting, believed={})


def workload_of(setting: Setting, seed: int) -> "Workload":
    """Draws the workload of a point; the profiled services are those of the changed lengths."""
    spec = _spec(setting.workload, setting.prefix_share, setting.output_scale)
    drawn = spec.draw(seed=seed, num_tasks=setting.num_tasks, arrival_rate=setting.arrival_rate)
    return replace(drawn, profile_s=_services(_without_rate(setting)))


def balanced_rate(setting: Setting, load: float) -> Setting:
    """Returns the point at the rate at which the engine's utilisation is `load`.

    The reference is the engine without overrides, so that all variants of an engine see the same traces.
    """
    return msgspec.structs.replace(setting, arrival_rate=round(load / _task_s(_plain(setting)), 6))


def _plain(setting: Setting) -> bytes:
    return msgspec.json.encode(
        msgspec.structs.replace(setting, arrival_rate=1.0, num_tasks=200, overrides={}, believed={}, decision_time=None)
    )


def _without_rate(setting: Setting) -> bytes:
    return msgspec.json.encode(
        msgspec.structs.replace(setting, arrival_rate=1.0, num_tasks=1, believed={}, decision_time=None), order="sorted"
    )


@functools.lru_cache(maxsize=256)
def _task_s(encoded: bytes) -> float:
    """Returns the engine time of one task under a perfect batcher, seconds, the mean over 200 tasks."""
    from topas_env._utilisation import task_engine_s

    setting = msgspec.json.decode(encoded, type=Setting)
    spec = _spec(setting.workload, setting.prefix_share, setting.output_scale)
    return float(task_engine_s(spec.draw(seed=0, num_tasks=200), engine_of(setting)).mean())


@functools.lru_cache(maxsize=256)
def _services(encoded: bytes) -> dict[tuple[str, str], float]:
    from topas_env._services import profile_services

    setting = msgspec.json.decode(encoded, type=Setting)
    spec = _spec(setting.workload, setting.prefix_share, setting.output_scale)
    return profile_services(spec, engine_of(setting))


@functools.lru_cache(maxsize=128)
def _spec(name: str, prefix_share: float | None, output_scale: float) -> "GeneratedSpec":
    from topas_env._profile import load_profile
    from topas_env._workload import GeneratedSpec
    from topas_env.workloads import plan

    made = plan(name)
    if prefix_share is not None:
        agents = made.workflow.agents
        budget = load_profile(PROFILE).kv_budget_tokens
        scale = prefix_share * budget * len(agents) / sum(agent.prefix_tokens for agent in agents)
        scaled = tuple(msgspec.structs.replace(a, prefix_tokens=round(scale * a.prefix_tokens)) for a in agents)
        made = replace(made, workflow=msgspec.structs.replace(made.workflow, agents=scaled))
    if output_scale != 1.0:
        stages = tuple(
            replace(s, output=round(output_scale * s.output), max_new=round(output_scale * s.max_new))
            for s in made.stages
        )
        made = replace(made, stages=stages)
    return GeneratedSpec(made)
