"""The planner: what it sees, what it promises, and what it is refused."""

import numpy as np
import pytest

from topas_env import InputError, Snapshot, check_decision, load_profile, load_workload, simulate
from topas_env._core.run import proceed
from topas_env._live_snapshot import LiveSnapshots
from topas_env._new_world import new_world
from topas_env._services import known_services
from topas_env._simulate import _fill, _room
from topas_policies import make_policy


def _points(name: str, num_tasks: int, seed: int, policy: str = "spf", *, profiled: bool = True) -> list[Snapshot]:
    """Returns the snapshots that a policy sees in a run."""
    workload = load_workload(name, num_tasks=num_tasks, seed=seed)
    engine = load_profile("qwen2.5-32b-a100-80g")
    world = new_world(workload, engine, profile_s=known_services(workload, engine) if profiled else {})
    snapshots = LiveSnapshots(workload)
    order = make_policy(policy)
    seen = []
    choice = _room(world)
    state = proceed(world, choice, False)
    while state == 0:
        seen.append(snapshots.make(world))
        _fill(world, seen[-1], order.decide(seen[-1]), choice)
        state = proceed(world, choice, True)
    return seen


def test_same_seed_and_number_give_the_same_decision() -> None:
    snapshot = _points("metagpt-sop", 12, 1)[40]
    first, second = (make_policy("rollout", scenarios=4) for _ in range(2))
    for policy in (first, second):
        policy.reset(seed=7)
    decision = first.decide(snapshot)
    assert second.decide(snapshot) == decision
    assert first.report == second.report
    second.decide(snapshot)  # draws go on with every decision, and a reset starts them anew
    second.reset(seed=7)
    assert second.decide(snapshot) == decision
    assert first.report == second.report


def test_snapshots_and_views_give_the_same_run() -> None:
    workload = load_workload("metagpt-sop", num_tasks=12, seed=4)
    options = {"scenarios": 3, "arrivals": 4, "counted_arrivals": 2}
    fast = simulate(workload, make_policy("rollout", **options), seed=3)
    slow = simulate(workload, make_policy("rollout", **options), seed=3, compiled=False)
    assert fast.jct_s.tobytes() == slow.jct_s.tobytes()


def test_decisions_are_feasible_and_the_number_of_plays_is_kept() -> None:
    for number in (1, 5, 32):
        policy = make_policy("rollout", rollouts=number, scenarios=3, preempt="all")
        policy.reset(seed=0)
        for snapshot in _points("dag-4", 12, 2)[::3]:
            check_decision(snapshot, policy.decide(snapshot))
            assert 0 <= policy.report.rollouts <= number
            assert policy.report.chosen < policy.report.candidates


def test_one_rollout_is_the_first_base_policy() -> None:
    for base in ("spf", "lpm"):
        policy = make_policy("rollout", rollouts=1, base_policies=(base,))
        policy.reset(seed=0)
        for snapshot in _points("dag-4", 10, 3, base)[::2]:
            assert policy.decide(snapshot) == make_policy(base).decide(snapshot)


