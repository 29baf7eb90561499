"""Asking a policy without trusting it: what it raises, answers or takes too long for never reaches the engine."""

import logging
import queue
import threading
import time
from typing import Any, NamedTuple

from topas_bridge._config import BridgeConfig
from topas_bridge._scoring import Answer, decide_compiled, decide_on_arrays, with_credits
from topas_env import Decision, InfeasibleDecision, Snapshot, check_decision
from topas_env._core.codes import CODES

__all__ = ["Fault", "Guard"]

logger = logging.getLogger(__name__)


class Fault(NamedTuple):
    """Why a policy's answer is not used.

    Attributes:
        kind: `raised`, `infeasible`, `slow`, `invalid_snapshot` or `bridge`.
        detail: One line.
    """

    kind: str
    detail: str


class Guard:
    """One policy behind a guard.

    Attributes:
        policy: The policy.
        off: Whether it is switched off.
        decisions: How many answers were used.
        faults: How many were not, by kind.
        seconds: Time spent in the policy, all answers.
        last_s: Time of the last answer.
    """

    def __init__(self, policy: Any, config: BridgeConfig) -> None:
        self.policy = policy
        self.off = False
        self.decisions = 0
        self.faults: dict[str, int] = {}
        self.seconds = 0.0
        self.last_s = 0.0
        self._budget_s = config.budget_ms / 1e3
        self._limit = config.faults
        self._validate = config.validate
        self._row = 0
        compiled = getattr(policy, "compiled", None)
        self._compiled = compiled() if callable(compiled) else None
        self._scores = self._compiled is None or self._compiled[0] >= CODES["topas"]
        threaded = config.isolation == "thread" or (config.isolation == "auto" and self._compiled is None)
        self._worker = _Worker(self._answer) if threaded else None

    def ask(self, snapshot: Snapshot) -> Answer | Fault:
        """Returns the policy's answer, or why there is none to be used."""
        started = time.perf_counter()
        try:
            if self._validate:
                Snapshot.from_dict(snapshot.to_dict())
        except Exception as error:  # noqa: BLE001 (whatever is wrong with it)
            return self.fault("invalid_snapshot", error)
        try:
            worker = self._worker
            answer = self._answer(snapshot) if worker is None else worker.ask(snapshot, self._budget_s)
        except TimeoutError as error:
            return self.fault("slow", error)
        except InfeasibleDecision as error:
            return self.fault("infeasible", error)
        except Exception as error:  # noqa: BLE001 (a policy may raise anything)
            return self.fault("raised", error)
        finally:
            self.last_s = time.perf_counter() - started
            self.seconds += self.last_s
        if self.last_s > self._budget_s:
            return self.fault("slow", f"{self.last_s * 1e3:.1f} ms, allowed are {self._budget_s * 1e3:.1f}")
        self._row = 0
        self.decisions += 1
        return answer

    def fault(self, kind: str, detail: object) -> Fault:
        """Counts a fault, logs the first of its kind, and switches the policy off after too many in a row."""
        text = " ".join(str(detail).split())[:300]
        seen = self.faults.get(kind, 0)
        self.faults[kind] = seen + 1
        if seen == 0:
            logger.warning("topas: policy %s: %s: %s (counted from now on, not logged)", self._name(), kind, text)
        self._row += 1
        if self._row >= self._limit and not self.off:
            self.off = True
            logger.error("topas: policy %s is switched off after %d faults in a row", self._name(), self._row)
        return Fault(kind, text)

    def switch(self, *, on: bool) -> None:
        """Switches the policy on or off, and forgets earlier faults."""
        self.off = not on
        self._row = 0

    def warm_up(self, snapshot: Snapshot) -> None:
        """Compiles what the policy needs, so that the first decision is not late."""
        try:
            self._answer(snapshot)
            agents = {agent.name for workflow in snapshot.workflows for agent in workflow.agents}
            with_credits(snapshot, Decision(tuple(agents), tuple(request.id for request in snapshot.requests)))
        except Exception:
            logger.exception("topas: policy %s fails on an example", self._name())

    def _answer(self, snapshot: Snapshot) -> Answer:
        if self._compiled is not None and self._scores:
            return decide_compiled(self._compiled, snapshot)
        if self._compiled is None and hasattr(self.policy, "decide_view"):
            return decide_on_arrays(self.policy, snapshot)
        decision = self.policy.decide(snapshot)
        if not isinstance(decision, Decision):
            raise TypeError(f"decide returned {type(decision).__name__}, not a Decision")
        check_decision(snapshot, decision)
        # The plain baselines look at no credit, and to compute it would cost more than their decision.
        return with_credits(snapshot, decision) if self._scores else Answer(decision, {})

    def _name(self) -> str:
        return str(getattr(self.policy, "name", type(self.policy).__name__))


class _Worker:
    """A thread that asks the policy, so that a policy that hangs stops no one but itself."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._questions: queue.SimpleQueue[tuple[int, Snapshot]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._asked = 0
        self._busy = False
        threading.Thread(target=self._run, name="topas-policy", daemon=True).start()

    def ask(self, snapshot: Snapshot, budget_s: float) -> Answer:
        if self._busy and not self._collect(0.0):
            raise TimeoutError("the policy still works on an earlier question")
        self._asked += 1
        self._busy = True
        self._questions.put((self._asked, snapshot))
        found = self._collect(budget_s)
        if not found:
            raise TimeoutError(f"no answer within {budget_s * 1e3:.1f} ms")
        answer = found[0]
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Answer)
        return answer

    def _collect(self, wait_s: float) -> list[Any]:
        """Returns the answer to the last question in a list, an empty list if there is none yet."""
        try:
            number, answer = self._answers.get(timeout=wait_s) if wait_s > 0 else self._answers.get_nowait()
        except queue.Empty:
            return []
        self._busy = number != self._asked
        return [answer]

    def _run(self) -> None:
        while True:
            number, snapshot = self._questions.get()
            try:
                self._answers.put((number, self._answer(snapshot)))
            except BaseException as error:  # noqa: BLE001 (handed to the one who asked)
                self._answers.put((number, error))
