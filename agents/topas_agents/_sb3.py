"""Stable-Baselines3 on the batched environment, without one Python object for each copy."""

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

__all__ = ["SB3VecEnv"]


class SB3VecEnv(VecEnv):
    """A Stable-Baselines3 `VecEnv` over the batched environment.

    It answers `action_masks()` for sb3-contrib's `MaskablePPO`, and puts `episode` (return, length, seconds),
    `terminal_observation`, `jct_s` and `mean_jct_s` into the infos of finished episodes, so that the training log shows
    returns without a further wrapper. `VecMonitor` may be put around it.

    Args:
        envs: A batched environment (as `gym.make_vec` makes it), or the id of one.
        num_envs: Copies, where `envs` is an id.
        seed: Seed of the first reset; later episodes go on from it. None draws one.
        **kwargs: Arguments of the environment, where `envs` is an id.

    Examples:
        >>> from topas_agents import SB3VecEnv
        >>> envs = SB3VecEnv(num_envs=4, workload="dag-4", num_tasks=5, seed=0)
        >>> envs.reset()["global"].shape[0], envs.action_masks().shape
        (4, (4, 32))
        >>> envs.close()
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any] | str = "topas_env:TopasPrefixState-v0",
        num_envs: int = 8,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(envs, str):
            envs = gym.make_vec(envs, num_envs=num_envs, **kwargs)
        elif kwargs:
            raise TypeError(f"arguments {sorted(kwargs)} are for an id, not for an environment that exists")
        self.envs = envs
        self.spec = envs.spec
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        if seed is not None:
            self.seed(seed)
        self._actions: NDArray[Any] | None = None
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._began = time.perf_counter()

    def reset(self) -> VecEnvObs:
        """Starts an episode in every copy and returns the observations."""
        seeds = None if self._seeds[0] is None else list(self._seeds)
        observations, infos = self.envs.reset(seed=seeds)  # type: ignore[arg-type]  # a list is allowed
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.reset_infos = [_row(infos, index) for index in range(self.num_envs)]
        result: VecEnvObs = observations
        return result

    def step_async(self, actions: NDArray[Any]) -> None:
        """Notes the actions; `step_wait` takes the step."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Takes the step: observations, rewards float32 (n,), dones bool (n,), a list of infos."""
        observations, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        dones = terminations | truncations
        sparse = {
            key for key in infos if not key.startswith("_") and key not in {"final_obs", "final_info", "action_mask"}
        }
        rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for key in sparse:
            values = infos[key]
            for index in np.flatnonzero(infos[f"_{key}"]):
                rows[index][key] = values[index]
        for index in np.flatnonzero(dones):
            rows[index] = self._finish(infos, int(index), bool(truncations[index]))
        return observations, rewards.astype(np.float32), dones, rows

    def _finish(self, infos: dict[str, Any], index: int, truncated: bool) -> dict[str, Any]:
        """Returns the info of a copy whose episode has just ended."""
        info = _row(infos["final_info"], index)
        info.pop("action_mask", None)
        if "jct_s" in info:
            info["mean_jct_s"] = float(np.mean(info["jct_s"]))
        info["terminal_observation"] = infos["final_obs"][index]
        info["TimeLimit.truncated"] = truncated
        info["episode"] = {
            "r": float(self._returns[index]),
            "l": int(self._lengths[index]),
            "t": round(time.perf_counter() - self._began, 6),
        }
        self._returns[index] = 0.0
        self._lengths[index] = 0
        return info

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns bool (n, max_candidates): the actions that are allowed now."""
        masks: NDArray[np.bool_] = self.envs.unwrapped.action_masks()  # type: ignore[attr-defined]
        return masks

    def close(self) -> None:
        """Closes the batched environment."""
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Returns a picture of each copy."""
        frames = self.envs.render()
        return list(frames) if frames is not None else [None] * self.num_envs  # type: ignore[arg-type]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Returns an attribute of the batched environment once for each copy asked for."""
        source = self if attr_name == "action_masks" else self.envs.unwrapped
        value = getattr(source, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Sets an attribute of the batched environment; all copies share it.

        Raises:
            ValueError: `indices` names some copies and not all.
        """
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise ValueError(f"the copies share {attr_name}: it can be set for all of them only")
        setattr(self.envs.unwrapped, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of the batched environment that answers for all copies, and returns the parts asked for."""
        source = self if method_name == "action_masks" else self.envs.unwrapped
        answers = getattr(source, method_name)(*method_args, **method_kwargs)
        if answers is None:
            return [None for _ in self._get_indices(indices)]
        return [answers[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """No copy has a wrapper of its own."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]


def _row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Returns one copy's part of batched infos (Gymnasium's form: each key has a mask of the same name with `_`)."""
    return {
        key: values[index]
        for key, values in infos.items()
        if not key.startswith("_") and infos.get(f"_{key}", np.ones(len(values), bool))[index]
    }
