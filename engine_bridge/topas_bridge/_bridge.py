"""One scheduler under a policy: looks, asks, and carries out what is decided, around SGLang's own admission pass."""

import logging
import time
from collections.abc import Callable
from typing import Any

from topas_bridge._config import BridgeConfig
from topas_bridge._guard import Guard
from topas_bridge._ledger import Changes, Ledger
from topas_bridge._log import DecisionLog
from topas_bridge._metrics import Metrics
from topas_bridge._records import Call
from topas_bridge._residency import Residency
from topas_bridge._scoring import Answer
from topas_bridge._snapshot import SnapshotBuilder
from topas_bridge.engine import batches, pool, preempt
from topas_bridge.engine import requests as sgl
from topas_env import Snapshot

__all__ = ["Bridge"]

logger = logging.getLogger(__name__)
_LOOK_S = 0.25  # a full look at least so often
_METRICS_S = 0.5


class Bridge:
    """The bridge of one scheduler; all of it runs in the scheduler's thread.

    Attributes:
        counts: Counters by name: events, admissions, preemptions, and the reasons for SGLang's own scheduling.
        overhead_s: Time spent here, the policy included.
        busy_s: Wall time in which the engine had requests.
    """

    def __init__(
        self,
        scheduler: Any,
        config: BridgeConfig,
        *,
        guard: Guard,
        ledger: Ledger,
        builder: SnapshotBuilder,
        residency: Residency,
        metrics: Metrics,
    ) -> None:
        self.scheduler = scheduler
        self.config = config
        self.guard = guard
        self.ledger = ledger
        self.builder = builder
        self.residency = residency
        self.metrics = metrics
        self.log = DecisionLog(config)
        self.counts = dict.fromkeys(
            ("passes", "events", "fallbacks", "forced", "refused", "freed", "admissions", "preemptions", "deferred"), 0
        )
        self.overhead_s = 0.0
        self.busy_s = 0.0
        self.last_snapshot: Snapshot | None = None
        self._start_s = time.monotonic()
        self._rank: dict[int, int] | None = None  # what may be admitted, by identity; None for everything
        self._late: list[Any] = []
        self._in_pass = False
        self._seen: tuple[int, int, int, int] = (-1, -1, -1, -1)
        self._dirty = True
        self._look_s = 0.0
        self._last_pass_s = 0.0
        self._metrics_s = 0.0

    def now(self) -> float:
        """Seconds since the bridge was made."""
        return time.monotonic() - self._start_s

    # -- the admission pass ----------------------------------------------------------------------------------------

    def admission_pass(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs around `Scheduler.get_new_batch_prefill`."""
        started = time.perf_counter()
        scheduler = self.scheduler
        batch = batches.running_batch(scheduler, args, kwargs)
        retracted: list[Any] = []
        held: list[Any] = []
        try:
            self._before(batch, retracted)
            held = self._take_held()
        except Exception as error:  # noqa: BLE001 (no fault of ours may stop the engine)
            self.fall_back("bridge", error)
        self._late = []
        self._in_pass = True
        self.overhead_s += time.perf_counter() - started
        plan = None
        try:
            plan = original(scheduler, *args, **kwargs)
        finally:
            started = time.perf_counter()
            self._in_pass = False
            if held or self._late:
                scheduler.waiting_queue = scheduler.waiting_queue + held + self._late
            if retracted:
                preempt.requeue(scheduler, retracted)
        try:
            self._after(batch, plan)
        except Exception as error:  # noqa: BLE001 (no fault of ours may stop the engine)
            self.fall_back("bridge", error)
        self.overhead_s += time.perf_counter() - started
        return plan

    def order(self, waiting: list[Any]) -> None:
        """Runs after `SchedulePolicy.calc_priority`: puts the chosen requests in order, in place."""
        if not self._in_pass or self._rank is None:
            return
        rank, calls = self._rank, self.ledger.calls
        unknown = [req for req in waiting if id(req) not in calls]
        if unknown:  # became ready within this very pass (grammars); the next look sees them
            strangers = {id(req) for req in unknown}
            self._late += unknown
            waiting[:] = [req for req in waiting if id(req) not in strangers]
        waiting.sort(key=lambda req: rank.get(id(req), -1))  # stable: what no policy decides about comes first

    def before_decode(self, batch: Any) -> None:
        """Runs before `Scheduler.update_running_batch`: no lock of ours may cost a request its memory."""
        if self.residency.pins and batch.reqs and not pool.decode_fits(self.scheduler, batch):
            self.residency.release_all(pressure=True)

    def release(self) -> None:
        """Unlocks everything: before SGLang flushes its cache or pauses, and at every fall-back."""
        self._dirty = True
        try:
            self.residency.release_all()
        except Exception:
            self.residency.pins.clear()
            logger.exception("topas: could not unlock prefixes")

    # -- before ------------------------------------------------------------------------------------------------------

    def _before(self, batch: Any, retracted: list[Any]) -> None:
        now = self.now()
        self.counts["passes"] += 1
        if self.ledger.calls and self._last_pass_s > 0:
            self.busy_s += now - self._last_pass_s
        self._last_pass_s = now
        if now - self._metrics_s > _METRICS_S:
            self._metrics_s = now
            self.metrics.publish(self)
        if not self._must_look(batch, now):
            return
        chunked = batches.chunked_requests(self.scheduler)
        changes = self.ledger.look(self.scheduler.waiting_queue, [*batch.reqs, *chunked], now)
        self._note_arrivals(changes)
        self.counts["admissions"] += len(changes.admitted)
        if not self.ledger.calls:
            if self.residency.pins:
                self.residency.release_all()
            self._rank = None
            return
        if self.residency.pins or changes.admitted or changes.finished:
            self.residency.retry()
        self._free_overdue(now)
        # A request that lost its place is no event: asked at once, a policy could go round in circles (docs/design.md).
        for call in changes.retracted:
            if self._rank is not None:
                self._rank.pop(id(call.req), None)
        emptied = changes.retracted and not batch.reqs
        if changes.arrived or changes.finished or changes.aborted or emptied:
            self._event(batch, retracted, now)

    def _must_look(self, batch: Any, now: float) -> bool:
        """Tells whether anything can have changed, from a few numbers that cost nothing."""
        waiting = self.scheduler.waiting_queue
        chunked = self.scheduler.chunked_req
        seen = (len(waiting), id(waiting[-1]) if waiting else 0, len(batch.reqs), id(chunked) if chunked else 0)
        if seen == self._seen and not self._dirty and now - self._look_s < _LOOK_S:
            return False
        self._seen, self._dirty, self._look_s = seen, False, now
        return True

    def _note_arrivals(self, changes: Changes) -> None:
        for call in changes.arrived + changes.retracted:
            if call.managed and call.agent.key is not None:
                tokens = sgl.prompt(call.req)
                call.cached_tokens = self.residency.radix.present(tokens, sgl.cache_key(call.req))

    def _free_overdue(self, now: float) -> None:
        for call in self.ledger.calls.values():
            if not call.running and not call.freed and call.managed and now - call.waits_s > self.config.hold_s:
                call.freed = True
                self.counts["freed"] += 1
                if self.counts["freed"] == 1:
                    logger.warning(
                        "topas: request %s waited %.0f s: SGLang's own order serves it", call.id, now - call.waits_s
                    )

    def _event(self, batch: Any, retracted: list[Any], now: float) -> None:
        calls = self.ledger.calls.values()
        if not any(call.managed and not call.running for call in calls):
            if self._rank is not None:
                self._rank = {}
            return
        self.counts["events"] += 1
        if self.guard.off:
            self.fall_back("off", None)
            return
        snapshot, shown = self._snapshot(now)
        if not any(request.status == "ready" for request in snapshot.requests):
            self._rank = {}
            return
        answer = self.guard.ask(snapshot)
        self.log.write(snapshot, answer, self.guard.last_s)
        self.metrics.decided(self.guard.last_s)
        if not isinstance(answer, Answer):
            self.fall_back(answer.kind, None)
        elif not self.config.shadow:
            self._carry_out(batch, answer, shown, retracted)

    def _snapshot(self, now: float) -> tuple[Snapshot, dict[str, Call]]:
        total = int(self.scheduler.max_total_num_tokens)
        slots = int(self.scheduler.max_running_requests)
        for call in self.ledger.calls.values():
            if call.running and not call.managed:
                total -= call.prompt_tokens + call.max_new_tokens
                slots -= 1
        residency = self.residency
        if self.config.reserve_ratio is None:
            self.builder.reserve(pool.reserve_ratio(self.scheduler))
        cached = residency.cached(self.ledger.agents, now)
        snapshot, shown = self.builder.build(now, budget=total, slots=slots, pinned=list(residency.pins), cached=cached)
        self.last_snapshot = snapshot
        return snapshot, shown

    def _carry_out(self, batch: Any, answer: Answer, shown: dict[str, Call], retracted: list[Any]) -> None:
        decision = answer.decision
        chosen = [shown[name] for name in decision.requests]
        keep = {call.id for call in chosen}
        self._retract(batch, [call for call in shown.values() if call.running and call.id not in keep], retracted)
        admitted = [call for call in chosen if not call.running]
        if not admitted and not batch.reqs and not batches.chunked_requests(self.scheduler):
            ready = [call for call in shown.values() if not call.running and call.req not in retracted]
            if ready:
                admitted = [min(ready, key=lambda call: call.ready_s)]
                self.counts["forced"] += 1
        freed = [call for call in self.ledger.calls.values() if call.freed and not call.running]
        freed.sort(key=lambda call: call.waits_s)
        rank: dict[int, int] = {}
        for call in freed + admitted:
            rank.setdefault(id(call.req), len(rank))
        for call in admitted:
            call.offer_s = answer.credits_s.get(call.id, 0.0)
        self._rank = rank
        if rank:
            batches.release_flag(batch)
        agents = self.ledger.agents
        before = list(self.residency.pins)
        self.residency.keep({name: agents[name] for name in decision.prefixes if name in agents})
        self.residency.evict([agents[name] for name in before if name in agents and name not in decision.prefixes])

    def _retract(self, batch: Any, leaving: list[Call], retracted: list[Any]) -> None:
        """Preempts what the policy gives up, as far as it may be, and appends it to `retracted`."""
        if not leaving or not self.config.preempt or not batches.may_preempt(self.scheduler):
            self.counts["deferred"] += len(leaving)
            return
        in_batch = {id(req) for req in batch.reqs}
        ready = [
            call.req
            for call in leaving
            if id(call.req) in in_batch
            and not call.freed
            and sgl.generated(call.req) > call.progress  # at least one token since its admission
            and sgl.is_preemptible(call.req)
        ]
        self.counts["deferred"] += len(leaving) - len(ready)
        if ready:
            self._dirty = True
            preempt.retract(self.scheduler, batch, ready, retracted)
            self.counts["preemptions"] += len(retracted)

    def _take_held(self) -> list[Any]:
        """Takes the requests that the policy does not admit out of the waiting queue and returns them."""
        rank = self._rank
        scheduler = self.scheduler
        if rank is None or not scheduler.waiting_queue:
            return []
        calls = self.ledger.calls
        kept, held = [], []
        for req in scheduler.waiting_queue:
            call = calls.get(id(req))
            if call is None or not call.managed or call.oversize or call.freed or id(req) in rank:
                kept.append(req)
            else:
                held.append(req)
        twins = self._twins(kept, rank)
        if twins:
            kept = [req for req in kept if id(req) not in twins]
            held += twins.values()
        if held:
            scheduler.waiting_queue = kept
        return held

    def _twins(self, kept: list[Any], rank: dict[int, int]) -> dict[int, Any]:
        """Returns the chosen requests, by identity, that need a missing prefix which another one is about to compute.

        A prefix comes into the cache at the end of the prefill of its first request. Admitted before that, each further
        one would compute it again and hold a copy of its own; SGLang's lpm keeps such requests back as well.
        """
        calls = self.ledger.calls
        chosen = [calls[id(req)] for req in kept if id(req) in rank and id(req) in calls]
        chosen = [call for call in chosen if call.managed and not call.freed]
        if not chosen:
            return {}
        chosen.sort(key=lambda call: rank[id(call.req)])
        computing = {call.agent.name for call in calls.values() if call.running and not sgl.generated(call.req)}
        twins = {}
        for call in chosen:
            if call.agent.name not in computing:
                computing.add(call.agent.name)
            elif self.residency.missing(call.agent):
                twins[id(call.req)] = call.req
        return twins

    # -- after -------------------------------------------------------------------------------------------------------

    def _after(self, batch: Any, plan: Any) -> None:
        admitted = batches.new_batch(plan)
        if admitted is not None:
            self._dirty = True
            return
        scheduler = self.scheduler
        if not scheduler.waiting_queue or batches.chunked_requests(scheduler):
            return
        running = batches.running_after(plan, batch)
        if not running.reqs and not self._result_under_way():
            # Nothing runs and nothing was admitted: whatever we lock or hold may be the reason.
            if self._rank is not None or self.residency.pins:
                self.counts["refused"] += 1
                self.fall_back("refused", None)
        elif running.batch_is_full and self._rank and self.residency.release_all(pressure=True):
            batches.release_flag(running)

    def _result_under_way(self) -> bool:
        """With overlap scheduling, requests whose last result is still to come hold memory but are in no batch."""
        return any(call.running for call in self.ledger.calls.values())

    def fall_back(self, reason: str, error: object) -> None:
        """Gives the event to SGLang's own scheduling."""
        if reason == "bridge":
            self.guard.fault("bridge", repr(error))
            logger.debug("topas: fault of the bridge", exc_info=True)
        self.counts["fallbacks"] += 1
        key = f"fallback_{reason}"
        self.counts[key] = self.counts.get(key, 0) + 1
        self._rank = None
        self.release()
