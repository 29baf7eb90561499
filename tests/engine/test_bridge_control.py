"""Guard, actuation and residency against a stand-in of the scheduler: nothing waits forever, everything is unlocked."""

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from engine.fake_engine import FakeRadix, FakeReq, FakeScheduler
from topas_bridge._bridge import Bridge
from topas_bridge._config import BridgeConfig
from topas_bridge._guard import Guard
from topas_bridge._ledger import Ledger
from topas_bridge._metrics import Metrics
from topas_bridge._residency import Residency
from topas_bridge._snapshot import SnapshotBuilder
from topas_bridge._start import example_snapshot
from topas_bridge._workflows import WorkflowBook
from topas_env import Decision
from topas_env._errors import InputError
from topas_env._snapshot import EngineCosts

COSTS = EngineCosts(0.01, 0.001, 0.01, 0.001, 0.0, 0.001, 1.0, None)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    config = BridgeConfig(policy="scripted")
    Guard(Scripted(lambda snapshot: Decision((), ())), config).warm_up(example_snapshot(COSTS))


class Scripted:
    """A policy whose answer is a function of the snapshot."""

    name = "scripted"

    def __init__(self, answer):
        self.answer = answer

    def reset(self, *, seed=None):
        pass

    def decide(self, snapshot):
        return self.answer(snapshot)


def order(*wanted, prefixes=("-",)):
    """Admits these requests in this order, keeps all that run."""

    def answer(snapshot):
        ids = {request.id.split(".")[0]: request for request in snapshot.requests}
        running = [request.id for request in snapshot.requests if request.status == "running"]
        chosen = [ids[name].id for name in wanted if name in ids and ids[name].status == "ready"]
        return Decision(prefixes, (*running, *chosen))

    return answer


def make(answer, scheduler=None, **settings):
    scheduler = scheduler or FakeScheduler()
    config = BridgeConfig(
        **{"policy": "scripted", "validate": True, "isolation": "inline", "budget_ms": 5000.0, **settings}
    )
    ledger = Ledger(WorkflowBook([]), page_size=1, freeze_after=8, ttl_s=60.0)
    bridge = Bridge(
        scheduler,
        config,
        guard=Guard(Scripted(answer), config),
        ledger=ledger,
        builder=SnapshotBuilder(ledger, COSTS, 60.0),
        residency=Residency(FakeRadix(), forced=False),
        metrics=Metrics(enabled=False, policy="scripted"),
    )
    return scheduler, bridge


def reqs(*names, max_new=3):
    return [FakeReq(name, range(20), max_new) for name in names]


def run_out(scheduler, bridge, steps=200):
    for _ in range(steps):
        scheduler.step(bridge)
        if not scheduler.waiting_queue and not scheduler.running_batch.reqs:
            return
    raise AssertionError(f"{len(scheduler.waiting_queue)} requests still wait")


def test_exactly_the_chosen_are_admitted_in_order():
    scheduler, bridge = make(order("c", "a"))
    scheduler.waiting_queue = reqs("a", "b", "c", "d")
    scheduler.step(bridge)
    assert scheduler.admitted == ["c", "a"]
    assert [req.rid for req in scheduler.waiting_queue] == ["b", "d"]
    assert bridge.guard.faults == {}


def test_a_policy_that_never_admits_cannot_hold_an_idle_engine():
    scheduler, bridge = make(order())
    scheduler.waiting_queue = reqs("a", "b", "c")
    run_out(scheduler, bridge)
    assert scheduler.admitted == ["a", "b", "c"]
    assert bridge.counts["forced"] == 3


def test_preemption_after_some_progress_alone():
    def answer(snapshot):
        return Decision(("-",), tuple(r.id for r in snapshot.requests if r.status == "ready")[:1])

    scheduler, bridge = make(answer)
    a, b = reqs("a", "b", max_new=50)
    scheduler.waiting_queue = [a]
    scheduler.step(bridge)
    a.output_ids.clear()  # its first token is still under way
    scheduler.waiting_queue = [b]
    scheduler.step(bridge)
    assert bridge.counts["preemptions"] == 0
    assert bridge.counts["deferred"] == 1
    c = reqs("c")[0]
    scheduler.waiting_queue = [c]
    scheduler.step(bridge)
    assert bridge.counts["preemptions"] == 2  # both have a token by now
    assert {req.rid for req in scheduler.waiting_queue} == {"a", "b"}
    assert scheduler.max_queued_requests is None


