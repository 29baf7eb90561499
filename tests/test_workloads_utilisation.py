"""Utilisation and the fit check, with numbers worked out by hand."""

import pytest

from topas_env import InputError, load_profile, load_workload
from topas_env._utilisation import check_fits, offered_rate, task_engine_s, utilisation


def content(arrivals: tuple[float, ...] = (0.0, 10.0, 20.0)) -> dict[str, object]:
    """Returns tasks of one call of agent A (prefix 20): suffix 8, output 4, asked for 4."""
    call = {"suffix_tokens": 8, "history_tokens": 0, "output_tokens": 4, "max_new_tokens": 4, "tool_s": 0.0}
    return {
        "version": 1,
        "name": "hand",
        "workflows": [
            {
                "name": "w",
                "agents": [{"name": "A", "prefix_tokens": 20}],
                "stages": [{"name": "s", "agent": "A", "after": []}],
            }
        ],
        "tasks": [
            {"id": f"t{k}", "workflow": "w", "arrival_s": at, "stages": [{"name": "s", "calls": [call]}]}
            for k, at in enumerate(arrivals)
        ],
    }


def test_by_hand() -> None:
    profile = load_profile("toy", step_s_per_kv_token=0.25, prefill_base_s=6.4)
    workload = load_workload(content())
    # toy: budget 100, 8 prompt tokens a second, chunks of 64, a step is 1 s + 0.25 s a token of context, 8 slots.
    # Batch: floor((100 - 20) / (8 + 4)) = 6. Prefill: 8 * (0.125 + 6.4 / 64) = 1.8 s. Three steps (the first token
    # comes from prefill), each 1 / 6 + 0.25 * (20 + 8 + 4 / 2) = 7.666... s: 23 s. So 24.8 s a task.
    assert task_engine_s(workload, profile) == pytest.approx([24.8, 24.8, 24.8])
    # Three tasks in 20 s: 2 / 20 = 0.1 tasks a second.
    assert offered_rate(workload) == pytest.approx(0.1)
    assert utilisation(workload, profile) == pytest.approx(2.48)


def test_history_needs_no_prefill() -> None:
    plain = content()
    call = {"suffix_tokens": 20, "history_tokens": 12, "output_tokens": 4, "max_new_tokens": 4, "tool_s": 0.0}
    plain["tasks"][0]["stages"][0]["calls"].append(call)  # type: ignore[index]
    seconds = task_engine_s(load_workload(plain), load_profile("toy"))
    # One call: 8 * 0.125 + 3 * 1 / 6 = 1.5 s. The second: (20 - 12) * 0.125 = 1 s and 3 * 1 / floor(80 / 24) = 1 s.
    assert seconds[1] == pytest.approx(1.5)
    assert seconds[0] == pytest.approx(1.5 + 2.0)


def test_slots_limit_the_batch() -> None:
    # With 2 slots a step of 1 s is shared by two: 1 + 3 / 2 = 2.5 s.
    seconds = task_engine_s(load_workload(content()), load_profile("toy", max_running_requests=2))
    assert seconds[0] == pytest.approx(2.5)


def test_tasks_at_once_have_no_rate() -> None:
    assert offered_rate(load_workload(content((5.0, 5.0)))) == float("inf")


def test_rate_of_a_poisson_process_counts() -> None:
    assert offered_rate(load_workload(content(), arrival_rate=0.25, num_tasks=9)) == 0.25


def test_fits_exactly_and_one_token_less() -> None:
    workload = load_workload(content())
    check_fits(workload, load_profile("toy", kv_budget_tokens=32))  # 20 + 8 + 4
    with pytest.raises(InputError) as caught:
        check_fits(workload, load_profile("toy", kv_budget_tokens=31))
    assert str(caught.value) == (
        "workload hand: $.tasks[0].stages[0].calls[0] (task 't0', stage 's') needs 32 tokens, more than "
        "kv_budget_tokens 31 of profile toy; 3 of 3 requests can never fit"
    )


def test_reservation_counts_where_it_is_larger_than_the_output() -> None:
    plain = content()
    plain["tasks"][2]["stages"][0]["calls"] = [  # type: ignore[index]
        {"suffix_tokens": 8, "history_tokens": 0, "output_tokens": 1, "max_new_tokens": 60, "tool_s": 0.0}
    ]
    workload = load_workload(plain)
    check_fits(workload, load_profile("toy", kv_budget_tokens=88))  # 20 + 8 + 60
    with pytest.raises(InputError, match=r"\$\.tasks\[2\].* needs 88 tokens, .* 87 "):
        check_fits(workload, load_profile("toy", kv_budget_tokens=87))
    check_fits(workload, load_profile("toy", kv_budget_tokens=58, reserve_ratio=0.5))  # 20 + 8 + 30
    check_fits(workload, load_profile("toy", kv_budget_tokens=38, reserve_cap_tokens=10))  # 20 + 8 + 10


def test_prefixes_follow_the_workflow_of_each_task() -> None:
    plain = content()
    plain["workflows"].append(  # type: ignore[attr-defined]
        {
            "name": "v",
            "agents": [{"name": "A", "prefix_tokens": 20}, {"name": "B", "prefix_tokens": 70}],
            "stages": [{"name": "x", "agent": "A", "after": []}, {"name": "y", "agent": "B", "after": ["x"]}],
        }
    )
    call = {"suffix_tokens": 1, "history_tokens": 0, "output_tokens": 1, "max_new_tokens": 1, "tool_s": 0.0}
    stages = [{"name": "y", "calls": [call]}, {"name": "x", "calls": [call]}]
    plain["tasks"].insert(1, {"id": "v", "workflow": "v", "arrival_s": 5.0, "stages": stages})  # type: ignore[attr-defined]
    workload = load_workload(plain)
    with pytest.raises(
        InputError, match=r"tasks\[1\]\.stages\[1\]\.calls\[0\] \(task 'v', stage 'y'\) needs 72 tokens"
    ):
        check_fits(workload, load_profile("toy", kv_budget_tokens=71))
    check_fits(workload, load_profile("toy", kv_budget_tokens=72))


def test_a_late_preempted_call_must_fit_again() -> None:
    plain = content()
    plain["tasks"][2]["stages"][0]["calls"] = [  # type: ignore[index]
        {"suffix_tokens": 8, "history_tokens": 0, "output_tokens": 41, "max_new_tokens": 60, "tool_s": 0.0}
    ]
    workload = load_workload(plain)
    # After 40 tokens half of the other 20 are reserved: 20 + 8 + 40 + 10, more than the 20 + 8 + 41 that it ends with.
    check_fits(workload, load_profile("toy", kv_budget_tokens=78, reserve_ratio=0.5))
    with pytest.raises(InputError, match=r"needs 78 tokens, .* 77 "):
        check_fits(workload, load_profile("toy", kv_budget_tokens=77, reserve_ratio=0.5))
