"""The shipped workloads: what a seed fixes, shapes, and what the module texts say of them."""

import pickle

import numpy as np
import pytest

from topas_env import InputError, load_profile, load_workload, workload_names
from topas_env._core.trace import Trace
from topas_env._utilisation import check_fits, utilisation
from topas_env._workload import Workload, workload_spec

NAMES = ("chain-3", "dag-4", "dag-10-wide", "metagpt-sop", "metagpt-tl")
POOL = 18_560  # of the default profile


def same(a: Trace, b: Trace) -> bool:
    """Tells whether two traces have the same bytes."""
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(a, b, strict=True))


def stage_calls(workload: Workload) -> list[np.ndarray]:
    """Returns the calls of each stage row."""
    first = workload.trace.first_call
    return [workload.trace.calls[first[k] : first[k + 1]] for k in range(len(first) - 1)]


def test_names_are_those_of_the_contract() -> None:
    assert workload_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_seed_gives_the_same_bytes_and_another_seed_others(name: str) -> None:
    one, two = load_workload(name, seed=5), load_workload(name, seed=5)
    assert same(one.trace, two.trace)
    assert one.trace.arrival.tobytes() != load_workload(name, seed=6).trace.arrival.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_rate_changes_arrivals_by_a_factor_and_nothing_else(name: str) -> None:
    one, two = load_workload(name, seed=5, arrival_rate=0.1), load_workload(name, seed=5, arrival_rate=0.2)
    np.testing.assert_allclose(one.trace.arrival, 2 * two.trace.arrival, rtol=1e-12)
    assert one.trace.calls.tobytes() == two.trace.calls.tobytes()
    assert one.trace.first_call.tobytes() == two.trace.first_call.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_more_tasks_begin_with_the_same_ones(name: str) -> None:
    few, many = load_workload(name, num_tasks=7, seed=2), load_workload(name, num_tasks=60, seed=2)
    assert many.trace.arrival[:7].tobytes() == few.trace.arrival.tobytes()
    assert many.trace.calls[: len(few.trace.calls)].tobytes() == few.trace.calls.tobytes()
    assert list(many.task_ids[:7]) == list(few.task_ids)


