"""The baselines and the two hold policies: orders by hand, the shared rule, equality with compiled paths."""

import copy
from typing import Any

import pytest

from reference.random_snapshots import random_snapshot
from reference.topas_reading import Reading
from topas_env import Decision, Snapshot, check_decision
from topas_env._core.decide import decide as compiled_decide
from topas_env._pack import pack
from topas_policies import make_policy

QUEUES = ["fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm", "hold-many", "hold-depth"]


def compiled(policy: Any, snapshot: Snapshot) -> Decision:
    """Returns what the policy's compiled path decides."""
    code, params = policy.compiled()
    packed = pack(snapshot)
    choice = packed.room()
    compiled_decide(packed.v, code, params, choice)
    return packed.decision(choice)


@pytest.mark.parametrize("name", QUEUES)
def test_compiled_and_plain_paths_decide_alike(name: str) -> None:
    admitted = 0
    for seed in range(60000, 60600):
        data = random_snapshot(seed)
        snapshot = Snapshot.from_dict(data)
        policy = make_policy(name, gate=1 + seed % 3) if name == "gated-lpm" else make_policy(name)
        decision = policy.decide(snapshot)
        assert compiled(policy, snapshot) == decision, seed
        running = [r["id"] for r in data["requests"] if r["status"] == "running"]
        assert list(decision.requests[: len(running)]) == running
        admitted += len(decision.requests) - len(running)
        if len(decision.requests) > len(running):
            check_decision(snapshot, decision)
    assert admitted > 300


@pytest.mark.parametrize("name", QUEUES)
def test_shared_rule(name: str) -> None:
    """Exactly the agents of what runs are resident, and the walk ends at the first request that does not fit."""
    policy = make_policy(name)
    stopped = 0
    for seed in range(61000, 61200):
        data = random_snapshot(seed)
        decision = policy.decide(Snapshot.from_dict(data))
        reading = Reading(data, beta=1.0, rho=0.5, exact_limit=64, scenarios=64)
        assert list(decision.prefixes) == sorted({reading.agent(r) for r in decision.requests})
        left = len(reading.ready) - (len(decision.requests) - len(reading.running))
        if left:
            # Something is left only because one request of the queue does not fit behind what was taken.
            blocked = [r for r in reading.ready if r not in decision.requests and not fits(reading, decision, r)]
            assert blocked, seed
            stopped += 1
    assert stopped > 20


def fits(reading: Reading, decision: Decision, request: str) -> bool:
    agents = {*decision.prefixes, reading.agent(request)}
    held = sum(reading.prefix[a] for a in agents) + sum(reading.reserved(r) for r in [*decision.requests, request])
    return held <= reading.budget and len(decision.requests) < reading.slots


# A chain of three stages on agents A, B, C (prefixes 100, 200, 300), nothing running, everything fits.
#
#   id  task  stage  task arrival  ready  attained (task)  remaining path of the task (profiles 10, 20, 30)
#   r1  t1    s1     0             9      0                60
#   r2  t2    s2     5             8      4                50
#   r3  t3    s3     7             7      9                30
#   r4  t4    s1     6             6      0                60
BASE: dict[str, Any] = {
    "version": 1,
    "time_s": 10.0,
    "kv_budget_tokens": 10000,
    "max_running_requests": 8,
    "engine": {
        "prefill_base_s": 1.0, "prefill_s_per_token": 0.001, "decode_s_per_token": 0.01, "load_s_per_token": 0.001,
        "offload_s_per_token": 0.0, "rebuild_s_per_token": 0.001, "reserve_ratio": 1.0, "reserve_cap_tokens": None,
    },
    "age_scale_s": 10.0,
    "workflows": [
        {
            "name": "w",
            "agents": [{"name": n, "prefix_tokens": p} for n, p in (("A", 100), ("B", 200), ("C", 300))],
            "stages": [
                {"name": "s1", "agent": "A", "after": []},
                {"name": "s2", "agent": "B", "after": ["s1"]},
                {"name": "s3", "agent": "C", "after": ["s2"]},
            ],
        }
    ],
    "service": [{"workflow": "w", "stage": f"s{i}", "profile_s": 10.0 * i} for i in (1, 2, 3)],
    "resident": ["B"],
    "cached": [{"agent": "A", "last_used_s": 1.0}],
    "tasks": [],
    "requests": [],
}  # fmt: skip


def add(data: dict[str, Any], number: int, stage: int, arrival: float, ready: float, **request: Any) -> None:
    """Adds task t<number> whose request r<number> of s<stage> is ready; earlier stages received 4 and 5 s."""
    received = (4.0, 5.0, 0.0)
    status = ["done"] * (stage - 1) + ["ready"] + ["waiting"] * (3 - stage)
    stages = [
        {"name": f"s{i + 1}", "status": s, "service_s": received[i] if s == "done" else 0.0}
        for i, s in enumerate(status)
    ]
    data["tasks"].append({"id": f"t{number}", "workflow": "w", "arrival_s": arrival, "stages": stages})
    fields = {
        "id": f"r{number}", "task": f"t{number}", "stage": f"s{stage}", "status": "ready", "ready_s": ready,
        "admitted_s": None, "suffix_tokens": 50, "cached_tokens": 0, "generated_tokens": 0, "max_new_tokens": 50,
        "admission_credit_s": 0.0,
    }  # fmt: skip
    data["requests"].append(fields | request)


