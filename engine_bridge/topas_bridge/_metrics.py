"""Prometheus metrics beside SGLang's own, in the registry that its `/metrics` shows."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topas_bridge._bridge import Bridge

__all__ = ["Metrics"]

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_JCT = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class Metrics:
    """Counters, gauges and histograms; does nothing where SGLang runs without `--enable-metrics`.

    Args:
        enabled: Whether SGLang's metrics are on.
        policy: The policy's name, a label of every series.
    """

    def __init__(self, *, enabled: bool, policy: str) -> None:
        self._on = enabled and "PROMETHEUS_MULTIPROC_DIR" in os.environ
        if not self._on:
            return
        from prometheus_client import Counter, Gauge, Histogram

        labels = ["policy"]
        self._policy = policy
        self._decision = Histogram("topas:decision_seconds", "Time of one decision.", labels, buckets=_SECONDS)
        self._jct = Histogram("topas:task_jct_seconds", "Completion time of a task.", labels, buckets=_JCT)
        self._counter = Counter("topas:events", "What the bridge has done, by kind.", [*labels, "kind"])
        self._fault = Counter("topas:faults", "Answers that were not used, by reason.", [*labels, "reason"])
        self._move = Counter("topas:prefix_moves", "Locks of prefixes, by kind.", [*labels, "kind"])
        self._resident = Gauge(
            "topas:resident_tokens", "Locked tokens, by agent.", [*labels, "agent"], multiprocess_mode="mostrecent"
        )
        self._overhead = Gauge(
            "topas:overhead_ratio", "Our share of the engine's busy time.", labels, multiprocess_mode="mostrecent"
        )
        self._told: dict[tuple[str, str], int] = {}
        self._agents: set[str] = set()

    def decided(self, seconds: float) -> None:
        """Records one decision."""
        if self._on:
            self._decision.labels(self._policy).observe(seconds)

    def publish(self, bridge: "Bridge") -> None:
        """Brings all series up to date."""
        if not self._on:
            bridge.ledger.finished_jct_s.clear()
            return
        for seconds in bridge.ledger.finished_jct_s:
            self._jct.labels(self._policy).observe(seconds)
        bridge.ledger.finished_jct_s.clear()
        self._raise(self._counter, bridge.counts)
        self._raise(self._counter, bridge.ledger.counts)
        self._raise(self._fault, bridge.guard.faults)
        self._raise(self._move, bridge.residency.moves)
        tokens = bridge.residency.tokens
        for agent in self._agents.union(tokens):
            self._resident.labels(self._policy, agent).set(tokens.get(agent, 0))
        self._agents.update(tokens)
        if bridge.busy_s > 0:
            self._overhead.labels(self._policy).set(bridge.overhead_s / bridge.busy_s)

    def _raise(self, counter: Any, values: dict[str, int]) -> None:
        for kind, value in values.items():
            key = (str(id(counter)), kind)
            more = value - self._told.get(key, 0)
            if more > 0:
                counter.labels(self._policy, kind).inc(more)
                self._told[key] = value
