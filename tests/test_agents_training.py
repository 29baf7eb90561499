"""Training: imitation, fine-tuning, evaluation, tuning; resume and errors."""

import json
import warnings

import msgspec
import numpy as np
import pytest
import torch

from agents_cases import TINY
from topas_agents import Architecture, LearnedPolicy, load_checkpoint
from topas_agents._config import Evaluation, FineTuning, Imitation, Scenarios, TrainConfig, config_from_file
from topas_agents._evaluate import evaluate, paired_interval
from topas_agents._imitate import fit
from topas_agents._labels import Labels
from topas_agents._network import Scorer
from topas_agents._scenarios import rate_for_load
from topas_agents._train import Reporter, train
from topas_env import InputError, load_profile, load_workload, simulate
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._workload import workload_spec
from topas_policies import SPF, make_policy

SHORT = Imitation(teacher="spf", rounds=2, points=30, per_episode=20, epochs=2, batch_size=16)
LITTLE = Evaluation(
    workloads=("dag-4",), profiles=("qwen2.5-32b-a100-80g",), host_tiers=("all",), loads=(0.5,), num_tasks=4,
    seeds=(0, 1), policies=("fcfs", "spf"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Numbers(Reporter):
    def __init__(self):
        super().__init__()
        self.values, self.told = {}, []

    def add(self, name, value, step):
        self.values[name] = value

    def progress(self, what, done, total):
        self.told.append((what, done, total))


def test_fit_finds_a_rule_that_is_in_the_features():
    """Regret is 0 for the candidate with the largest feature 11 and 1 for the others: learned from 300 points."""
    rng = np.random.default_rng(0)
    n, k = 300, 5
    rows = np.zeros((n, k, len(CANDIDATE_FEATURES)), np.float32)
    rows[:, :, 10:13] = rng.uniform(-2, 2, (n, k, 3))
    overall = np.zeros((n, len(GLOBAL_FEATURES)), np.float32)
    overall[:, GLOBAL_FEATURES.index("unfinished_tasks")] = 1.0
    regret = np.ones((n, k), np.float32)
    regret[np.arange(n), rows[:, :, 11].argmax(axis=1)] = 0.0
    labels = Labels(
        overall, rows, np.full(n, k), np.ones((n, k), bool), regret, np.zeros((n, k), np.int64), np.zeros(n, np.int64),
        np.array(["g"]),
    )  # fmt: skip
    scorer, numbers = Scorer(Architecture(16)), Numbers()
    steps = fit(scorer, labels, Imitation(epochs=30, batch_size=75, learning_rate=1e-2, holdout=0.25), rng, numbers, 7)
    assert steps == 7 + 30 * 3
    assert numbers.values["imitation/validation_regret"] < 0.25  # about 1 at random
    assert numbers.told[-1] == ("learning", 30, 30)


def config(folder, **changes) -> TrainConfig:
    plain = TrainConfig(out=str(folder), architecture=Architecture(8), scenarios=TINY, imitation=SHORT, evaluation=None)
    return msgspec.structs.replace(plain, **changes)


def test_training_resumes_and_is_the_same(tmp_path):
    whole = train(config(tmp_path / "a"), Numbers())
    assert whole.record.points == 60
    assert whole.record.steps > 0
    assert whole.record.data["config"]["scenarios"]["workloads"] == ["dag-4"]
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert {"labels-0.npz", "round-0.json", "learned.safetensors", "learned.json", "config.json"} <= set(files)
    # An interruption in the second round: its labels and what came after are gone.
    for name in ("labels-1.npz", "round-1.json", "round-1.safetensors", "learned.json", "learned.safetensors"):
        (tmp_path / "a" / name).unlink()
    numbers = Numbers()
    again = train(config(tmp_path / "a"), numbers)
    assert not any("round 0" in what for what, _, _ in numbers.told)
    assert any("round 1" in what for what, _, _ in numbers.told)
    assert all(np.array_equal(again.weights[name], whole.weights[name]) for name in whole.weights)
    with pytest.raises(InputError, match=r"config\.json: \$\.seed"):
        train(config(tmp_path / "a", seed=5), Numbers())


def test_training_from_a_checkpoint_with_evaluation(tmp_path):
    first = train(config(tmp_path / "a", imitation=msgspec.structs.replace(SHORT, rounds=1)), Numbers())
    start = str(tmp_path / "a" / "learned.json")
    numbers = Numbers()
    second = train(config(tmp_path / "b", imitation=None, start=start, evaluation=LITTLE), numbers)
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)
    (score,) = second.record.scores
    assert score.seeds == (0, 1)
    assert set(score.mean_jct_s) == {"fcfs", "spf", "learned"}
    assert score.held_out == ""
    assert numbers.told[-1] == ("evaluation", 1, 1)
    assert load_checkpoint(tmp_path / "b" / "learned").record.scores == second.record.scores
    with pytest.raises(InputError, match="nor start"):
        train(config(tmp_path / "c", imitation=msgspec.structs.replace(SHORT, rounds=0)), Numbers())


def test_evaluation_says_what_was_held_out_and_leaves_out_what_cannot_fit():

    class Mine(SPF):
        name = "mine"

    policy = Mine()
    profiles = ("qwen2.5-32b-a100-80g", "toy")
    scores = evaluate(policy, msgspec.structs.replace(LITTLE, profiles=profiles), Scenarios(workloads=("chain-3",)))
    (score,) = scores  # a request of dag-4 never fits the 100 tokens of `toy`
    assert score.held_out == "workload dag-4"
    assert score.mean_jct_s["mine"] == score.mean_jct_s["spf"]
    if score.best_baseline == "spf":
        assert (score.relative, score.relative_low, score.relative_high) == (0.0, 0.0, 0.0)


def test_paired_interval_by_hand():
    assert paired_interval(np.array([0.1, 0.1, 0.1])) == pytest.approx((0.1, 0.1, 0.1))
    mean, low, high = paired_interval(np.array([-0.2, 0.0, 0.2]))
    assert (mean, low, high) == (pytest.approx(0.0), pytest.approx(-0.2), pytest.approx(0.2))


def test_fine_tuning_moves_the_scorer_and_resumes(tmp_path):
    settings = FineTuning(steps=128, environments=2, copies=2, redraw=64, n_steps=16, batch_size=32, epochs=1)
    base = config(tmp_path / "p", imitation=msgspec.structs.replace(SHORT, rounds=1), fine_tuning=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard and Stable-Baselines3 warn about their own dependencies
        tuned = train(base, Numbers())
        before = load_checkpoint(tmp_path / "p" / "round-0").weights
        assert any(not np.array_equal(before[name], tuned.weights[name]) for name in before)
        assert np.array_equal(before["input.scale"], tuned.weights["input.scale"])
        assert tuned.record.method == "imitation, ppo"
        assert tuned.record.data["ppo_steps"] == 128
        more = train(msgspec.structs.replace(base, fine_tuning=settings), Numbers())
        assert all(np.array_equal(more.weights[name], tuned.weights[name]) for name in before)
        (tmp_path / "p" / "ppo.pt").write_bytes(b"no tensors")
        with pytest.raises(InputError, match=r"ppo\.pt: damaged"):
            train(base, Numbers())
    assert np.isfinite(simulate(load_workload("dag-4", num_tasks=3, seed=0), LearnedPolicy(tuned)).jct_s).all()


def test_config_files(tmp_path):
    from pathlib import Path

    shipped = config_from_file(Path(__file__).parents[1] / "examples" / "train.toml")
    assert "dag-10-wide" not in shipped.scenarios.workloads
    path = tmp_path / "c.toml"
    for text, words in (
        ("speed = 1", "speed"),
        ("[imitation]\nrounds = 'x'", "rounds"),
        ("[imitation]\npoints = 0", "$.imitation.points"),
        ("[imitation]\nexplore = 1.5", "$.imitation.explore"),
        ("[fine_tuning]\nlearning_rate = inf", "$.fine_tuning.learning_rate"),
        ("[scenarios]\nloads = [0.9, 0.5]", "$.scenarios.loads"),
        ("[scenarios]\nworkloads = []", "$.scenarios.workloads"),
        ("[scenarios]\nother_engines = 1.5", "$.scenarios.other_engines"),
        ("[evaluation]\nseeds = [999_999, 1_000_003]", "share seeds"),
        ("[architecture]\nhidden = 0", "$.architecture.hidden"),
        ("a = = 1", "c.toml"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            config_from_file(path)
        assert words in str(error.value)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        config_from_file(tmp_path / "absent.toml")
    (tmp_path / "c.json").write_text(json.dumps({"seed": 4}))
    assert config_from_file(tmp_path / "c.json").seed == 4


def test_tune_finds_no_worse_than_topas_and_goes_on(tmp_path):
    from topas_agents._tune import TuneSettings, tune
    from topas_policies._tuned import Tuned

    settings = TuneSettings(
        workloads=("dag-4",), host_tiers=("none",), loads=(0.8,), num_tasks=6, seeds=(1_000_000,), trials=3
    )
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's journal is marked experimental
        found = tune(settings, tmp_path / "j.journal", lambda done, total, best: told.append((done, total, best)))
        assert [done for done, _, _ in told] == [1, 2, 3]
        assert found.record["objective_found"] == min(best for _, _, best in told)
        assert found.record["objective_found"] <= found.record["objective_of_topas_parameters"]
        again = tune(settings, tmp_path / "j.journal", told.append)
    assert again == found
    assert len(told) == 3
    # The objective is what it says it is: mean JCT over the best baseline's on the one trace.
    profile, source = load_profile(settings.profile, host_tier="none"), workload_spec("dag-4")
    trace = source.draw(seed=1_000_000, num_tasks=6, arrival_rate=rate_for_load(source, profile, 0.8))
    best = min(
        simulate(trace, make_policy(name), profile=profile).mean_jct_s
        for name in ("fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm")
    )
    mine = simulate(trace, Tuned(found.parameters), profile=profile).mean_jct_s
    assert found.record["objective_found"] == pytest.approx(mine / best, rel=1e-9)
