"""SGLang alone in the simulator: its own admission pass, and a reservation that moves as its new-token ratio does."""

from typing import Any

import msgspec
import numpy as np
import pytest

from simulator_cases import carry_out, tick
from topas_env import InputError, Snapshot, Workload, load_profile, load_workload, simulate
from topas_env._core.choice import empty_choice
from topas_env._core.world import END, POINT
from topas_env._new_world import new_world
from topas_env._result import SimulationResult
from topas_policies import FCFS, make_policy

PREFIX, SUFFIX = 100, 10
TOKEN_S, STEP_S = 1e-4, 0.004
ENGINE: dict[str, Any] = {
    "prefill_base_s": 0.01,
    "prefill_s_per_token": TOKEN_S,
    "chunk_tokens": 50_000,
    "step_base_s": STEP_S,
    "step_s_per_request": 0.0,
    "step_s_per_kv_token": 0.0,
    "host_tier": "none",
    "kv_budget_tokens": 100_000,
    "reserve_ratio": 0.0,
}


def serve(policy: str, requests: list[tuple[str, float, int, int]], **engine: Any) -> SimulationResult:
    """One call for each (agent, arrival, output, max_new), all with prompts of the same lengths."""
    return simulate(draw(requests), make_policy(policy), profile=load_profile("toy", **{**ENGINE, **engine}))


def draw(requests: list[tuple[str, float, int, int]]) -> Workload:
    flows = [
        {
            "name": name,
            "agents": [{"name": name, "prefix_tokens": PREFIX}],
            "stages": [{"name": "s", "agent": name, "after": []}],
        }
        for name in ("A", "B")
    ]
    rows = [
        {
            "id": f"t{k}",
            "workflow": agent,
            "arrival_s": at,
            "stages": [{"name": "s", "calls": [_call(out, most)]}],
        }
        for k, (agent, at, out, most) in enumerate(requests)
    ]
    return load_workload({"version": 1, "name": "few", "workflows": flows, "tasks": rows})


def _call(output: int, most: int) -> dict[str, Any]:
    lengths = {"suffix_tokens": SUFFIX, "history_tokens": 0, "output_tokens": output, "max_new_tokens": most}
    return {**lengths, "tool_s": 0.0}


def prefilled(result: SimulationResult) -> int:
    return int(result.world.clock[0]["prefilled"])


def admitted_s(result: SimulationResult) -> list[float]:
    return list(result.requests["admitted_s"])


def test_requests_admitted_together_each_compute_a_missing_prefix() -> None:
    both = [("A", 0.0, 3, 3), ("A", 0.0, 3, 3)]
    chosen, alone = serve("fcfs", both), serve("sglang-fcfs", both)
    assert (prefilled(chosen), prefilled(alone)) == (PREFIX + 2 * SUFFIX, 2 * (PREFIX + SUFFIX))
    assert alone.mean_jct_s == pytest.approx(chosen.mean_jct_s + PREFIX * TOKEN_S, rel=1e-9)


def test_with_overlap_the_next_batch_computes_it_once_more() -> None:
    late = [("A", 0.0, 30, 30), ("A", 0.001, 3, 3)]  # comes while the first one's prefill runs
    assert prefilled(serve("sglang-fcfs", late)) == PREFIX + 2 * SUFFIX
    assert prefilled(serve("sglang-fcfs", late, overlap=True)) == 2 * (PREFIX + SUFFIX)
    later = [("A", 0.0, 30, 30), ("A", 0.03, 3, 3)]
    assert prefilled(serve("sglang-fcfs", later, overlap=True)) == PREFIX + 2 * SUFFIX


def test_a_copy_takes_memory_only_until_its_prefill_is_done() -> None:
    both = [("A", 0.0, 3, 3), ("A", 0.0, 3, 3)]
    fits_once = PREFIX + 2 * (SUFFIX + 3) + 1
    apart = serve("sglang-fcfs", both, kv_budget_tokens=fits_once)
    assert prefilled(apart) == PREFIX + 2 * SUFFIX
    result = serve("sglang-fcfs", both, kv_budget_tokens=fits_once + PREFIX)
    assert prefilled(result) == 2 * (PREFIX + SUFFIX)
    assert int(result.world.clock[0]["used"]) == PREFIX  # nothing of them is left but the prefix


def test_no_pass_before_a_request_has_left() -> None:
    """B finds no room beside A; a second request of A, which lpm would take first, comes after that pass."""
    requests = [("A", 0.0, 40, 40), ("B", 0.02, 3, 3), ("A", 0.05, 3, 3)]
    engine = {"reserve_ratio": 1.0, "kv_budget_tokens": 2 * PREFIX + SUFFIX + 40}  # all of A, and the prefix of B
    chosen = admitted_s(serve("lpm", requests, **engine))
    result = serve("sglang-lpm", requests, **engine)
    alone = admitted_s(result)
    first_left = float(result.requests["finish_s"][0])
    assert chosen[2] < 0.07
    assert alone[2] == pytest.approx(first_left)