def four() -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    add(data, 1, 1, 0.0, 9.0)
    add(data, 2, 2, 5.0, 8.0)
    add(data, 3, 3, 7.0, 7.0)
    add(data, 4, 1, 6.0, 6.0)
    return data


def order_of(name: str, data: dict[str, Any], **params: Any) -> str:
    """Returns the order of admission, as the numbers of the requests."""
    decision = make_policy(name, **params).decide(Snapshot.from_dict(data))
    return "".join(request[1:] for request in decision.requests)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("fcfs", "4321"),  # ready at 6, 7, 8, 9
        ("parrot-fcfs", "1243"),  # tasks arrived at 0, 5, 6, 7
        ("las", "4123"),  # attained 0, 0, 4, 9; of the first two r4 is ready first
        ("spf", "3241"),  # depth 2, 1, 0, 0
        ("srpt", "3241"),  # left 30, 50, 60, 60
        ("lpm", "2413"),  # matches: B 200 (resident), A 100 (cached) twice, C 0 (neither)
        ("gated-lpm", "2413"),  # one request of the last stage is below the gate of 4
        ("hold-many", "4132"),  # nothing runs; two wait for A, one each for B and C
        ("hold-depth", "3241"),
    ],
)
def test_orders_by_hand(name: str, order: str) -> None:
    assert order_of(name, four()) == order


@pytest.mark.parametrize(("name", "order"), [("hold-many", "253641"), ("hold-depth", "253641")])
def test_hold_policies_finish_with_prefixes_in_use(name: str, order: str) -> None:
    """r2 runs on B, so r5 on B goes before what waits longer, and r6 on C right behind r3, which brings C."""
    data = four()
    data["requests"][1] |= {"status": "running", "admitted_s": 9.0}
    data["tasks"][1]["stages"][1]["status"] = "running"
    add(data, 5, 2, 8.0, 9.5)
    add(data, 6, 3, 9.0, 9.7)
    data["requests"][3]["ready_s"] = 8.0  # two wait for A and two for C, and of these r3 has waited longest
    assert order_of(name, data) == order
    data["kv_budget_tokens"] = 200 + 100 + 100 + 300 + 100  # r2, r5 and, with its prefix, r3
    assert order_of(name, data) == "253"


def test_gate_opens_at_its_backlog() -> None:
    """r3 is the only request of the last stage: a gate of 1 puts it first, the others stay in the order of lpm."""
    assert order_of("gated-lpm", four(), gate=1) == "3241"
    assert order_of("gated-lpm", four(), gate=2) == "2413"
    data = four()
    add(data, 5, 3, 8.0, 8.0, cached_tokens=10)
    assert order_of("gated-lpm", data, gate=2) == "53241"  # r5 matches 10 tokens, r3 none


def test_lpm_counts_history_and_falls_back_above_128_waiting() -> None:
    """r3's own history of 150 tokens beats A's 100 and not B's 200; with 129 waiting the order is that of fcfs."""
    data = four()
    data["requests"][2] |= {"suffix_tokens": 200, "cached_tokens": 150}
    assert order_of("lpm", data) == "2341"
    data["max_running_requests"] = 4
    for number in range(5, 129):
        add(data, number, 1, 9.5, 10.0)
    assert len(data["requests"]) == 128
    assert order_of("lpm", data) == "2341"
    add(data, 129, 1, 9.5, 10.0)
    assert order_of("lpm", data) == order_of("fcfs", data) == "4321"
    assert order_of("gated-lpm", data, gate=1) == "3421"


def test_head_of_line() -> None:
    """fcfs stops at r3 (C: 300 + 100 tokens do not fit beside A and r4), although r1 on A would still fit."""
    data = four()
    data["kv_budget_tokens"] = 200 + 399
    assert order_of("fcfs", data) == "4"
    data["kv_budget_tokens"] = 200 + 400
    assert order_of("fcfs", data) == "43"
    data["max_running_requests"] = 1
    assert order_of("fcfs", data) == "4"


def test_over_budget_incumbent_admits_nothing() -> None:
    data = four()
    data["requests"][1] |= {"status": "running", "admitted_s": 9.0, "generated_tokens": 2000}
    data["tasks"][1]["stages"][1]["status"] = "running"
    data["kv_budget_tokens"] = 1000
    for name in QUEUES:
        decision = make_policy(name).decide(Snapshot.from_dict(data))
        assert decision == Decision(("B",), ("r2",))


def test_ties_go_to_the_smaller_id() -> None:
    """Ids compare as strings: r10 comes before r9."""
    for name in QUEUES:
        data = copy.deepcopy(BASE)
        add(data, 9, 1, 1.0, 2.0)
        add(data, 10, 1, 1.0, 2.0)
        assert order_of(name, data) == "109", name
