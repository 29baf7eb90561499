"""The environment with many engines: one object, arrays with a leading dimension."""

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from topas_env._core.world import END
from topas_env._decision import Decision
from topas_env._errors import InputError
from topas_env._snapshot import Snapshot
from topas_env.env._actions import bits_of, decisions, encode, indices_of
from topas_env.env._batch import Batch, Info, Observation
from topas_env.env._frames import frame
from topas_env.env._settings import json_ready, make_settings, trace_seed
from topas_env.env._spaces import action_space, observation_space

__all__ = ["TopasPrefixStateVectorEnv"]


class TopasPrefixStateVectorEnv(VectorEnv[Observation, Any, NDArray[Any]]):
    """Many copies of `TopasPrefixStateEnv` in one object; `gym.make_vec("TopasPrefixState-v0")` makes it.

    All copies advance in compiled code without the interpreter lock, in parts that threads share. Copy i with seed s
    does exactly what a single environment with seed s + i does. Autoreset is SAME_STEP: where an episode ends, the
    step's observation is the first one of the next episode, and the last one is in `info["final_obs"]`, its info in
    `info["final_info"]`.

    Args:
        num_envs: Copies.
        num_threads: Threads that share a step; None for two, or one on a machine with one core.
        **arguments: As `TopasPrefixStateEnv` has them.

    >>> import gymnasium as gym, topas_env
    >>> envs = gym.make_vec("TopasPrefixState-v0", num_envs=8, workload="dag-4", num_tasks=10)
    >>> obs, info = envs.reset(seed=0)
    >>> obs["action_mask"].shape
    (8, 32)
    >>> obs, rewards, terminations, truncations, info = envs.step(envs.action_masks().argmax(axis=1))
    >>> rewards.shape
    (8,)
    >>> envs.close()
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, num_envs: int = 1, *, num_threads: int | None = None, **arguments: Any) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise InputError(f"num_envs: expected an integer of at least 1, got {num_envs!r}")
        settings = make_settings(**arguments)
        self.num_envs = int(num_envs)
        self.render_mode = settings.render_mode
        self.single_observation_space = observation_space(settings)
        self.single_action_space = action_space(settings)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._settings = settings
        self._state = settings.mode == "state"
        self._scale = settings.reward_scale
        threads = min(2, os.cpu_count() or 1) if num_threads is None else num_threads
        self._batch = Batch(settings, self.num_envs, threads)
        self._streams: list[np.random.Generator] = []
        self._allowed: NDArray[np.bool_] | None = None
        self._spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The specification that `gym.make_vec` was given, its arguments as what JSON can hold."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        if value is not None:
            value.kwargs = {name: json_ready(item) for name, item in value.kwargs.items()}
        self._spec = value

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Starts an episode in every copy.

        Args:
            seed: s gives copy i the stream of seed s + i; or one for each copy; None goes on.
            options: `trace_seed`: copy i takes the trace of seed trace_seed + i.

        Raises:
            InputError: A request of the workload does not fit the engine, or an argument is wrong.
        """
        n = self.num_envs
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [None] * n if seed is None else [seed + i for i in range(n)] if isinstance(seed, int) else list(seed)
        if len(seeds) != n:
            raise InputError(f"seed: expected {n} seeds, got {len(seeds)}")
        if not self._streams:
            self._streams = [gym.utils.seeding.np_random(s)[0] for s in seeds]
        else:
            for index, own in enumerate(seeds):
                if own is not None:
                    self._streams[index] = gym.utils.seeding.np_random(own)[0]
        chosen = [trace_seed(stream, options) for stream in self._streams]
        if options:
            chosen = [first + index for index, first in enumerate(chosen)]
        output = self._batch.output()
        self._batch.start(range(n), chosen, output)
        info = self._info(output)
        info["trace_seed"], info["_trace_seed"] = np.array(chosen), np.ones(n, np.bool_)
        return self._batch.observation(output), info

    def step(self, actions: Any) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Takes a step in every copy.

        Args:
            actions: See the action space.

        Raises:
            InputError: The shape or type of the actions is wrong; a forbidden action does not raise.
        """
        batch, n = self._batch, self.num_envs
        output = batch.output()
        if self._state:
            arrays: tuple[NDArray[Any], ...] = bits_of(actions, self._settings, n)
        else:
            arrays = (indices_of(actions, n),)
        report = batch.step(arrays, output)
        rewards = report["reward"] / self._scale
        terminations = report["status"] == END
        invalid, forced = report["invalid"] != 0, report["forced"] != 0
        extra: Info = {}
        if invalid.any():
            if self._state:
                texts = np.full(n, None, object)
                for index in np.flatnonzero(invalid):
                    texts[index] = batch.violation(int(index), int(report["invalid"][index]))
                extra["violation"], extra["_violation"] = texts, invalid
            else:
                extra["invalid_action"], extra["_invalid_action"] = invalid, invalid.copy()
        if forced.any():
            extra["forced_admission"], extra["_forced_admission"] = forced, forced.copy()
        if terminations.any():
            self._restart(terminations, output, extra)
        return batch.observation(output), rewards, terminations, np.zeros(n, np.bool_), self._info(output) | extra

    def _restart(self, ended: NDArray[np.bool_], output: Any, extra: Info) -> None:
        """Notes how episodes ended and starts the next ones of their copies in `output`."""
        batch, n = self._batch, self.num_envs
        indices = np.flatnonzero(ended).tolist()
        last = batch.observation(output)
        final_obs = np.full(n, None, object)
        jct = np.zeros((n, self._settings.num_tasks))
        for index in indices:
            final_obs[index] = {name: part[index].copy() for name, part in last.items()}
            jct[index] = batch.world(index).jct
        final_info = self._info(output)
        for name, values in final_info.items():
            final_info[name] = ended.copy() if name.startswith("_") else values.copy()
        for name in ("invalid_action", "violation", "forced_admission"):
            if name in extra and (extra[f"_{name}"] & ended).any():
                final_info[name], final_info[f"_{name}"] = extra[name].copy(), extra[f"_{name}"] & ended
        final_info["jct_s"], final_info["_jct_s"] = jct, ended.copy()
        chosen = [trace_seed(self._streams[index], None) for index in indices]
        batch.start(indices, chosen, output)
        seeds = np.zeros(n, np.int64)
        seeds[indices] = chosen
        extra["trace_seed"], extra["_trace_seed"] = seeds, ended.copy()
        extra["final_obs"], extra["_final_obs"] = final_obs, ended.copy()
        extra["final_info"], extra["_final_info"] = final_info, ended.copy()

    def _info(self, output: Any) -> Info:
        every = np.ones(self.num_envs, np.bool_)
        if self._state:
            return {"overflow": self._batch.report["overflow"].copy(), "_overflow": every}
        self._allowed = output.allowed
        return {"action_mask": output.allowed, "_action_mask": every}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the actions that are allowed now, bool (num_envs, max_candidates)."""
        if self._allowed is None:
            raise InputError("action_masks: there are masks after reset, with action_mode 'candidates'")
        return self._allowed.copy()

    def candidates(self) -> list[list[Decision]]:
        """Returns for each copy the decisions behind its allowed actions."""
        return [decisions(self._batch, index) for index in range(self.num_envs)]

    def snapshot(self) -> list[Snapshot]:
        """Returns for each copy what a policy may know now."""
        return [self._batch.snapshot(index) for index in range(self.num_envs)]

    def encode(self, decisions: Sequence[Decision]) -> Any:
        """Returns the actions that carry out one decision in each copy.

        Raises:
            InputError: See `TopasPrefixStateEnv.encode`.
        """
        parts = [encode(self._batch, index, decision) for index, decision in enumerate(decisions)]
        if self._state:
            return {name: np.stack([part[name] for part in parts]) for name in ("prefixes", "requests")}
        return np.array(parts, np.int64)

    def render(self) -> tuple[Any, ...] | None:
        """Returns a frame of each copy, by `render_mode`."""
        if self.render_mode is None:
            return None
        return tuple(frame(self._batch, index) for index in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Ends the threads."""
        self._batch.close()
