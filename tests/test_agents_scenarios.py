"""Scenarios of training: loads, budgets, and the workloads that are made for it."""

import numpy as np
import pytest

from topas_agents._config import Scenarios
from topas_agents._random_dag import SHAPES, random_dag
from topas_agents._scenarios import draw_scenario, rate_for_load, scenario_world
from topas_agents._session_like import session_like
from topas_env import InputError, load_profile, load_workload
from topas_env._services import profile_services
from topas_env._utilisation import utilisation
from topas_env._workload import workload_spec


def profile_budget() -> int:
    return load_profile("qwen2.5-32b-a100-80g").kv_budget_tokens


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


def test_some_engines_are_of_another_kind():
    rng = np.random.default_rng(1)
    mixed = Scenarios(workloads=("dag-4",), num_tasks=(4, 4), other_engines=0.5)
    engines = [draw_scenario(mixed, rng).profile for _ in range(30)]
    other = [engine for engine in engines if engine.step_s_per_request > 0.0]
    assert 5 < len(other) < 25
    base = load_profile("qwen2.5-32b-a100-80g")
    ratios = [engine.prefill_s_per_token / base.prefill_s_per_token for engine in other]
    assert 1 / 32 <= min(ratios) < 0.5
    assert 1.0 < max(ratios) <= 4.0
    assert all(16 <= engine.max_running_requests <= 2048 for engine in other)
    assert len({engine.max_running_requests for engine in other}) > 5
    for engine in other:
        assert engine.step_s_per_request <= 0.2 * engine.step_base_s
        assert engine.decode_s_per_token > engine.step_base_s


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