def _reading(snapshot: Snapshot, key: str, hold: bool, gate: int, skip: bool) -> tuple[str, ...]:
    """Returns what a base policy of the planner's own admits, in order: a plain reading of its description."""
    size = {a.name: a.prefix_tokens for w in snapshot.workflows for a in w.agents}
    stages = {(w.name, s.name): s for w in snapshot.workflows for s in w.stages}
    tasks = {t.id: t for t in snapshot.tasks}

    def stage(r):
        return stages[tasks[r.task].workflow, r.stage]

    def depth(workflow: str, name: str) -> int:
        return max((1 + depth(workflow, before) for before in stages[workflow, name].after), default=0)

    def open_stages(r) -> int:
        return sum(each.status != "done" for each in tasks[r.task].stages)

    def match(r) -> int:
        return r.cached_tokens + (size[stage(r).agent] if stage(r).agent in in_memory else 0)

    in_memory = {*snapshot.resident, *(cached.agent for cached in snapshot.cached)}
    ready = [r for r in snapshot.requests if r.status == "ready"]
    waiting = [stage(r).agent for r in ready]
    keys = {
        "many": lambda r: -waiting.count(stage(r).agent),
        "depth": lambda r: -depth(tasks[r.task].workflow, r.stage),
        "arrival": lambda r: tasks[r.task].arrival_s,
        "few": lambda r: (open_stages(r), -match(r)),
    }
    running = [r for r in snapshot.requests if r.status == "running"]
    there = {stage(r).agent for r in running}
    room = snapshot.kv_budget_tokens - sum(size[a] for a in there) - sum(snapshot.reserved_tokens(r) for r in running)
    admitted: list[str] = []
    left = sorted(ready, key=lambda r: (r.ready_s, r.id))
    while left:
        r = min(left, key=lambda r: (hold and stage(r).agent not in there, keys[key](r)))
        agent = stage(r).agent
        fetch = 0 if agent in there else size[agent]
        least = min(snapshot.reserved_tokens(x) for x in ready if stage(x).agent == agent)
        could = min(waiting.count(agent), max(room - fetch, 0) // least)
        if fetch and (running or admitted) and gate > 1 and could < gate:
            left = [x for x in left if stage(x).agent != agent]
            continue
        if snapshot.reserved_tokens(r) + fetch > room:
            if not skip:
                break
            left.remove(r)
            continue
        room -= snapshot.reserved_tokens(r) + fetch
        there.add(agent)
        admitted.append(r.id)
        left.remove(r)
    return tuple(admitted)


@pytest.mark.parametrize(
    ("name", "key", "hold", "gate", "skip"),
    [
        ("hold-many", "many", True, 1, False),
        ("many-g3", "many", False, 3, False),
        ("hold-depth", "depth", True, 1, False),
        ("arrival-g2-skip", "arrival", False, 2, True),
        ("depth-skip", "depth", False, 1, True),
        ("few", "few", False, 1, False),
    ],
)
def test_own_base_policies_are_what_their_names_say(name: str, key: str, hold: bool, gate: int, skip: bool) -> None:
    policy = make_policy("rollout", rollouts=1, base_policies=(name,), max_candidates=0)
    policy.reset(seed=0)
    admissions = 0
    for snapshot in _points("dag-4", 25, 3)[::3] + _points("metagpt-sop", 12, 3)[::7]:
        decision = policy.decide(snapshot)
        running = {r.id for r in snapshot.requests if r.status == "running"}
        admitted = tuple(each for each in decision.requests if each not in running)
        assert admitted == _reading(snapshot, key, hold, gate, skip)
        assert running <= set(decision.requests)
        admissions += len(admitted)
    assert admissions > 20


def test_where_nothing_is_known_of_the_stages_another_policy_is_followed() -> None:
    """Until enough of them are finished; a profile is knowledge as well."""
    planner, always, followed = (
        make_policy("rollout", fallback="gated-lpm"), make_policy("rollout", least_seen=0), make_policy("gated-lpm")
    )  # fmt: skip
    blind = [s for s in _points("dag-4", 30, 3, "gated-lpm", profiled=False) if len(s.requests) > 2]
    finished = [min(len(x.stage_totals_s) for x in s.service) if len(s.service) == 4 else 0 for s in blind]
    assert finished[0] == 0
    assert finished[-1] >= 4
    for snapshot, n in zip(blind, finished, strict=True):
        decision = planner.decide(snapshot)
        always.decide(snapshot)
        if not snapshot.service:
            assert decision == followed.decide(snapshot)
            assert (planner.report.rollouts, planner.report.base_policy) == (0, "gated-lpm")
            assert always.report.rollouts > 0
        elif n >= 4:  # it plans as soon as there is more than one state to choose from
            assert (planner.report.rollouts > 0) == (always.report.rollouts > 0)
    profiled = _points("dag-4", 30, 3, "gated-lpm")
    planned = 0
    for snapshot in [s for s in profiled if not any(x.stage_totals_s for x in s.service)]:
        planner.decide(snapshot)
        planned += planner.report.rollouts
    assert planned > 0


def test_states_with_idle_prefixes_can_be_left_out() -> None:
    plays = {}
    snapshots = _points("dag-4", 30, 2, "gated-lpm")
    stages = {s.name: s.agent for s in snapshots[0].workflows[0].stages}
    for idle in (True, False):
        policy = make_policy("rollout", max_candidates=30, rollouts=1000, preempt="all", idle=idle)
        plays[idle] = 0
        for snapshot in snapshots:
            decision = policy.decide(snapshot)
            plays[idle] += policy.report.rollouts
            if not idle:
                used = {stages[r.stage] for r in snapshot.requests if r.id in decision.requests}
                assert set(decision.prefixes) <= used
    assert plays[False] < plays[True]


def test_a_snapshot_is_all_that_counts() -> None:
    """JSON in between drops all that is not in the snapshot, and the decision stays."""
    policy = make_policy("rollout")
    for snapshot in _points("metagpt-sop", 8, 5)[::7]:
        policy.reset(seed=1)
        first = policy.decide(snapshot)
        policy.reset(seed=1)
        assert policy.decide(Snapshot.from_json(snapshot.to_json())) == first


def test_more_rollouts_are_not_worse_on_average() -> None:
    """Sum of JCTs over 10 small cases where two prefixes compete; paired, so that a case's own difficulty cancels."""
    totals = {}
    for number in (1, 8, 32):
        means = []
        for seed in range(500, 510):
            workload = load_workload("dag-4", num_tasks=25, seed=seed)
            means.append(simulate(workload, make_policy("rollout", rollouts=number)).mean_jct_s)
        totals[number] = np.array(means)
    for less, more in ((1, 8), (8, 32), (1, 32)):
        gain = totals[less] - totals[more]
        assert gain.mean() > -2.0 * gain.std(ddof=1) / np.sqrt(len(gain)), (less, more, gain)
    assert totals[32].mean() < 0.97 * totals[1].mean()


def test_time_budget_bounds_the_plays() -> None:
    snapshot = _points("dag-4", 30, 1)[-20]
    policy = make_policy("rollout", rollouts=1_000, scenarios=64, finalists=16, time_budget_s=0.0)
    policy.decide(snapshot)
    assert policy.report.rollouts == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rollouts": 0}, "rollouts"),
        ({"base_policies": ("nonsense",)}, "base_policies"),
        ({"base_policies": ()}, "base_policies"),
        ({"base_policies": ("hold-", "spf")}, "base_policies"),
        ({"base_policies": ("hold-most",)}, "base_policies"),
        ({"base_policies": ("many-g0",)}, "base_policies"),
        ({"continuations": 0}, "continuations"),
        ({"least_seen": -1}, "least_seen"),
        ({"fallback": "none-such"}, "fallback"),
        ({"idle": 1}, "idle"),
        ({"give_up": -0.1}, "give_up"),
        ({"tail_weight": -1}, "tail_weight"),
        ({"horizon_s": float("nan")}, "horizon_s"),
        ({"time_budget_s": -0.1}, "time_budget_s"),
    ],
)
def test_bad_parameters(options: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_policy("rollout", **options)
