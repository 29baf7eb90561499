"""Learned policies and training for TOPAS Env. Everything is loaded when it is first used, torch too."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topas_agents._architecture import Architecture
    from topas_agents._checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from topas_agents._policy import LearnedPolicy
    from topas_agents._sb3 import SB3VecEnv

__all__ = ["Architecture", "Checkpoint", "LearnedPolicy", "SB3VecEnv", "load_checkpoint", "save_checkpoint"]

_HOMES = {
    "Architecture": "_architecture",
    "Checkpoint": "_checkpoint",
    "LearnedPolicy": "_policy",
    "SB3VecEnv": "_sb3",
    "load_checkpoint": "_checkpoint",
    "save_checkpoint": "_checkpoint",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its home on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'topas_agents' has no attribute {name!r}")
    value = getattr(import_module(f"topas_agents.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names."""
    return sorted(__all__)