def test_requests_with_a_grammar_or_logprobs_are_never_preempted():
    scheduler, bridge = make(
        lambda snapshot: Decision(("-",), tuple(r.id for r in snapshot.requests if r.status == "ready"))
    )
    a, b = reqs("a", "b", max_new=50)
    a.grammar = object()
    b.return_logprob = True
    scheduler.waiting_queue = [a, b]
    scheduler.step(bridge)
    scheduler.waiting_queue = reqs("c")
    scheduler.step(bridge)
    assert bridge.counts["preemptions"] == 0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda snapshot: 1 / 0, "raised"),
        (lambda snapshot: Decision((), tuple(r.id for r in snapshot.requests)), "infeasible"),
        (lambda snapshot: "nonsense", "raised"),
        (lambda snapshot: Decision(("-",), ("nobody",)), "infeasible"),
    ],
)
def test_faults_fall_back_to_sglang_and_switch_off(answer, kind):
    scheduler, bridge = make(answer, faults=3)
    scheduler.waiting_queue = reqs("a", "b")
    scheduler.step(bridge)
    assert scheduler.admitted == ["a", "b"]
    assert bridge.guard.faults == {kind: 1}
    for name in "cd":
        scheduler.waiting_queue += reqs(name)
        scheduler.step(bridge)
    assert bridge.guard.off
    scheduler.waiting_queue += reqs("e")
    run_out(scheduler, bridge)
    assert bridge.guard.faults == {kind: 3}  # it was not asked again
    assert bridge.counts["fallback_off"] > 0
    bridge.guard.switch(on=True)
    scheduler.waiting_queue += reqs("f")
    run_out(scheduler, bridge)
    assert bridge.guard.faults[kind] > 3


def test_a_policy_that_hangs_stops_only_itself():
    release = threading.Event()

    def answer(snapshot):
        release.wait()
        return order("a", "b", "c")(snapshot)

    scheduler, bridge = make(answer, isolation="thread", budget_ms=30.0, faults=100, validate=False)
    scheduler.waiting_queue = reqs("a")
    run_out(scheduler, bridge)
    scheduler.waiting_queue = reqs("b")
    run_out(scheduler, bridge)
    assert bridge.guard.faults == {"slow": 2}
    assert bridge.guard.decisions == 0
    release.set()
    for _ in range(500):
        time.sleep(0.01)
        scheduler.waiting_queue = reqs("c")
        run_out(scheduler, bridge)
        if bridge.guard.decisions:
            break
    assert bridge.guard.decisions == 1


def test_the_watchdog_frees_what_was_held_too_long(monkeypatch):
    scheduler, bridge = make(order("a"), FakeScheduler(tokens=100_000), hold_s=10.0)
    clock = [0.0]
    monkeypatch.setattr(bridge, "now", lambda: clock[0])
    a, b = reqs("a", "b", max_new=10_000)
    scheduler.waiting_queue = [a, b]
    scheduler.step(bridge)
    clock[0] = 9.0
    scheduler.step(bridge)
    assert scheduler.admitted == ["a"]
    clock[0] = 11.0
    scheduler.step(bridge)
    assert scheduler.admitted == ["a", "b"]
    assert bridge.counts["freed"] == 1


def test_a_refusal_unlocks_everything_and_leaves_the_event_to_sglang():
    scheduler, bridge = make(lambda snapshot: Decision(("A",), tuple(r.id for r in snapshot.requests)))
    scheduler.refuses = True
    scheduler.waiting_queue = [FakeReq(f"r{i}", range(20), 3, {"agent": "A", "prefix_tokens": 10}) for i in range(2)]
    scheduler.step(bridge)
    assert bridge.counts["refused"] == 1
    assert bridge.residency.radix.locks == 0
    scheduler.refuses = False
    run_out(scheduler, bridge)


def test_locks_follow_the_decision_and_are_given_back_at_the_end():
    scheduler, bridge = make(lambda snapshot: Decision(("A",), tuple(r.id for r in snapshot.requests)))
    scheduler.waiting_queue = [FakeReq(f"r{i}", range(20), 3, {"agent": "A", "prefix_tokens": 10}) for i in range(2)]
    scheduler.step(bridge)
    assert bridge.residency.tokens == {"A": 10}
    run_out(scheduler, bridge)
    scheduler.step(bridge)
    assert bridge.residency.radix.locks == 0


