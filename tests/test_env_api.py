"""The environments keep Gymnasium's contract."""

import doctest
import json
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import topas_env
from topas_env import InputError, load_profile
from topas_env.env import TopasPrefixStateEnv, TopasPrefixStateVectorEnv

ID = "TopasPrefixState-v0"
SMALL = {"workload": "dag-4", "arrival_rate": 0.1, "num_tasks": 6}


def play(env, seed, steps=60):
    """Returns what a fixed stream of actions sees: observations, rewards, ends."""
    rng = np.random.default_rng(1)
    obs, info = env.reset(seed=seed)
    seen = [(obs, 0.0, False)]
    for _ in range(steps):
        obs, reward, terminated, _, info = env.step(int(rng.integers(info["action_mask"].sum())))
        seen.append((obs, reward, terminated))
        if terminated:
            obs, info = env.reset()
    return seen


@pytest.mark.parametrize("mode", ["candidates", "state"])
@pytest.mark.parametrize("skip", [True, False])
def test_gymnasium_checker(mode, skip):
    env = gym.make(ID, action_mode=mode, skip_forced=skip, **SMALL)
    check_env(env.unwrapped)  # warnings are errors in this test suite


def test_sb3_checker_in_candidates_mode():
    sb3_check_env(gym.make(ID, **SMALL))


def test_sb3_checker_in_state_mode_minds_the_dict_action_alone():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb3_check_env(gym.make(ID, action_mode="state", **SMALL))
    assert [str(w.message)[:45] for w in caught] == ["The action space is not based off a numpy arr"]


def test_make_needs_no_import_of_ours_beforehand():
    assert gym.make(f"topas_env:{ID}", **SMALL).unwrapped.action_space.n == 32


@pytest.mark.parametrize("mode", ["candidates", "state"])
def test_spec_survives_json(mode, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"base": "toy", "name": "mine", "kv_budget_tokens": 60000}))
    arguments = {
        **SMALL,
        "profile": path,
        "action_mode": mode,
        "max_candidates": 16,
        "candidate_list": "short",
        "max_agents": 6,
        "max_requests": 20,
        "skip_forced": False,
        "reward_scale": 10.0,
        "host_tier": "none",
        "eviction": "eager",
        "profile_overrides": {"max_running_requests": 4},
        "decision_time_s": 0.001,
        "beta": 0.5,
        "rho": np.float64(0.25),
        "render_mode": "ansi",
    }
    env = gym.make(ID, **arguments)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs == env.spec.kwargs
    assert again.observation_space == env.observation_space
    first, second = env.reset(seed=3), again.reset(seed=3)
    assert data_equivalence(first, second, exact=True)
    assert again.render() == env.render()


def test_workload_and_profile_as_dicts_survive_json():
    workload = {
        "version": 1,
        "name": "two",
        "workflows": [
            {
                "name": "w",
                "agents": [{"name": "A", "prefix_tokens": 20}],
                "stages": [{"name": "s", "agent": "A", "after": []}],
            }
        ],
        "tasks": [
            {
                "id": f"t{k}",
                "workflow": "w",
                "arrival_s": 0.0,
                "stages": [
                    {
                        "name": "s",
                        "calls": [
                            {
                                "suffix_tokens": 8,
                                "history_tokens": 0,
                                "output_tokens": 4,
                                "max_new_tokens": 4,
                                "tool_s": 0.0,
                            }
                        ],
                    }
                ],
            }
            for k in range(2)
        ],
    }
    env = gym.make(ID, workload=workload, profile=load_profile("toy"))
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs["workload"] == workload
    assert data_equivalence(env.reset(seed=0), again.reset(seed=0), exact=True)


def test_one_seed_gives_the_same_bytes_and_another_does_not():
    one, two, other = (play(gym.make(ID, **SMALL), seed) for seed in (5, 5, 6))
    for (a, reward_a, end_a), (b, reward_b, end_b) in zip(one, two, strict=True):
        assert reward_a == reward_b
        assert end_a == end_b
        assert all(a[key].tobytes() == b[key].tobytes() for key in a)
    assert [x[1] for x in one] != [x[1] for x in other]


def test_actions_do_not_change_the_traces_of_later_episodes():
    traces = []
    for last in (False, True):
        env = gym.make(ID, **SMALL)
        _, info = env.reset(seed=2)
        seeds = [info["trace_seed"]]
        for _ in range(2):
            terminated = False
            while not terminated:
                action = int(info["action_mask"].sum()) - 1 if last else 0
                _, _, terminated, _, info = env.step(action)
            _, info = env.reset()
            seeds.append(info["trace_seed"])
        traces.append(seeds)
    assert traces[0] == traces[1]
    assert len(set(traces[0])) == 3


def test_trace_seed_asks_for_one_trace():
    env = gym.make(ID, **SMALL)
    first, info = env.reset(options={"trace_seed": 11})
    assert info["trace_seed"] == 11
    second, _ = gym.make(ID, **SMALL).reset(seed=9, options={"trace_seed": 11})
    assert data_equivalence(first, second, exact=True)
    with pytest.raises(InputError, match="trace_seed"):
        env.reset(options={"other": 1})


def test_observations_are_fresh_and_in_the_space():
    env = gym.make(ID, **SMALL).unwrapped
    before, info = env.reset(seed=0)
    kept = {key: value.copy() for key, value in before.items()}
    mask = info["action_mask"].copy()
    for _ in range(30):
        obs, _, terminated, _, later = env.step(1)
        assert obs in env.observation_space
        assert later["action_mask"].any()
        if terminated:
            break
    assert all(np.array_equal(before[key], kept[key]) for key in kept)
    assert np.array_equal(info["action_mask"], mask)


