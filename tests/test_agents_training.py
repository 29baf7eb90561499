"""Training: scenarios, teachers, labels, imitation, fine-tuning, evaluation, tuning; resume and errors."""

import json
import warnings

import msgspec
import numpy as np
import pytest
import torch

from topas_agents import Architecture, LearnedPolicy, load_checkpoint
from topas_agents._config import Evaluation, FineTuning, Imitation, Scenarios, TrainConfig, config_from_file
from topas_agents._evaluate import evaluate, paired_interval
from topas_agents._imitate import fit
from topas_agents._labels import Labels, collect, join, read_labels, write_labels
from topas_agents._network import Scorer
from topas_agents._policy import Look
from topas_agents._random_dag import SHAPES, random_dag
from topas_agents._scenarios import draw_scenario, rate_for_load, scenario_world
from topas_agents._session_like import session_like
from topas_agents._teachers import Hindsight, Imitated, Planned, make_teacher
from topas_agents._train import Reporter, train
from topas_env import InputError, load_profile, load_workload, simulate
from topas_env._core.choice import empty_choice
from topas_env._core.codes import CODES
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._core.run import proceed
from topas_env._core.world import POINT
from topas_env._services import profile_services
from topas_env._utilisation import utilisation
from topas_env._workload import workload_spec
from topas_policies import SPF, make_policy

TINY = Scenarios(workloads=("dag-4",), num_tasks=(4, 6), loads=(0.7, 0.9))
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


def at_a_choice(seed: int = 0):
    """Returns a world at its first point with several candidates, and the look at it."""
    world = scenario_world(draw_scenario(TINY, np.random.default_rng(seed)))
    look = Look()
    state = proceed(world, empty_choice(len(world.agents), len(world.v.requests)), False)
    while look.at(world.v) < 4:
        assert state == POINT
        state = proceed(world, look.choice(look.at(world.v) - 1), True)
    return world, look, int(look.candidates.count[0])


def test_load_is_the_utilisation_that_was_asked_for():
    profile, source = load_profile("qwen2.5-32b-a100-80g"), workload_spec("dag-4")
    drawn = load_workload("dag-4", num_tasks=400, seed=3, arrival_rate=rate_for_load(source, profile, 0.8))
    assert utilisation(drawn, profile) == pytest.approx(0.8, rel=0.05)


def test_scenarios_stay_in_their_ranges():
    wide = Scenarios(workloads=("chain-3", "dag-10-wide"), kv_budget_scale=(0.1, 1.5), seeds=(50, 60))
    rng = np.random.default_rng(0)
    drawn = [draw_scenario(wide, rng) for _ in range(40)]
    assert {s.given for s in drawn} == {"chain-3", "dag-10-wide"}
    assert {s.profile.host_tier for s in drawn} == {"all", "none"}
    assert all(50 <= s.seed <= 60 and 20 <= s.num_tasks <= 60 for s in drawn)
    base = load_profile("qwen2.5-32b-a100-80g")
    for s in drawn:
        assert 0.8 <= s.profile.prefill_s_per_token / base.prefill_s_per_token <= 1.25
        assert s.profile.decode_s_per_token / base.decode_s_per_token == pytest.approx(
            s.profile.step_base_s / base.step_base_s
        )
        scenario_world(s)  # a budget that is too small was raised to what the largest request needs
    assert len({s.profile.kv_budget_tokens for s in drawn}) > 10


def test_a_budget_that_the_profiled_tasks_outgrow_is_refused_and_scenarios_avoid_it():
    """Found by a training run that never came back: the loop went on where a request did not fit."""
    spec = workload_spec("metagpt-tl")
    profile = load_profile("qwen2.5-32b-a100-80g", kv_budget_tokens=9_500)
    with pytest.raises(InputError, match=r"metagpt-tl: .*outgrows kv_budget_tokens = 9500"):
        profile_services(spec, profile)
    small = Scenarios(workloads=("metagpt-tl",), kv_budget_scale=(0.3, 0.3), num_tasks=(4, 4))
    drawn = draw_scenario(small, np.random.default_rng(3))
    scenario_world(drawn)
    assert drawn.profile.kv_budget_tokens < 0.9 * profile_budget()


