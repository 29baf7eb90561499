"""Batched environments: the same as single ones, with any number of threads, and they grow."""

import gymnasium as gym
import numpy as np
import pytest

from env_cases import ID, SMALL


@pytest.mark.parametrize(("count", "threads"), [(3, 1), (40, 2)])
def test_a_batch_is_so_many_single_environments(count, threads):
    envs = gym.make_vec(ID, num_envs=count, num_threads=threads, **SMALL)
    singles = [gym.make(ID, **SMALL) for _ in range(count)]
    obs, info = envs.reset(seed=10)
    own = [env.reset(seed=10 + i) for i, env in enumerate(singles)]
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(80):
        for i in range(count):
            assert all(np.array_equal(obs[key][i], own[i][0][key]) for key in obs)
            assert np.array_equal(info["action_mask"][i], own[i][1]["action_mask"])
        actions = rng.integers(0, 33, count)  # forbidden ones among them
        obs, rewards, terminations, truncations, info = envs.step(actions)
        assert not truncations.any()
        for i, env in enumerate(singles):
            last, reward, terminated, _, last_info = env.step(int(actions[i]))
            assert rewards[i] == reward
            assert terminations[i] == terminated
            invalid = "invalid_action" in info and bool(info["invalid_action"][i])
            assert invalid == ("invalid_action" in last_info)
            if terminated:
                ends += 1
                assert info["_final_obs"][i]
                assert all(np.array_equal(info["final_obs"][i][key], last[key]) for key in last)
                assert np.array_equal(info["final_info"]["jct_s"][i], last_info["jct_s"])
                own[i] = env.reset()
                assert info["trace_seed"][i] == own[i][1]["trace_seed"]
            else:
                own[i] = (last, last_info)
    assert ends >= count // 2
    envs.close()


def test_threads_change_nothing():
    results = []
    for threads in (1, 2):
        envs = gym.make_vec(ID, num_envs=32, num_threads=threads, **SMALL)
        _, info = envs.reset(seed=0)
        rng = np.random.default_rng(2)
        got = []
        for _ in range(50):
            obs, rewards, _, _, info = envs.step(rng.integers(info["action_mask"].sum(axis=1)))
            got.append((rewards.tobytes(), obs["candidates"].tobytes()))
        results.append(got)
        envs.close()
    assert results[0] == results[1]


def test_batches_grow_with_the_queue():
    """With the incumbent alone nothing is ever admitted while tasks come, so rows for all 150 tasks are needed."""
    envs = gym.make_vec(ID, num_envs=2, workload="dag-4", arrival_rate=5.0, num_tasks=150)
    envs.reset(seed=0)
    single = gym.make(ID, workload="dag-4", arrival_rate=5.0, num_tasks=150)
    single.reset(seed=0)
    for _ in range(170):
        _, rewards, _, _, _ = envs.step(np.zeros(2, int))
        assert rewards[0] == single.step(0)[1]
    assert len(single.unwrapped.snapshot().tasks) > 128


def test_worlds_of_a_batch_grow_into_the_same_rows():
    """Each of 8 worlds needs more rows at another time; what one made room for is there for the others too."""
    envs = gym.make_vec(ID, num_envs=8, workload="dag-4", arrival_rate=5.0, num_tasks=150)
    envs.reset(seed=0)
    for _ in range(170):
        envs.step(np.zeros(8, int))
    arrays = envs.unwrapped._batch._stack.arrays
    assert 150 <= arrays.v.tasks.shape[1] < 600
    assert 150 <= arrays.v.requests.shape[1] < 600
