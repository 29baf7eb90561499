"""Observation and action spaces. Every entry is flat: Stable-Baselines3 warns about matrices that are no images."""

from typing import Any

import numpy as np
from gymnasium import spaces

from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES, LIMIT
from topas_env._core.rows import AGENT_ROW_FEATURES, REQUEST_ROW_FEATURES, ROW_LIMIT
from topas_env.env._settings import Settings

__all__ = ["action_space", "observation_space"]


def observation_space(settings: Settings) -> spaces.Dict:
    """Returns the space of one environment's observation."""
    parts: dict[str, Any] = {"global": _box(-LIMIT, LIMIT, len(GLOBAL_FEATURES))}
    if settings.mode == "state":
        parts["agents"] = _box(0.0, ROW_LIMIT, settings.max_agents * len(AGENT_ROW_FEATURES))
        parts["requests"] = _box(0.0, ROW_LIMIT, settings.max_requests * len(REQUEST_ROW_FEATURES))
    else:
        parts["candidates"] = _box(-LIMIT, LIMIT, settings.max_candidates * len(CANDIDATE_FEATURES))
        parts["action_mask"] = _box(0.0, 1.0, settings.max_candidates)
    return spaces.Dict(parts)


def action_space(settings: Settings) -> spaces.Discrete | spaces.Dict:
    """Returns the space of one environment's action."""
    if settings.mode == "state":
        return spaces.Dict(
            prefixes=spaces.MultiBinary(settings.max_agents), requests=spaces.MultiBinary(settings.max_requests)
        )
    return spaces.Discrete(settings.max_candidates)


def _box(low: float, high: float, size: int) -> spaces.Box:
    return spaces.Box(low, high, (size,), np.float32)
