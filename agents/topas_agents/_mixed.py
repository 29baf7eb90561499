"""Several batched environments as one, so that one algorithm learns on a distribution of operating points."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from topas_agents._sb3 import SB3VecEnv

__all__ = ["MixedVecEnv"]


class MixedVecEnv(VecEnv):
    """The copies of several `SB3VecEnv`s behind one another; their spaces must be the same.

    Args:
        parts: The environments, each at its own operating point.

    Raises:
        ValueError: The spaces differ, or there is no part.
    """

    def __init__(self, parts: Sequence[SB3VecEnv]) -> None:
        if not parts:
            raise ValueError("parts: there is no environment")
        first = parts[0]
        for part in parts[1:]:
            if part.observation_space != first.observation_space or part.action_space != first.action_space:
                raise ValueError("parts: the spaces differ; give all the same max_candidates")
        self.parts = list(parts)
        edges = np.cumsum([0, *(part.num_envs for part in parts)])
        self._slices = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        super().__init__(int(edges[-1]), first.observation_space, first.action_space)

    def reset(self) -> VecEnvObs:
        """Starts an episode in every copy."""
        return _together([part.reset() for part in self.parts])

    def step_async(self, actions: NDArray[Any]) -> None:
        """Hands each part its actions."""
        for part, where in zip(self.parts, self._slices, strict=True):
            part.step_async(actions[where])

    def step_wait(self) -> VecEnvStepReturn:
        """Takes the step in every part, one after the other."""
        found = [part.step_wait() for part in self.parts]
        return (
            _together([item[0] for item in found]),
            np.concatenate([item[1] for item in found]),
            np.concatenate([item[2] for item in found]),
            [info for item in found for info in item[3]],
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns bool (n, max_candidates): the actions that are allowed now."""
        return np.concatenate([part.action_masks() for part in self.parts])

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds the next reset: copy i of all gets seed + i."""
        seeds: list[int | None] = []
        for part, where in zip(self.parts, self._slices, strict=True):
            seeds += part.seed(None if seed is None else seed + where.start)
        return seeds

    def close(self) -> None:
        """Closes every part."""
        for part in self.parts:
            part.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Returns an attribute of each copy asked for."""
        values = [value for part in self.parts for value in part.get_attr(attr_name)]
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Sets an attribute of every part.

        Raises:
            ValueError: `indices` names some copies and not all.
        """
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise ValueError(f"{attr_name}: it can be set for all copies only")
        for part in self.parts:
            part.set_attr(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method that answers for all copies and returns the answers asked for."""
        answers = [x for part in self.parts for x in part.env_method(method_name, *method_args, **method_kwargs)]
        return [answers[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """No copy has a wrapper of its own."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]


def _together(parts: list[Any]) -> dict[str, NDArray[Any]]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
