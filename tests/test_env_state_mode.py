"""The state mode: actions that are the decision itself, as bits."""

import gymnasium as gym
import numpy as np
import pytest

from env_cases import ID, SMALL, run
from topas_env import InputError
from topas_policies import make_policy


def state_env(**more):
    return gym.make(ID, action_mode="state", **{**SMALL, **more}).unwrapped


@pytest.mark.parametrize("name", ["parrot-fcfs", "spf", "topas", "lpm"])
def test_state_mode_takes_a_policys_decision(name):
    env, other = state_env(), gym.make(ID, **SMALL).unwrapped
    policy = make_policy(name)

    def choose(_, info):
        assert "violation" not in info
        assert info["overflow"] == 0
        return env.encode(policy.decide(env.snapshot()))

    total, steps, info = run(env, choose)
    assert total == pytest.approx(-info["jct_s"].sum(), rel=1e-12)
    if name == "parrot-fcfs":  # admits in the order of the rows, by task arrival; bits say no other order
        same, equal, _ = run(other, lambda *_: other.encode(policy.decide(other.snapshot())))
        assert steps == equal
        assert total == pytest.approx(same, rel=1e-12)


def test_state_mode_rows_are_running_then_ready_by_arrival_and_id():
    env = state_env()
    obs, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(25):
        snapshot = env.snapshot()
        arrival = {task.id: task.arrival_s for task in snapshot.tasks}
        running = [r for r in snapshot.requests if r.status == "running"]
        ready = sorted((r for r in snapshot.requests if r.status == "ready"), key=lambda r: (arrival[r.task], r.id))
        rows = env._batch.rows(0)
        ids = env._batch.packed(0).request_ids
        assert [ids[row] for row in rows if row >= 0] == [r.id for r in running + ready]
        features = obs["requests"].reshape(env._settings.max_requests, -1)
        assert features[: len(rows[rows >= 0]), 0].all()
        assert features[:, 1].sum() == len(running)
        decision = make_policy("spf").decide(snapshot)
        action = env.encode(decision) if rng.integers(2) else env.action_space.sample()
        obs, _, terminated, _, _ = env.step(action)
        assert obs in env.observation_space
        if terminated:
            return


def test_state_mode_says_which_constraint_is_violated():
    env = state_env()
    env.reset(seed=0)
    empty = {name: np.zeros(space.n, np.int8) for name, space in env.action_space.spaces.items()}
    everything = {name: np.ones(space.n, np.int8) for name, space in env.action_space.spaces.items()}
    no_prefix = {**everything, "prefixes": empty["prefixes"]}
    _, _, _, _, info = env.step(no_prefix)
    assert "prefixes" in info["violation"]
    for _ in range(12):
        _, _, _, _, info = env.step(everything)
    # All prefixes of dag-4 together are larger than the KV pool of 18,560 tokens.
    assert info["violation"].startswith("prefix tokens + reserved tokens <= kv_budget_tokens: ")
    left, right = info["violation"].split(": ")[1].split(" against ")
    assert int(left) > int(right) == env.snapshot().kv_budget_tokens


def test_state_mode_checks_the_slots():
    env = state_env(profile_overrides={"max_running_requests": 1, "kv_budget_tokens": 200000}, arrival_rate=1.0)
    env.reset(seed=0)
    everything = {name: np.ones(space.n, np.int8) for name, space in env.action_space.spaces.items()}
    violations = set()
    for _ in range(10):
        _, _, _, _, info = env.step(everything)
        violations.add(info.get("violation", "")[:30])
        assert len([r for r in env.snapshot().requests if r.status == "running"]) <= 1
    assert "requests that run <= max_runni" in violations


def test_state_mode_counts_what_has_no_row():
    env = state_env(max_requests=2, max_agents=1, arrival_rate=1.0)
    _, info = env.reset(seed=0)
    nothing = {name: np.zeros(space.n, np.int8) for name, space in env.action_space.spaces.items()}
    agents = len(env.snapshot().workflows[0].agents)
    for _ in range(6):
        assert info["overflow"] == max(len(env.snapshot().requests) - 2, 0) + agents - 1
        _, _, _, _, info = env.step(nothing)
    assert info["overflow"] > agents - 1


@pytest.mark.parametrize("action", [{}, {"prefixes": [0]}, {"prefixes": [0.5] * 4, "requests": [0] * 128}, 3])
def test_state_mode_refuses_actions_of_a_wrong_shape(action):
    env = state_env()
    env.reset(seed=0)
    with pytest.raises(InputError, match="action"):
        env.step(action)


def test_state_mode_batches_like_single_environments():
    envs = gym.make_vec(ID, num_envs=2, action_mode="state", **SMALL)
    singles = [state_env() for _ in range(2)]
    obs, _ = envs.reset(seed=0)
    for i, env in enumerate(singles):
        env.reset(seed=i)
    envs.action_space.seed(0)
    for _ in range(60):
        action = envs.action_space.sample()
        obs, rewards, _, _, info = envs.step(action)
        for i, env in enumerate(singles):
            own, reward, terminated, _, other = env.step({name: bits[i] for name, bits in action.items()})
            assert reward == rewards[i]
            violation = info["violation"][i] if "violation" in info and info["_violation"][i] else None
            assert violation == other.get("violation")
            if terminated:
                own, _ = env.reset()
            assert all(np.array_equal(obs[key][i], own[key]) for key in own)