def test_action_masks_agree_with_observation_and_info():
    env = gym.make(ID, **SMALL)
    obs, info = env.reset(seed=0)
    masks = env.get_wrapper_attr("action_masks")()
    assert masks.dtype == np.bool_
    assert masks.shape == (32,)
    assert np.array_equal(masks, info["action_mask"])
    assert np.array_equal(masks, obs["action_mask"] > 0)
    assert int(masks.sum()) == len(env.unwrapped.candidates())


def test_record_episode_statistics():
    env = RecordEpisodeStatistics(gym.make(ID, **SMALL))
    env.reset(seed=0)
    terminated, steps = False, 0
    while not terminated:
        _, _, terminated, _, info = env.step(0)
        steps += 1
    assert info["episode"]["l"] == steps
    assert info["episode"]["r"] == pytest.approx(-info["jct_s"].sum())


def test_vector_env_records_statistics_through_the_vector_wrapper():
    envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(ID, num_envs=3, **SMALL))
    envs.reset(seed=0)
    for _ in range(400):
        _, _, terminations, _, info = envs.step(np.zeros(3, int))
        if terminations.any():
            break
    index = int(terminations.argmax())
    jct = info["final_info"]["jct_s"][index]
    assert info["episode"]["r"][index] == pytest.approx(-jct.sum())


def test_make_vec_gives_one_batched_env():
    envs = gym.make_vec(ID, num_envs=4, **SMALL)
    assert type(envs.unwrapped) is TopasPrefixStateVectorEnv
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    obs, info = envs.reset(seed=0)
    assert obs in envs.observation_space
    assert info["action_mask"].shape == (4, 32)
    json.loads(envs.spec.to_json())
    envs.close()
    envs.close()


def test_gymnasium_can_batch_the_single_env_too():
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode="sync", **SMALL)
    obs, _ = envs.reset(seed=0)
    ours = gym.make_vec(ID, num_envs=2, **SMALL)
    mine, _ = ours.reset(seed=0)
    assert all(np.array_equal(obs[key], mine[key]) for key in obs)


def test_close_twice():
    env = TopasPrefixStateEnv(**SMALL)
    env.reset(seed=0)
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workload": "dag-5"}, "dag-5"),
        ({"workload": 3}, "workload"),
        ({"profile": "no-such"}, "no-such"),
        ({"profile_overrides": {"kv_budget": 1}}, "kv_budget"),
        ({"host_tier": "some"}, "host_tier"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"num_tasks": 2.5}, "num_tasks"),
        ({"arrival_rate": -1.0}, "arrival_rate"),
        ({"max_candidates": 0}, "max_candidates"),
        ({"action_mode": "both"}, "action_mode"),
        ({"candidate_list": "long"}, "candidate_list"),
        ({"render_mode": "human"}, "render_mode"),
        ({"reward_scale": 0}, "reward_scale"),
        ({"decision_time_s": float("nan")}, "decision_time_s"),
        ({"beta": -0.1}, "beta"),
        ({"skip_forced": "no"}, "skip_forced"),
    ],
)
def test_bad_arguments_are_one_line_with_name_and_value(arguments, words):
    with pytest.raises(InputError) as caught:
        TopasPrefixStateEnv(**arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_request_that_can_never_fit_is_refused_at_reset():
    env = TopasPrefixStateEnv(**SMALL, profile_overrides={"kv_budget_tokens": 5000})
    with pytest.raises(InputError, match="5000"):
        env.reset(seed=0)


@pytest.mark.parametrize("action", [None, "1", 1.0, [0, 1], {"prefixes": 1}])
def test_actions_of_a_wrong_type_are_refused(action):
    env = TopasPrefixStateEnv(**SMALL)
    env.reset(seed=0)
    with pytest.raises(InputError, match="action"):
        env.step(action)


def test_ansi_shows_agents_and_queue():
    env = gym.make(ID, render_mode="ansi", **SMALL)
    env.reset(seed=0)
    text = env.render()
    for agent in env.unwrapped.snapshot().workflows[0].agents:
        assert f"{agent.name} |" in text
    assert "of 6 done" in text


def test_rgb_array_is_a_picture_that_changes():
    env = gym.make(ID, render_mode="rgb_array", **SMALL)
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (600, 960, 3)
    assert first.dtype == np.uint8
    for _ in range(15):
        env.step(1)
    assert not np.array_equal(first, env.render())


def test_recording_for_pictures_changes_nothing():
    plain, drawn = (play(gym.make(ID, render_mode=mode, **SMALL), 4) for mode in (None, "rgb_array"))
    assert [x[1] for x in plain] == [x[1] for x in drawn]


def test_render_without_a_mode_warns():
    env = gym.make(ID, **SMALL)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.unwrapped.render() is None


@pytest.mark.parametrize("name", ["_single", "_vector"])
def test_doctests(name):
    module = __import__(f"topas_env.env.{name}", fromlist=["x"])
    result = doctest.testmod(module)
    assert result.attempted > 5
    assert result.failed == 0


def test_docstring_has_gymnasiums_sections():
    text = TopasPrefixStateEnv.__doc__
    for section in (
        "Description", "Action Space", "Observation Space", "Rewards", "Starting State", "Episode End", "Arguments",
        "Version History",
    ):  # fmt: skip
        assert f"## {section}" in text


def test_files_stay_small():
    for path in Path(topas_env.__file__).parent.joinpath("env").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path
