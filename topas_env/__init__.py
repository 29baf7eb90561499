"""Gymnasium environment and tools for task-oriented, prefix-aware scheduling of multi-agent LLM workflows.

`import topas_env` registers `TopasPrefixState-v0` and loads everything else when it is first used (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register, registry

if TYPE_CHECKING:
    from topas_env._decision import Decision, check_decision
    from topas_env._errors import InfeasibleDecision, InputError
    from topas_env._profile import EngineProfile, load_profile, profile_names
    from topas_env._score import ScoreTerms, score_terms
    from topas_env._simulate import simulate
    from topas_env._snapshot import Snapshot
    from topas_env._workflow import Agent, Stage, Workflow
    from topas_env._workload import Workload, load_workload, workload_names

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Decision",
    "EngineProfile",
    "InfeasibleDecision",
    "InputError",
    "ScoreTerms",
    "Snapshot",
    "Stage",
    "Workflow",
    "Workload",
    "__version__",
    "check_decision",
    "load_profile",
    "load_workload",
    "profile_names",
    "score_terms",
    "simulate",
    "workload_names",
]

_HOMES = {
    "Agent": "_workflow",
    "Decision": "_decision",
    "EngineProfile": "_profile",
    "InfeasibleDecision": "_errors",
    "InputError": "_errors",
    "ScoreTerms": "_score",
    "Snapshot": "_snapshot",
    "Stage": "_workflow",
    "Workflow": "_workflow",
    "Workload": "_workload",
    "check_decision": "_decision",
    "load_profile": "_profile",
    "load_workload": "_workload",
    "profile_names": "_profile",
    "score_terms": "_score",
    "simulate": "_simulate",
    "workload_names": "_workload",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its home on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'topas_env' has no attribute {name!r}")
    value = getattr(import_module(f"topas_env.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names."""
    return sorted(__all__)


if "TopasPrefixState-v0" not in registry:
    register(
        id="TopasPrefixState-v0",
        entry_point="topas_env.env:TopasPrefixStateEnv",
        vector_entry_point="topas_env.env:TopasPrefixStateVectorEnv",
    )