def test_session_like_workloads_are_like_sessions():
    """Each population is the same every time; histories grow, waits are long, most sessions have their own agent."""
    for number in range(3):
        workload = session_like(number)
        again = session_like.__wrapped__(number)
        assert all((a == b).all() for a, b in zip(workload.trace, again.trace, strict=True))
        calls = workload.trace.calls
        assert (calls["history"] <= calls["suffix"]).all()
        assert (calls["tool"][workload.trace.first_call[1:] - 1] == 0.0).all()
        assert np.median(calls["tool"][calls["tool"] > 0]) > 2.0
        assert calls["suffix"].mean() > 10_000
        assert 25 <= len(workload.workflows) < 45
        assert len({a.name for w in workload.workflows for a in w.agents}) >= len(workload.workflows)
    drawn = draw_scenario(Scenarios(workloads=("session-like",)), np.random.default_rng(0))
    assert drawn.profile.name.startswith("qwen2.5-7b")
    scenario_world(drawn)


def test_random_dags_have_any_shape():
    shapes = set()
    for number in range(SHAPES):
        workflow = random_dag(number).workflows[0]
        assert random_dag.__wrapped__(number).workflows[0] == workflow
        depths = workflow.depths
        shapes.add((len(depths), max(depths)))
        assert all(depth == 0 or stage.after for stage, depth in zip(workflow.stages, depths, strict=True))
    assert len(shapes) > 12
    drawn = draw_scenario(Scenarios(workloads=("random-dag",)), np.random.default_rng(0))
    world = scenario_world(drawn)
    assert np.isfinite(world.v.stages["profile"]).all()


def profile_budget() -> int:
    return load_profile("qwen2.5-32b-a100-80g").kv_budget_tokens


def test_hindsight_is_what_the_simulator_says_in_the_end():
    """With one base policy and the candidate that this policy chooses, the cost is the whole run's sum of JCTs."""
    scenario = draw_scenario(TINY, np.random.default_rng(1))
    expected = simulate(scenario.workload(), make_policy("spf"), profile=scenario.profile).jct_s.sum()
    world, look = scenario_world(scenario), Look()
    state = proceed(world, empty_choice(len(world.agents), len(world.v.requests)), False)
    teacher = Hindsight(("spf",))
    compared = 0
    while state == POINT and compared < 5:
        n = look.at(world.v)
        own = int(np.flatnonzero((look.candidates.info["origin"][:n] >> CODES["spf"]) & 1)[0])
        if n > 1:
            before = [array.tobytes() for array in (world.clock, *world.v, world.requests)]
            costs = teacher.costs(world, [look.choice(k) for k in range(n)])
            assert costs[own] == pytest.approx(expected, rel=1e-9)
            assert np.ptp(costs) > 0 or n < 3
            assert [array.tobytes() for array in (world.clock, *world.v, world.requests)] == before
            compared += 1
        state = proceed(world, look.choice(own), True)
    assert compared == 5


def test_planned_costs_are_hindsight_where_nothing_is_hidden():
    """After the last arrival, with lengths that are always the same, plays of the true engine are what will happen."""
    fixed = Scenarios(workloads=("dag-4",), num_tasks=(12, 12), loads=(0.9, 0.9), kv_budget_scale=(1.0, 1.0))
    world, look = scenario_world(draw_scenario(fixed, np.random.default_rng(4))), Look(32, "short")
    state = proceed(world, empty_choice(len(world.agents), len(world.v.requests)), False)
    hindsight, planned = Hindsight(("hold-depth",)), Planned(("hold-depth",), scenarios=2)
    compared = 0
    while state == POINT:
        n = look.at(world.v)
        if n > 1 and world.clock["next_arrival"][0] == 12:
            choices = [look.choice(k) for k in range(n)]
            before = [array.tobytes() for array in (world.clock, *world.v, world.requests)]
            true, guess = (teacher.costs(world, choices) for teacher in (hindsight, planned))
            assert [array.tobytes() for array in (world.clock, *world.v, world.requests)] == before
            np.testing.assert_allclose(guess - guess.min(), true - true.min(), atol=0.02 * guess.min())
            compared += np.ptp(true) > 0.08 * guess.min()
        state = proceed(world, look.choice(n - 1), True)
    assert compared > 3  # points at which the choice matters more than the tolerance


