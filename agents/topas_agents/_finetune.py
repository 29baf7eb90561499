"""Fine-tuning with MaskablePPO over a distribution of operating points, discount 1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from topas_agents._actor_critic import ScorerPolicy
from topas_agents._architecture import Architecture
from topas_agents._checkpoint import Checkpoint, TrainingRecord
from topas_agents._config import FineTuning, Scenarios, TrainConfig
from topas_agents._mixed import MixedVecEnv
from topas_agents._sb3 import SB3VecEnv
from topas_agents._scenarios import draw_scenario
from topas_env import simulate
from topas_env._errors import InputError
from topas_policies import make_policy

__all__ = ["fine_tune", "make_environments"]

_RETURN = 10.0  # size of an episode's return under the yardstick
_YARDSTICKS = ("spf", "gated-lpm")


def make_environments(
    scenarios: Scenarios, settings: FineTuning, rng: np.random.Generator, candidate_list: str = "full"
) -> MixedVecEnv:
    """Draws operating points and makes the copies at each.

    Rewards of a point are scaled so that the better of two plain policies has a return of about -10: no workload
    outweighs another because its tasks are long.

    Args:
        scenarios: Where the points come from.
        settings: How many, and copies of each.
        rng: Of the draws.
        candidate_list: `full` or `short`.
    """
    parts = []
    for _ in range(settings.environments):
        s = draw_scenario(scenarios, rng)
        workload = s.workload()
        best = min(simulate(workload, make_policy(name), profile=s.profile).mean_jct_s for name in _YARDSTICKS)
        envs = gym.make_vec(
            "topas_env:TopasPrefixState-v0",
            num_envs=settings.copies,
            workload=s.source,
            arrival_rate=s.arrival_rate,
            num_tasks=s.num_tasks,
            profile=s.profile.to_dict(),
            reward_scale=best * s.num_tasks / _RETURN,
            candidate_list=candidate_list,
            num_threads=1,
        )
        parts.append(SB3VecEnv(envs, seed=int(rng.integers(2**31))))
    return MixedVecEnv(parts)


class _Progress(BaseCallback):
    """Tells how far the steps are, and notes returns relative to the yardstick."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        super().__init__()
        self._tell = tell

    def _on_step(self) -> bool:
        self._tell(self.num_timesteps)
        return True


def fine_tune(
    config: TrainConfig, start: Checkpoint | None, folder: Path, progress: Callable[[int, int], None]
) -> Checkpoint:
    """Trains on from a checkpoint, and goes on where the folder's `ppo.pt` was left.

    Args:
        config: With `fine_tuning`.
        start: Weights to begin with; None for random ones.
        folder: Gets `ppo.pt` after each set of operating points, and tensorboard's files.
        progress: Called with the steps so far and the steps wanted.

    Raises:
        InputError: `ppo.pt` is damaged.
    """
    settings = config.fine_tuning
    assert settings is not None
    architecture = start.architecture if start is not None else config.architecture
    path = folder / "ppo.pt"
    saved = _read(path) if path.exists() else None
    done = 0 if saved is None else int(saved["steps"])
    model: Any = None
    while done < settings.steps:
        chunk = min(settings.redraw, settings.steps - done)
        rng = np.random.default_rng([config.seed, 7, done])
        envs = make_environments(config.scenarios, settings, rng, architecture.candidate_list)
        if model is None:
            model = _model(envs, settings, architecture, config.seed, folder)
            if saved is not None:
                _restore(model, saved, path)
            elif start is not None:
                model.policy.scorer.put(start.weights)
        else:
            model.set_env(envs)
        before = done
        model.learn(
            chunk,
            callback=_Progress(lambda steps: progress(min(steps, settings.steps), settings.steps)),
            reset_num_timesteps=False,
            tb_log_name="ppo",
        )
        done = int(model.num_timesteps)
        assert done > before
        envs.close()
        partial = path.with_name(".ppo.pt")
        state = {"steps": done, "policy": model.policy.state_dict(), "optimizer": model.policy.optimizer.state_dict()}
        torch.save(state, partial)
        partial.replace(path)
    weights = _scorer_weights(saved["policy"]) if model is None and saved is not None else model.policy.scorer.weights()
    earlier = start.record if start is not None else TrainingRecord("")
    record = TrainingRecord(
        f"{earlier.method}, ppo" if earlier.method else "ppo",
        earlier.teacher,
        config.seed,
        earlier.steps,
        earlier.points,
        data={"ppo_steps": done},
    )
    return Checkpoint(architecture, weights, record)


def _model(envs: MixedVecEnv, settings: FineTuning, architecture: Architecture, seed: int, folder: Path) -> Any:
    return MaskablePPO(
        ScorerPolicy,
        envs,
        n_steps=settings.n_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        gamma=1.0,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_range,
        ent_coef=settings.entropy,
        seed=seed,
        policy_kwargs={"architecture": architecture, "seed": seed},
        tensorboard_log=str(folder),
        device="cpu",
    )


def _read(path: Path) -> dict[str, Any]:
    """Reads tensors and numbers; `weights_only` refuses anything that would run code."""
    try:
        saved = torch.load(path, weights_only=True)
        int(saved["steps"])
    except Exception as error:  # noqa: BLE001  # torch raises many kinds for a damaged file
        raise InputError(f"{path}: damaged: {type(error).__name__}; remove it to begin anew") from None
    result: dict[str, Any] = saved
    return result


def _restore(model: Any, saved: dict[str, Any], path: Path) -> None:
    try:
        model.policy.load_state_dict(saved["policy"])
        model.policy.optimizer.load_state_dict(saved["optimizer"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: of another network: {' '.join(str(error).split())[:200]}") from None
    model.num_timesteps = int(saved["steps"])


def _scorer_weights(state: dict[str, Any]) -> dict[str, Any]:
    prefix = "scorer."
    return {name.removeprefix(prefix): value.numpy().copy() for name, value in state.items() if name.startswith(prefix)}
