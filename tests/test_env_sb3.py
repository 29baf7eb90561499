"""Stable-Baselines3 and sb3-contrib on the environments as they are."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from topas_agents import SB3VecEnv

ID = "topas_env:TopasPrefixState-v0"
SMALL = {"workload": "dag-4", "arrival_rate": 0.1, "num_tasks": 5}
NET = {"net_arch": [16]}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make():
    return gym.make(ID, **SMALL)


def test_vec_env_masks_and_infos():
    envs = SB3VecEnv(num_envs=3, seed=0, **SMALL)
    obs = envs.reset()
    assert obs["candidates"].shape[0] == 3
    assert is_masking_supported(envs)
    returns, ends = np.zeros(3), 0
    for _ in range(200):
        masks = get_action_masks(envs)
        assert np.array_equal(masks, obs["action_mask"] > 0)
        obs, rewards, dones, infos = envs.step(masks.argmax(axis=1))
        assert rewards.dtype == np.float32
        returns += rewards
        for i in np.flatnonzero(dones):
            ends += 1
            assert infos[i]["episode"]["r"] == pytest.approx(-infos[i]["jct_s"].sum())
            assert infos[i]["episode"]["r"] == pytest.approx(returns[i], rel=1e-5)
            assert infos[i]["mean_jct_s"] == pytest.approx(infos[i]["jct_s"].mean())
            assert infos[i]["terminal_observation"]["action_mask"].any()
            assert not infos[i]["TimeLimit.truncated"]
            returns[i] = 0.0
    assert ends >= 3
    envs.close()


def test_vec_env_does_what_dummy_vec_env_does():
    ours, theirs = SB3VecEnv(num_envs=2, **SMALL), DummyVecEnv([make, make])
    for envs in (ours, theirs):
        envs.seed(4)
    one, two = ours.reset(), theirs.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        assert all(np.array_equal(one[key], two[key]) for key in one)
        actions = rng.integers(0, 32, 2)
        one, rewards, dones, infos = ours.step(actions)
        two, same, ends, others = theirs.step(actions)
        assert np.array_equal(rewards, same)
        assert np.array_equal(dones, ends)
        assert [info.get("invalid_action") for info in infos] == [info.get("invalid_action") for info in others]
        for i in np.flatnonzero(dones):
            last, other = infos[i]["terminal_observation"], others[i]["terminal_observation"]
            assert all(np.array_equal(last[key], other[key]) for key in last)


def test_vec_monitor_around_it():
    envs = VecMonitor(SB3VecEnv(num_envs=2, seed=0, **SMALL), info_keywords=("mean_jct_s",))
    envs.reset()
    for _ in range(300):
        _, _, dones, infos = envs.step(np.zeros(2, int))
        if dones.any():
            break
    info = infos[int(dones.argmax())]
    assert info["episode"]["r"] == pytest.approx(-info["mean_jct_s"] * 5, rel=1e-5)


def test_vec_env_over_one_that_exists():
    envs = SB3VecEnv(gym.make_vec(ID, num_envs=2, **SMALL))
    assert envs.num_envs == 2
    with pytest.raises(TypeError, match="num_tasks"):
        SB3VecEnv(gym.make_vec(ID, num_envs=2, **SMALL), num_tasks=3)
    with pytest.raises(ValueError, match="render_mode"):
        envs.set_attr("render_mode", None, indices=[0])


def test_maskable_ppo_learns_on_the_batched_env_and_never_breaks_the_mask():
    envs = SB3VecEnv(num_envs=4, seed=0, **SMALL)
    model = MaskablePPO("MultiInputPolicy", envs, n_steps=32, batch_size=64, gamma=1.0, seed=0, policy_kwargs=NET)
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.policy.parameters(), strict=True))
    obs = envs.reset()
    for _ in range(50):
        actions, _ = model.predict(obs, action_masks=envs.action_masks())
        obs, _, _, infos = envs.step(actions)
        assert not any("invalid_action" in info for info in infos)


def test_maskable_ppo_on_the_single_env():
    MaskablePPO("MultiInputPolicy", make(), n_steps=32, batch_size=32, seed=0, policy_kwargs=NET).learn(64)


def test_plain_ppo_and_its_evaluation():
    model = PPO("MultiInputPolicy", make(), n_steps=64, batch_size=64, gamma=1.0, seed=0, policy_kwargs=NET).learn(192)
    mean, _ = evaluate_policy(model, SB3VecEnv(num_envs=2, seed=0, **SMALL), n_eval_episodes=2, warn=False)
    assert mean < 0


def test_plain_dqn():
    DQN("MultiInputPolicy", make(), learning_starts=50, buffer_size=500, gamma=1.0, seed=0, policy_kwargs=NET).learn(
        200
    )


def test_subproc_vec_env():
    envs = SubprocVecEnv([make, make], start_method="spawn")
    try:
        envs.seed(0)
        obs = envs.reset()
        masks = get_action_masks(envs)
        assert np.array_equal(masks, obs["action_mask"] > 0)
        obs, rewards, _, _ = envs.step(masks.argmax(axis=1))
        assert obs["global"].shape[0] == 2
        assert np.isfinite(rewards).all()
    finally:
        envs.close()
