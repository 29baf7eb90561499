"""Learned policies and training for TOPAS Env. Everything is loaded when it is first used, torch too."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topas_agents._sb3 import SB3VecEnv

__all__ = ["SB3VecEnv"]

_HOMES = {"SB3VecEnv": "_sb3"}


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
