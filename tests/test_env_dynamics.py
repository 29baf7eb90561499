"""What the environments compute: returns, forced points, invalid actions, batches, the state mode."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import topas_env
from policy_cases import FIRST_NAMES
from topas_env import InputError, check_decision, load_workload, simulate
from topas_policies import make_policy, policy_names

ID = "TopasPrefixState-v0"
SMALL = {"workload": "dag-4", "arrival_rate": 0.1, "num_tasks": 8}


def run(env, choose, seed=0):
    """Plays one episode; returns its return, number of steps and last info."""
    obs, info = env.reset(seed=seed)
    total, steps, terminated = 0.0, 0, False
    while not terminated:
        obs, reward, terminated, truncated, info = env.step(choose(obs, info))
        assert not truncated
        assert np.isfinite(reward)
        total += reward
        steps += 1
    return total, steps, info


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


# -- batches ----------------------------------------------------------------------------------------------------------


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


# -- the state mode ---------------------------------------------------------------------------------------------------


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
