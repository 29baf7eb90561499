"""Train plain Stable-Baselines3 on the environment: PPO or DQN, no wrapper, no mask.

    python examples/train_sb3.py --algorithm ppo --steps 50000

A forbidden action keeps the incumbent, so algorithms that know no mask train too; MaskablePPO of sb3-contrib learns
faster (`topas train` uses it, over many workloads at once). The discount is 1: an episode's return is then minus the
sum of its job completion times.
"""

import argparse

import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy

from topas_agents import SB3VecEnv


def make_envs(num_envs: int, seed: int, tasks: int) -> SB3VecEnv:
    """Returns copies of the environment; rewards are minutes of task time, so that returns are of moderate size."""
    return SB3VecEnv(
        num_envs=num_envs, seed=seed, workload="dag-4", arrival_rate=0.1, num_tasks=tasks, reward_scale=60.0
    )


def train(algorithm: str, steps: int, seed: int = 0, tasks: int = 20) -> BaseAlgorithm:
    """Trains and returns the model.

    Args:
        algorithm: `ppo` or `dqn`.
        steps: Environment steps.
        seed: Of the networks and of the traces.
        tasks: Tasks of an episode.
    """
    torch.set_num_threads(1)  # ten times as fast as two for networks of this size
    network = {"net_arch": [64, 64]}
    model: BaseAlgorithm
    if algorithm == "ppo":
        envs = make_envs(8, seed, tasks)
        model = PPO("MultiInputPolicy", envs, n_steps=64, batch_size=128, gamma=1.0, seed=seed, policy_kwargs=network)
    else:
        envs = make_envs(1, seed, tasks)
        model = DQN(
            "MultiInputPolicy",
            envs,
            learning_starts=100,
            buffer_size=20_000,
            gamma=1.0,
            seed=seed,
            policy_kwargs=network,
        )
    return model.learn(steps)


def mean_jct_s(model: BaseAlgorithm, episodes: int, seed: int, tasks: int) -> float:
    """Returns the mean JCT over episodes on other traces, seconds."""
    envs = make_envs(1, seed, tasks)
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=episodes, return_episode_rewards=True, warn=False)
    envs.close()
    return float(-np.mean(returns) * 60.0 / tasks)


def main(arguments: list[str] | None = None) -> float:
    """Runs the example; returns the mean JCT that it prints, seconds."""
    parser = argparse.ArgumentParser(description="Plain Stable-Baselines3 on TOPAS Env")
    parser.add_argument("--algorithm", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=5)
    options = parser.parse_args(arguments)
    model = train(options.algorithm, options.steps, tasks=options.tasks)
    result = mean_jct_s(model, options.episodes, seed=10_000, tasks=options.tasks)
    print(f"{options.algorithm}, {options.steps} steps: mean JCT {result:.1f} s over {options.episodes} other episodes")
    return result


if __name__ == "__main__":
    main()