def test_a_policy_as_teacher():
    world, look, n = at_a_choice()
    costs = make_teacher("spf", {}).costs(world, [look.choice(k) for k in range(n)])
    origin = (look.candidates.info["origin"][:n] >> CODES["spf"]) & 1
    np.testing.assert_array_equal(costs, 1.0 - origin)
    view = make_teacher("tuned", {}).costs(world, [look.choice(k) for k in range(n)])
    assert view.sum() == n - 1
    for name, options, word in (
        ("hindsight", {"bases": ["kvflow"]}, "kvflow"),
        ("hindsight", {"bases": []}, "empty"),
        ("hindsight", {"depth": 1}, "depth"),
        ("planned", {"scenarios": 0}, "scenarios"),
        ("planned", {"bases": ["kvflow"]}, "kvflow"),
        ("nobody", {}, "nobody"),
    ):
        with pytest.raises(InputError, match=word):
            make_teacher(name, options)

    class Blind:
        name = "blind"

    with pytest.raises(InputError, match="blind"):
        Imitated(Blind())


def labels_of(n: int = 40, seed: int = 0) -> Labels:
    teacher = make_teacher("hindsight", {"bases": ["spf"]})
    settings = Imitation(points=n, per_episode=40, candidates=14)
    return collect(TINY, settings, teacher, None, np.random.default_rng(seed))


def test_labels(tmp_path):
    labels = labels_of()
    assert len(labels.n_candidates) == 40
    present = np.arange(labels.rows.shape[1]) < labels.n_candidates[:, None]
    assert (labels.rows[present][:, 0] == 1.0).all()
    assert (labels.rows[~present] == 0.0).all()
    assert not labels.known[~present].any()
    assert labels.known[:, 0].all()  # the incumbent
    assert (labels.known | (labels.origin == 0)).all()  # what a compiled policy would choose
    assert labels.known.sum(axis=1).max() <= 14
    assert (np.where(labels.known, labels.regret, np.inf).min(axis=1) == 0.0).all()
    write_labels(tmp_path / "l.npz", labels)
    again = read_labels(tmp_path / "l.npz")
    assert all(np.array_equal(a, b) for a, b in zip(labels, again, strict=True))
    both = join([labels, again])
    assert len(both.n_candidates) == 80
    assert np.array_equal(both.group[:40], both.group[40:])
    raw = (tmp_path / "l.npz").read_bytes()
    for damaged in (raw[: len(raw) // 2], b"", b"PK" + raw[4:], raw[:500] + b"xx" + raw[502:]):
        (tmp_path / "l.npz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"l\.npz"):
            read_labels(tmp_path / "l.npz")


def test_calm_labels_by_hand():
    """The cheapest of three preempts: without it regrets 2 and 5 are 0 and 3; a point with one left is left out."""
    rows = np.zeros((2, 3, len(CANDIDATE_FEATURES)), np.float32)
    rows[:, 1, CANDIDATE_FEATURES.index("preempted")] = 1.0
    rows[1, 2, CANDIDATE_FEATURES.index("preempted")] = 1.0
    labels = Labels(
        np.zeros((2, len(GLOBAL_FEATURES)), np.float32), rows, np.full(2, 3), np.ones((2, 3), bool),
        np.array([[2, 0, 5], [2, 0, 5]], np.float32), np.zeros((2, 3), np.int64), np.array([0, 0]), np.array(["a"]),
    )  # fmt: skip
    calm = labels.calm()
    np.testing.assert_array_equal(calm.regret, [[0, 0, 3]])
    np.testing.assert_array_equal(calm.known, [[True, False, True]])


def test_units_keep_the_best_and_level_the_kinds():
    """Two kinds of points, the second with regrets a thousand times as large: in units they weigh the same."""
    overall = np.zeros((4, len(GLOBAL_FEATURES)), np.float32)
    regret = np.array([[0, 1], [3, 0], [0, 1000], [3000, 0]], np.float32)
    labels = Labels(
        overall, np.zeros((4, 2, 1), np.float32), np.full(4, 2), np.ones((4, 2), bool), regret,
        np.zeros((4, 2), np.int64), np.array([0, 0, 1, 1]), np.array(["a", "b"]),
    )  # fmt: skip
    # Mean regret of a random candidate: 0.5 and 1.5, their mean 1; then 500 and 1500, their mean 1000.
    np.testing.assert_allclose(labels.units(), [[0, 1], [3, 0], [0, 1], [3, 0]])


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
        train(config(tmp_path / "c", imitation=None), Numbers())


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
        ("[imitation]\nrounds = 0", "$.imitation.rounds"),
        ("[imitation]\nexplore = 1.5", "$.imitation.explore"),
        ("[fine_tuning]\nlearning_rate = inf", "$.fine_tuning.learning_rate"),
        ("[scenarios]\nloads = [0.9, 0.5]", "$.scenarios.loads"),
        ("[scenarios]\nworkloads = []", "$.scenarios.workloads"),
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
