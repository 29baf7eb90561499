"""Runs that are worked out by hand: the paper's figure 2, and the mechanism of its table I."""

from typing import Any

import pytest

from topas_env import load_profile, load_workload, simulate
from topas_env._profile import EngineProfile
from topas_env._result import SimulationResult
from topas_env._workload import Workload
from topas_policies import make_policy

CHAIN = "ABC"


def _call(suffix: int, output: int, **more: Any) -> dict[str, Any]:
    base = {
        "suffix_tokens": suffix,
        "history_tokens": 0,
        "output_tokens": output,
        "max_new_tokens": output,
        "tool_s": 0.0,
    }
    return base | more


def _figure_2(policy: str) -> SimulationResult:
    """Two tasks of A -> B -> C at time 0.

    One token of prefill takes 1/64 s and a decode step 1 s. A prefix of 64 tokens takes 1 s to set up. A request
    prefills 64 tokens (1 s, and its first token) and decodes 3 more: 4 s. It holds 64 + 4 tokens, so the budget of
    140 has room for one prefix and one request: 64 + 68 = 132, two prefixes would be 196.
    """
    workload = load_workload({
        "version": 1,
        "name": "figure-2",
        "workflows": [{
            "name": "chain",
            "agents": [{"name": name, "prefix_tokens": 64} for name in CHAIN],
            "stages": [
                {"name": name.lower(), "agent": name, "after": [CHAIN[i - 1].lower()] if i else []}
                for i, name in enumerate(CHAIN)
            ],
        }],
        "tasks": [
            {"id": f"t{k}", "workflow": "chain", "arrival_s": 0.0,
             "stages": [{"name": name.lower(), "calls": [_call(64, 4)]} for name in CHAIN]}
            for k in range(2)
        ],
    })  # fmt: skip
    profile = load_profile(
        "toy", kv_budget_tokens=140, prefill_s_per_token=1 / 64, chunk_tokens=1000, host_tier="none",
        max_running_requests=1,
    )  # fmt: skip
    return simulate(workload, make_policy(policy), profile=profile)


def test_figure_2_lpm_batches_a_prefix_and_delays_the_chain() -> None:
    # set-up A 0-1, t0.a 1-5, t1.a 5-9; set-up B 9-10, t0.b 10-14, t1.b 14-18; set-up C 18-19, t0.c 19-23, t1.c 23-27.
    result = _figure_2("lpm")
    assert result.jct_s.tolist() == [23.0, 27.0]
    assert result.requests["finish_s"].tolist() == [5.0, 14.0, 23.0, 9.0, 18.0, 27.0]
    assert result.prefix_moves == 3
    assert result.makespan_s == 27.0


def test_figure_2_srpt_finishes_a_chain_and_sets_up_twice() -> None:
    # set-up A 0-1, t0.a 1-5, set-up B 5-6, t0.b 6-10, set-up C 10-11, t0.c 11-15; the same for t1 from 15 to 30.
    result = _figure_2("srpt")
    assert result.jct_s.tolist() == [15.0, 30.0]
    assert result.requests["finish_s"].tolist() == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    assert result.prefix_moves == 6


def _table_1(order: str) -> SimulationResult:
    """40 requests of each of two agents under fcfs in the given order; prefix 0.375 of the budget."""
    workload = load_workload({
        "version": 1,
        "name": "table-1",
        "workflows": [
            {"name": name, "agents": [{"name": name, "prefix_tokens": 3750}],
             "stages": [{"name": "only", "agent": name, "after": []}]}
            for name in "AB"
        ],
        "tasks": [
            {"id": f"t{k:03d}", "workflow": name, "arrival_s": 0.0,
             "stages": [{"name": "only", "calls": [_call(100, 400)]}]}
            for k, name in enumerate(order)
        ],
    })  # fmt: skip
    profile = load_profile("qwen2.5-32b-a100-80g", kv_budget_tokens=10_000, reserve_ratio=1.0, reserve_cap_tokens=None)
    return simulate(workload, make_policy("fcfs"), profile=profile)


def test_table_1_alternating_agents_halve_the_batch() -> None:
    # A request holds 500 tokens. One prefix resident: (10000 - 3750) / 500 = 12 requests run together; both: 5.
    # Grouped runs in 8 waves: 12, 12 and 12 of A, 4 of A with 1 of B (3750 + 2000 + 3750 + 500 = 10000), 12, 12, 12 and
    # 3 of B; alternating in 16 waves of 5. The batches are 10 and 5 then, and a wave of 12 takes a bit longer than one
    # of 5, mostly for its prefill.
    grouped, alternating = _table_1("A" * 40 + "B" * 40), _table_1("AB" * 40)
    assert grouped.decisions["running"].max() <= 12
    assert alternating.mean_batch == pytest.approx(5.0)
    assert grouped.mean_batch == pytest.approx(10.0, rel=0.05)
    assert 1.7 <= grouped.mean_batch / alternating.mean_batch <= 2.4
    assert 1.6 <= alternating.makespan_s / grouped.makespan_s <= 2.0  # the paper: 1.8 to 1.9


def _one_agent(calls: list[dict[str, Any]], prefix: int = 10) -> Workload:
    return load_workload({
        "version": 1,
        "name": "one",
        "workflows": [{"name": "w", "agents": [{"name": "A", "prefix_tokens": prefix}],
                       "stages": [{"name": "s", "agent": "A", "after": []}]}],
        "tasks": [{"id": "t0", "workflow": "w", "arrival_s": 0.0, "stages": [{"name": "s", "calls": calls}]}],
    })  # fmt: skip


def _toy(**fields: Any) -> EngineProfile:
    return load_profile("toy", **fields)


@pytest.mark.parametrize(("eviction", "second"), [("lazy", 4), ("eager", 24)])
def test_history_that_is_still_cached_needs_no_prefill(eviction: str, second: int) -> None:
    # First call: prefix 8 and suffix 16 at 1/8 s a token: 3 s, then 3 steps: it ends at 6 and leaves 20 tokens.
    # A tool runs to 7. The second call repeats these 20 of its 24 tokens: 4 are left to prefill (0.5 s) where the leaf
    # is kept, 24 (3 s) where it is not; then one step.
    calls = [_call(16, 4, tool_s=1.0), _call(24, 2, history_tokens=20)]
    result = simulate(_one_agent(calls, prefix=8), make_policy("fcfs"), profile=_toy(eviction=eviction))
    assert result.requests["finish_s"].tolist() == [6.0, 7.0 + second / 8 + 1.0]
    assert result.requests["cached_tokens"].tolist() == [0, 24 - second]


def test_prefill_in_chunks_pays_the_base_for_each() -> None:
    # 10 + 90 tokens in chunks of 40: three batches of 1 s each, 100 / 8 s for the tokens; one output token.
    result = simulate(
        _one_agent([_call(90, 1)]), make_policy("fcfs"),
        profile=_toy(chunk_tokens=40, prefill_base_s=1.0, kv_budget_tokens=200),
    )  # fmt: skip
    assert result.jct_s.tolist() == [3.0 + 12.5]


def test_decision_time_stops_the_engine() -> None:
    # As without it (10 + 6 tokens at 1/8 s, then one step: 3 s), after one decision of 0.5 s.
    workload = _one_agent([_call(6, 2)])
    assert simulate(workload, make_policy("fcfs"), profile="toy").jct_s.tolist() == [3.0]
    assert simulate(workload, make_policy("fcfs"), profile="toy", decision_time_s=0.5).jct_s.tolist() == [3.5]