@pytest.mark.parametrize("name", NAMES)
def test_traces_are_well_formed(name: str) -> None:
    workload = load_workload(name, num_tasks=500, seed=1)
    (workflow,) = workload.workflows
    workflow.validate()
    trace, calls = workload.trace, workload.trace.calls
    assert trace.arrival[0] > 0
    assert (np.diff(trace.arrival) > 0).all()
    assert list(trace.stage0) == [k * len(workflow.stages) for k in range(500)]
    assert trace.first_call[0] == 0
    assert trace.first_call[-1] == len(calls)
    assert (np.diff(trace.first_call) >= 1).all()
    assert sorted(workload.task_ids) == list(workload.task_ids)  # so ranks are positions
    assert list(trace.rank) == list(range(500))
    assert (calls["output"] >= 1).all()
    assert (calls["output"] <= calls["max_new"]).all()
    assert (calls["suffix"] >= 1).all()
    for rows in stage_calls(workload):
        assert rows["history"][0] == 0
        # A later call repeats the prompt and output of the one before; `max_new` is the stage's own limit.
        np.testing.assert_array_equal(rows["history"][1:], rows["suffix"][:-1] + rows["output"][:-1])
        assert (rows["history"] <= rows["suffix"]).all()
        assert len(set(rows["max_new"].tolist())) == 1
        assert rows["tool"][-1] == 0
        assert (rows["tool"] >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_max_new_is_one_number_a_stage_whatever_the_output(name: str) -> None:
    workload = load_workload(name, num_tasks=100, seed=1)
    stages = len(workload.workflows[0].stages)
    rows = stage_calls(workload)
    for position in range(stages):
        assert len({int(value) for row in rows[position::stages] for value in row["max_new"]}) == 1


def test_arrivals_are_poisson() -> None:
    gaps = np.diff(load_workload("chain-3", num_tasks=20_000, arrival_rate=0.5, seed=3).trace.arrival)
    # Mean 2 s; standard error 2 / sqrt(20,000) = 0.014. An exponential has standard deviation = mean.
    assert abs(gaps.mean() - 2.0) < 0.06
    assert abs(gaps.std() - 2.0) < 0.1


@pytest.mark.parametrize("name", ["chain-3", "dag-4", "dag-10-wide"])
def test_synthetic_lengths_are_fixed_and_two_prefixes_halve_the_batch(name: str) -> None:
    workload = load_workload(name, num_tasks=5)
    stages = len(workload.workflows[0].stages)
    table = workload.trace.calls.reshape(5, stages)
    assert (table == table[0]).all()
    prefixes = [agent.prefix_tokens for agent in workload.workflows[0].agents]
    one = [POOL - p for p in prefixes]
    two = [POOL - p - q for k, p in enumerate(prefixes) for q in prefixes[k + 1 :]]
    assert min(one) > 0
    assert min(two) > 0
    assert 0.40 <= np.mean(two) / np.mean(one) <= 0.55
    assert 3 * min(prefixes) > 0.9 * POOL  # a third leaves next to nothing


def test_shapes_grow_in_agents_and_in_agents_ready_together() -> None:
    wide = {}
    for name in ("chain-3", "dag-4", "dag-10-wide"):
        workflow = load_workload(name, num_tasks=1).workflows[0]
        depths = list(workflow.depths)
        wide[name] = (len(workflow.stages), len(workflow.agents), max(depths.count(d) for d in depths))
    assert wide == {"chain-3": (3, 3, 1), "dag-4": (4, 4, 2), "dag-10-wide": (10, 10, 8)}


def test_metagpt_roles_and_prefixes() -> None:
    sop = load_workload("metagpt-sop", num_tasks=1).workflows[0]
    assert [s.agent for s in sop.stages] == ["ProductManager", "Architect", "ProjectManager", "Engineer", "QaEngineer"]
    assert {a.name: a.prefix_tokens for a in sop.agents}["Engineer"] == 1250
    team = load_workload("metagpt-tl", num_tasks=1).workflows[0]
    assert [s.agent for s in team.stages[::2]] == ["TeamLeader"] * 5
    assert [s.agent for s in team.stages[1::2]] == ["ProductManager", "Architect", "ProjectManager", "Engineer2"]
    assert list(team.depths) == list(range(9))
    tokens = {a.name: a.prefix_tokens for a in team.agents}
    assert (tokens["TeamLeader"], tokens["Engineer2"]) == (3641, 8993)
    assert sum(tokens.values()) > POOL


def test_metagpt_lengths_vary_and_stages_have_rounds() -> None:
    for name in ("metagpt-sop", "metagpt-tl"):
        workload = load_workload(name, num_tasks=1000, seed=4)
        counts = np.diff(workload.trace.first_call)
        assert counts.max() > 2
        outputs = workload.trace.calls["output"]
        assert len(np.unique(outputs)) > 100
        assert (outputs == workload.trace.calls["max_new"]).mean() < 0.03
        assert workload.trace.calls["tool"].max() > 0


def test_metagpt_tl_completion_tokens_are_near_the_published_project() -> None:
    workload = load_workload("metagpt-tl", num_tasks=1000, seed=1)
    assert 0.75 * 6218 < workload.trace.calls["output"].sum() / 1000 < 1.25 * 6218


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ratio", [0.4, 1.0])
def test_own_rate_loads_the_default_profile(name: str, ratio: float) -> None:
    profile = load_profile("qwen2.5-32b-a100-80g", reserve_ratio=ratio)
    workload = load_workload(name, num_tasks=1000, seed=9)
    assert 0.6 <= utilisation(workload, profile) <= 0.95
    check_fits(workload, profile)


@pytest.mark.parametrize(("name", "rate"), [("chain-3", 0.15), ("metagpt-sop", 0.15), ("metagpt-tl", 0.0175)])
def test_default_rates_are_the_papers(name: str, rate: float) -> None:
    assert load_workload(name, num_tasks=1).arrival_rate == rate


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"arrival_rate": 0.0}, "arrival_rate: expected a positive number of tasks per second, got 0.0"),
        ({"arrival_rate": float("nan")}, "arrival_rate: expected a positive number of tasks per second, got nan"),
        ({"num_tasks": 0}, "num_tasks: expected an integer of at least 1, got 0"),
        ({"num_tasks": True}, "num_tasks: expected an integer of at least 1, got True"),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1"),
    ],
)
def test_bad_arguments(kwargs: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_workload("chain-3", **kwargs)  # type: ignore[arg-type]


def test_unknown_name() -> None:
    with pytest.raises(InputError, match="'chain-4' is neither a file nor one of chain-3, dag-4"):
        load_workload("chain-4")
    with pytest.raises(InputError, match="expected a name, a path or a dict, got int"):
        load_workload(3)  # type: ignore[arg-type]


def test_workloads_and_sources_can_be_pickled() -> None:
    spec = pickle.loads(pickle.dumps(workload_spec("metagpt-tl")))
    drawn = pickle.loads(pickle.dumps(spec.draw(seed=3, num_tasks=4)))
    assert same(drawn.trace, load_workload("metagpt-tl", seed=3, num_tasks=4).trace)
    assert list(drawn.task_ids) == ["t000000", "t000001", "t000002", "t000003"]