def test_a_new_request_reserves_all_that_it_asked_for() -> None:
    both = [("A", 0.0, 30, 300), ("A", 0.03, 3, 300)]
    room = PREFIX + 2 * SUFFIX + 300
    chosen, alone = (serve(name, both, kv_budget_tokens=room) for name in ("fcfs", "sglang-fcfs"))
    assert admitted_s(chosen)[1] < admitted_s(alone)[1] == pytest.approx(float(alone.requests["finish_s"][0]))


def test_lpm_puts_requests_of_one_missing_prefix_last_but_one() -> None:
    requests = [("A", 0.0, 3, 3), ("A", 0.0, 3, 3), ("B", 0.0, 3, 3)]
    room = 2 * (PREFIX + SUFFIX + 4)
    at_once = {
        name: [at == 0.0 for at in admitted_s(serve(name, requests, kv_budget_tokens=room))]
        for name in ("sglang-fcfs", "sglang-lpm")
    }
    assert at_once == {"sglang-fcfs": [True, True, False], "sglang-lpm": [True, False, True]}


def test_a_pass_ends_with_the_tokens_of_its_batch() -> None:
    many = [("A", 0.0, 30, 30)] * 6
    result = serve("sglang-fcfs", many, chunk_tokens=PREFIX + SUFFIX)
    assert prefilled(result) == PREFIX + 6 * SUFFIX  # the first one alone fills the first batch
    assert admitted_s(result) == pytest.approx([0.0, *[0.021] * 5])


def test_a_retraction_is_followed_by_a_pass() -> None:
    """Two requests grow until one loses its place; who waits fits into what it leaves."""
    requests = [("A", 0.0, 90, 100), ("A", 0.0, 90, 100), ("A", 0.27, 2, 20)]
    room = PREFIX + 2 * SUFFIX + 130
    result = serve("sglang-fcfs", requests, kv_budget_tokens=room, reserve_decay_steps=10, reserve_ratio=0.1)
    assert int(result.world.clock[0]["retractions"]) == 1
    assert admitted_s(result)[2] > 0.28
    assert admitted_s(result)[2] < float(result.requests["finish_s"][:2].min())


def test_sglang_is_not_charged_for_decisions() -> None:
    workload = load_workload("dag-4", num_tasks=20, arrival_rate=0.1, seed=3)
    free = simulate(workload, make_policy("sglang-fcfs")).jct_s
    assert np.array_equal(free, simulate(workload, make_policy("sglang-fcfs"), decision_time_s=0.5).jct_s)
    assert np.array_equal(free, simulate(workload, make_policy("sglang-fcfs"), decision_time_s="measured").jct_s)


def test_an_order_that_sglang_does_not_have_is_refused() -> None:
    policy = make_policy("fcfs")
    policy.sglang_order = "lof"
    with pytest.raises(InputError, match=r"fcfs.*sglang_order.*'lof'"):
        simulate(load_workload("chain-3", num_tasks=1), policy)


def test_behind_the_checks_one_request_computes_a_missing_prefix_and_the_others_follow() -> None:
    both = [("A", 0.0, 30, 30), ("A", 0.0, 30, 30)]
    first_batch = 0.01 + (PREFIX + SUFFIX) * TOKEN_S
    for overlap, later in ((False, first_batch), (True, first_batch + STEP_S)):
        result = serve("fcfs", both, admission="sglang", overlap=overlap)
        assert prefilled(result) == PREFIX + 2 * SUFFIX
        assert int(result.world.clock[0]["batches"]) == 2
        assert admitted_s(result) == pytest.approx([0.0, later])
        assert len(result.decisions) == 1


def test_behind_the_checks_a_new_request_reserves_all_that_it_asked_for() -> None:
    both = [("A", 0.0, 30, 300), ("A", 0.03, 3, 300)]
    result = serve("fcfs", both, admission="sglang", kv_budget_tokens=PREFIX + 2 * SUFFIX + 300)
    assert admitted_s(result)[1] == pytest.approx(float(result.requests["finish_s"][0]))


class EveryPrefix(FCFS):
    """fcfs that asks for all prefixes."""

    def decide(self, snapshot: Snapshot) -> Any:
        return msgspec.structs.replace(super().decide(snapshot), prefixes=("A", "B"))


def test_behind_the_checks_no_prefix_comes_without_a_request() -> None:
    engine = load_profile("toy", **ENGINE)
    requests = [("A", 0.0, 30, 30), ("B", 0.05, 3, 3)]
    for admission, tokens in (("chosen", 2 * PREFIX), ("sglang", PREFIX)):
        profile = load_profile(engine, admission=admission)
        assert simulate(draw(requests), EveryPrefix(), profile=profile).decisions["resident_tokens"][0] == tokens


