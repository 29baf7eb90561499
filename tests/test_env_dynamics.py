"""What the environments compute: returns, forced points, invalid actions, candidates and their encoding."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import topas_env
from env_cases import ID, SMALL, run
from policy_cases import FIRST_NAMES
from topas_env import InputError, check_decision, load_workload, simulate
from topas_policies import make_policy, policy_names


def random_index(seed):
    rng = np.random.default_rng(seed)
    return lambda _, info: int(rng.integers(info["action_mask"].sum()))


@pytest.mark.parametrize("workload", ["chain-3", "dag-4", "dag-10-wide", "metagpt-sop", "metagpt-tl"])
def test_return_is_minus_the_sum_of_jcts(workload):
    env = gym.make(ID, workload=workload, num_tasks=8)
    total, _, info = run(env, random_index(0))
    assert info["jct_s"].shape == (8,)
    assert info["jct_s"].dtype == np.float64
    assert (info["jct_s"] > 0).all()
    assert total == pytest.approx(-info["jct_s"].sum(), rel=1e-12)


def test_reward_scale_divides():
    plain, steps, _ = run(gym.make(ID, **SMALL), random_index(1))
    scaled, same, _ = run(gym.make(ID, reward_scale=100.0, **SMALL), random_index(1))
    assert same == steps
    assert scaled == pytest.approx(plain / 100.0)


@pytest.mark.parametrize("pick", ["first", "last"])
def test_skipping_forced_points_changes_the_steps_and_not_the_return(pick):
    def choose(_, info):
        return 0 if pick == "first" else int(info["action_mask"].sum()) - 1

    asked, more, info = run(gym.make(ID, skip_forced=False, **SMALL), choose)
    skipped, fewer, other = run(gym.make(ID, **SMALL), choose)
    assert fewer <= more
    assert skipped == pytest.approx(asked, rel=1e-12)
    assert np.array_equal(info["jct_s"], other["jct_s"])


def test_with_one_candidate_all_points_are_forced_and_the_episode_still_counts():
    env = gym.make(ID, max_candidates=1, **SMALL)
    total, steps, info = run(env, lambda *_: 0)
    assert steps == 1
    assert info["forced_admission"] is True
    assert total == pytest.approx(-info["jct_s"].sum(), rel=1e-12)


def test_a_forbidden_action_keeps_the_incumbent_and_says_so():
    env, other = gym.make(ID, **SMALL), gym.make(ID, **SMALL)
    _, info = env.reset(seed=0)
    other.reset(seed=0)
    rng = np.random.default_rng(0)
    forbidden = 0
    for _ in range(40):
        allowed = int(info["action_mask"].sum())
        bad = bool(rng.integers(2)) and allowed < 32
        action = allowed if bad else int(rng.integers(allowed))
        obs, reward, terminated, _, info = env.step(action)
        same, equal, _, _, plain = other.step(0 if bad else action)
        assert info.get("invalid_action", False) is bad
        assert "invalid_action" not in plain
        assert reward == equal
        assert all(np.array_equal(obs[key], same[key]) for key in obs)
        forbidden += bad
        if terminated:
            break
    assert forbidden > 5


@pytest.mark.parametrize("action", [-1, 32, 10**9, -(2**62)])
def test_indices_out_of_the_space_are_forbidden_too(action):
    env = gym.make(ID, **SMALL).unwrapped
    env.reset(seed=0)
    assert env.step(action)[4]["invalid_action"] is True


@pytest.mark.parametrize("kind", ["incumbent", "random", "preempt"])
@pytest.mark.parametrize("tier", ["all", "none"])
def test_every_sequence_of_actions_terminates(kind, tier):
    env = gym.make(ID, host_tier=tier, **SMALL)

    def preempt(*_):
        running = {r.id for r in env.unwrapped.snapshot().requests if r.status == "running"}
        kept = [len(running & set(decision.requests)) for decision in env.unwrapped.candidates()]
        return int(np.argmin(kept))

    choose = {"incumbent": lambda *_: 0, "random": random_index(3), "preempt": preempt}[kind]
    total, steps, info = run(env, choose)
    assert steps < 20000
    assert total == pytest.approx(-info["jct_s"].sum(), rel=1e-12)
    if kind == "incumbent":
        assert info["forced_admission"] is True


def test_after_the_end_nothing_happens():
    env = gym.make(ID, **SMALL)
    run(env, lambda *_: 0)
    obs, reward, terminated, _, info = env.step(0)
    assert reward == 0.0
    assert terminated
    assert info["action_mask"].any()
    assert obs in env.observation_space


@pytest.mark.parametrize("name", FIRST_NAMES)
@pytest.mark.parametrize("workload", ["dag-4", "metagpt-sop"])
def test_every_decision_of_a_policy_is_an_action(name, workload):
    env = gym.make(ID, workload=workload, num_tasks=6).unwrapped
    policy = make_policy(name)
    assert name in policy_names()
    policy.reset(seed=0)

    def choose(*_):
        decision = policy.decide(env.snapshot())
        action = env.encode(decision)
        assert set(env.candidates()[action].requests) == set(decision.requests)
        assert set(env.candidates()[action].prefixes) == set(decision.prefixes)
        return action

    _, steps, _ = run(env, choose)
    assert steps > 6


@pytest.mark.parametrize("name", ["fcfs", "spf", "topas"])
def test_the_environment_is_the_simulator(name):
    env = gym.make(ID, skip_forced=False, **SMALL)
    policy = make_policy(name)
    _, info = env.reset(options={"trace_seed": 7})
    terminated = False
    while not terminated:
        action = env.unwrapped.encode(policy.decide(env.unwrapped.snapshot()))
        _, _, terminated, _, info = env.step(action)
    workload = load_workload("dag-4", arrival_rate=0.1, num_tasks=8, seed=7)
    result = simulate(workload, make_policy(name), profile="qwen2.5-32b-a100-80g", seed=0)
    assert np.allclose(info["jct_s"], result.jct_s, rtol=1e-9)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_by_itself(copied):
    env = gym.make(ID, **SMALL).unwrapped
    env.reset(seed=0)
    for _ in range(10):
        env.step(1)
    twin = copied(env)
    rewards = [[one.step(1)[1] for _ in range(15)] for one in (env, twin)]
    assert rewards[0] == rewards[1]
    assert data_equivalence(env.reset(), twin.reset(), exact=True)


def test_candidates_are_feasible_and_the_first_is_the_incumbent():
    env = gym.make(ID, **SMALL).unwrapped
    _, info = env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(60):
        snapshot, listed = env.snapshot(), env.candidates()
        running = [r.id for r in snapshot.requests if r.status == "running"]
        assert list(listed[0].requests) == running
        for decision in listed:
            check_decision(snapshot, decision)
        assert len(set(listed)) == len(listed)
        _, _, terminated, _, info = env.step(int(rng.integers(info["action_mask"].sum())))
        if terminated:
            return


@pytest.mark.parametrize("name", ["gated-lpm", "hold-many", "hold-depth"])
def test_the_short_list_has_what_cheap_policies_do(name):
    """Every decision of the policy is one of the few candidates; the return is that of the simulator."""
    env = gym.make(ID, candidate_list="short", skip_forced=False, **SMALL).unwrapped
    policy = make_policy(name)
    widest = 0

    def choose(_, info):
        nonlocal widest
        snapshot, listed = env.snapshot(), env.candidates()
        assert len(listed) == info["action_mask"].sum() == len(set(listed))
        running = {r.id for r in snapshot.requests if r.status == "running"}
        for decision in listed:
            assert running <= set(decision.requests)
            check_decision(snapshot, decision)
        widest = max(widest, len(listed))
        return env.encode(policy.decide(snapshot))

    trace_seed = env.reset(seed=0)[1]["trace_seed"]
    total, _, _ = run(env, choose, seed=0)
    workload = load_workload("dag-4", arrival_rate=0.1, num_tasks=8, seed=trace_seed)
    assert total == pytest.approx(-simulate(workload, make_policy(name)).jct_s.sum(), rel=1e-9)
    assert 3 < widest < 20


def test_encode_refuses_what_is_no_candidate():
    env = gym.make(ID, **SMALL).unwrapped
    env.reset(seed=0)
    for decision, words in [
        (topas_env.Decision(("nobody",), ()), "nobody"),
        (topas_env.Decision((), ("r404",)), "r404"),
    ]:
        with pytest.raises(InputError, match=words):
            env.encode(decision)
