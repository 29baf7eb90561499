"""Teachers, and the labels that come of them."""

import numpy as np
import pytest

from agents_cases import TINY
from topas_agents._config import Imitation, Scenarios
from topas_agents._labels import Labels, collect, join, read_labels, write_labels
from topas_agents._policy import Look, idle
from topas_agents._scenarios import draw_scenario, scenario_world
from topas_agents._teachers import Hindsight, Imitated, Planned, make_teacher
from topas_env import InputError, simulate
from topas_env._core.choice import empty_choice
from topas_env._core.codes import CODES
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._core.run import proceed
from topas_env._core.world import POINT
from topas_policies import make_policy


def at_a_choice(seed: int = 0):
    """Returns a world at its first point with several candidates, and the look at it."""
    world = scenario_world(draw_scenario(TINY, np.random.default_rng(seed)))
    look = Look()
    state = proceed(world, empty_choice(len(world.agents), len(world.v.requests)), False)
    while look.at(world.v) < 4:
        assert state == POINT
        state = proceed(world, look.choice(look.at(world.v) - 1), True)
    return world, look, int(look.candidates.count[0])


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
    still = [idle(rows[:n])[0] for rows, n in zip(labels.rows, labels.n_candidates, strict=True)]
    assert (labels.known[:, 0] == ~np.array(still)).all()  # the incumbent, unless the engine would stand still
    assert 0 < sum(still) < len(still)
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