@pytest.mark.parametrize("name", ["sglang-fcfs", "sglang-lpm"])
def test_the_compiled_run_is_the_plain_one(name: str) -> None:
    workload = load_workload("dag-4", num_tasks=60, arrival_rate=0.1, seed=3)
    plain = simulate(workload, make_policy(name), compiled=False)
    assert np.array_equal(simulate(workload, make_policy(name)).jct_s, plain.jct_s)
    assert plain.mean_jct_s != simulate(workload, make_policy(name.removeprefix("sglang-"))).mean_jct_s


class Noting(FCFS):
    """fcfs that writes down what is reserved."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def decide(self, snapshot: Snapshot) -> Any:
        self.seen.append((snapshot.time_s, snapshot.engine.reserve_ratio))
        return super().decide(snapshot)


def test_the_reservation_falls_with_decode_steps_and_is_back_after_an_idle_moment() -> None:
    requests = [("A", 0.0, 50, 50), ("A", 0.1, 3, 3), ("A", 9.0, 3, 3)]
    moving = {"reserve_ratio": 0.7, "reserve_min_ratio": 0.1, "reserve_decay_steps": 100}
    engine = load_profile("toy", **{**ENGINE, **moving})
    policy = Noting()
    simulate(draw(requests), policy, profile=engine)
    (_, first), (second_s, second), (_, third) = policy.seen
    steps = round((second_s - 0.01 - TOKEN_S * (PREFIX + SUFFIX)) / STEP_S)
    assert 10 < steps < 50
    assert second == pytest.approx(0.7 - 0.006 * steps)
    assert first == third == 0.7
    policy = Noting()
    simulate(draw([("A", 0.0, 400, 400), ("A", 1.0, 3, 3)]), policy, profile=engine)
    assert policy.seen[1][1] == pytest.approx(0.1)


def test_a_ratio_that_does_not_fall_still_rises() -> None:
    requests = [("A", 0.0, 90, 100), ("A", 0.0, 90, 100)]
    fixed = {"reserve_ratio": 0.2, "reserve_min_ratio": 0.2, "reserve_decay_steps": 600}
    result = serve("fcfs", requests, kv_budget_tokens=PREFIX + 2 * SUFFIX + 120, **fixed)
    assert int(result.world.clock[0]["retractions"]) == 1
    assert float(result.world.v.head[0]["reserve_ratio"]) > 0.5


def test_a_retraction_makes_it_what_the_others_have_used() -> None:
    requests = [("A", 0.0, 90, 100), ("A", 0.0, 90, 100)]
    tight = {"reserve_ratio": 0.2, "reserve_decay_steps": 1000, "kv_budget_tokens": PREFIX + 2 * SUFFIX + 120}
    engine = load_profile("toy", **{**ENGINE, **tight})
    w = new_world(draw(requests), engine)
    state, ratios = tick(w), []
    while state != END:
        before = int(w.clock[0]["retractions"]), int(w.clock[0]["steps"]), int(w.v.requests["generated"].max())
        if state == POINT:
            choice = empty_choice(len(w.agents), len(w.v.requests))
            choice.info["n_admitted"] = n = int(w.v.head[0]["n_ready"])
            choice.rows[:n] = w.v.ready[:n]
            choice.prefixes[0] = 1
            carry_out(w, choice)
        state = tick(w)
        if int(w.clock[0]["retractions"]) > before[0]:
            steps = int(w.clock[0]["steps"]) - before[1]
            ratios.append((float(w.v.head[0]["reserve_ratio"]), (before[2] + 20) / 101 - 0.2 / 1000 * steps))
    assert ratios
    for found, expected in ratios:
        assert found == pytest.approx(expected)


def test_profiles_say_when_it_moves() -> None:
    engine = load_profile("toy", reserve_ratio=0.7, reserve_min_ratio=0.098, reserve_decay_steps=600)
    assert load_profile(engine.to_dict()) == engine
    assert not {"reserve_min_ratio", "reserve_decay_steps"} & load_profile("toy").to_dict().keys()
    with pytest.raises(InputError, match=r"\$.reserve_min_ratio.*at most reserve_ratio.*0.8"):
        load_profile("toy", reserve_ratio=0.7, reserve_min_ratio=0.8, reserve_decay_steps=600)
    with pytest.raises(InputError, match=r"\$.reserve_min_ratio.*needs reserve_decay_steps"):
        load_profile("toy", reserve_min_ratio=0.05)
    assert "admission" not in load_profile("toy").to_dict()
    with pytest.raises(InputError, match=r"\$.admission.*none"):
        load_profile("toy", admission="none")
    with pytest.raises(InputError, match=r"\$.reserve_decay_steps.*-1"):
        load_profile("toy", reserve_decay_steps=-1)