@pytest.mark.parametrize("comes", [True, False])
def test_a_missing_prefix_is_computed_by_one_request(comes):
    """The others wait until it is in the cache, or until its first request has its first token."""

    class EmptyRadix(FakeRadix):
        """A cache that gets nothing until it is told to."""

        here = False

        def present(self, tokens, key):
            return len(tokens) if self.here else 0

        def pin(self, tokens, key):
            return super().pin(tokens, key) if self.here else None

    scheduler, bridge = make(order("b", "a", "c", "d", prefixes=("A", "D")), FakeScheduler(slots=8))
    bridge.residency.radix = radix = EmptyRadix()
    tags = {"agent": "A", "prefix_tokens": 10}
    scheduler.waiting_queue = [
        *(FakeReq(name, range(20), 30, tags) for name in ("a", "b", "c")),
        FakeReq("d", range(100, 120), 30, {"agent": "D", "prefix_tokens": 10}),
    ]
    scheduler.step(bridge)
    assert scheduler.admitted == ["b", "d"]
    assert {req.rid for req in scheduler.waiting_queue} == {"a", "c"}
    radix.here = comes
    scheduler.step(bridge)
    assert scheduler.admitted == (["b", "d", "a", "c"] if comes else ["b", "d", "a"])
    scheduler.step(bridge)
    assert scheduler.admitted == ["b", "d", "a", "c"]
    assert not scheduler.waiting_queue


def test_memory_pressure_unlocks_before_a_decode_step():
    scheduler, bridge = make(lambda snapshot: Decision(("A",), tuple(r.id for r in snapshot.requests)))
    scheduler.waiting_queue = [FakeReq("r", range(20), 30, {"agent": "A", "prefix_tokens": 10})]
    scheduler.step(bridge)
    bridge.before_decode(scheduler.running_batch)
    assert bridge.residency.radix.locks == 1
    scheduler.token_to_kv_pool_allocator.available_size = lambda: 0
    bridge.before_decode(scheduler.running_batch)
    assert bridge.residency.radix.locks == 0
    assert bridge.residency.moves["pressure"] == 1


def test_shadow_asks_and_changes_nothing():
    scheduler, bridge = make(order("b"), shadow=True)
    scheduler.waiting_queue = reqs("a", "b")
    scheduler.step(bridge)
    assert scheduler.admitted == ["a", "b"]
    assert bridge.guard.decisions == 1


def test_an_exception_in_sglang_loses_no_request():
    scheduler, bridge = make(order("a"))
    scheduler.waiting_queue = reqs("a", "b")

    def broken(_scheduler, _batch):
        raise MemoryError

    with pytest.raises(MemoryError):
        bridge.admission_pass(broken, (scheduler.running_batch,), {})
    assert sorted(req.rid for req in scheduler.waiting_queue) == ["a", "b"]


def test_health_checks_pass_every_policy():
    scheduler, bridge = make(order())
    blocker, check = reqs("a", "HEALTH_CHECK_1", max_new=100)
    scheduler.waiting_queue = [blocker]
    scheduler.step(bridge)
    scheduler.waiting_queue = [check, *reqs("b")]
    scheduler.step(bridge)
    assert scheduler.admitted == ["a", "HEALTH_CHECK_1"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("budget_ms", 0.0),
        ("faults", 0),
        ("reserve_ratio", 1.5),
        ("evict", "now"),
        ("isolation", "none"),
        ("workflows", "/no/such"),
    ],
)
def test_bad_settings_are_refused(setting, value):
    with pytest.raises(InputError, match=setting):
        BridgeConfig(policy="fcfs", **{setting: value}).check()


def test_the_policy_reserves_what_sglang_reserves_at_the_moment():
    seen = []

    def note(snapshot):
        seen.append(snapshot.engine.reserve_ratio)
        return order("a", "b")(snapshot)

    for given, expected in ((None, [0.7, 0.2]), (0.5, [0.5, 0.5])):
        seen.clear()
        scheduler, bridge = make(note, reserve_ratio=given)
        if given is not None:  # `build_bridge` takes it over into the costs
            bridge.builder.costs = msgspec.structs.replace(COSTS, reserve_ratio=given)
        for ratio, name in ((0.7, "a"), (0.2, "b")):
            scheduler.new_token_ratio_tracker = SimpleNamespace(current=ratio)
            scheduler.waiting_queue += reqs(name)
            scheduler.step(bridge)
        assert seen == expected


def test_what_the_policy_gives_up_is_no_event_of_its_own():
    asked = []

    def swap(snapshot):
        """Gives `a` up for `b` once both have begun; always wants one of them alone."""
        asked.append(sorted(r.id.split(".")[0] + ":" + r.status for r in snapshot.requests))
        ids = {request.id.split(".")[0]: request.id for request in snapshot.requests}
        return Decision(("-",), (ids["b"] if "b" in ids else ids["a"],))

    scheduler, bridge = make(swap)
    scheduler.waiting_queue = reqs("a", max_new=9)
    scheduler.step(bridge)
    scheduler.step(bridge)
    scheduler.waiting_queue += reqs("b", max_new=9)
    for _ in range(4):
        scheduler.step(bridge)
    assert bridge.counts["preemptions"] == 1
    assert asked == [["a:ready"], ["a:running", "b:ready"]]
    run_out(scheduler, bridge)
