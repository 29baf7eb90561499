"""Which prefixes are kept: locks on their radix nodes, given back before they can hurt."""

import logging
from typing import Any

from topas_bridge._prefixes import AgentPrefix
from topas_bridge.engine.radix import Pin, Radix

__all__ = ["Residency"]

logger = logging.getLogger(__name__)


class Residency:
    """The locked prefixes of one scheduler.

    Attributes:
        pins: Locks by agent.
        moves: How often a prefix was locked, released, evicted by force, unlocked under pressure.
    """

    def __init__(self, radix: Radix, *, forced: bool) -> None:
        self.radix = radix
        self.pins: dict[str, Pin] = {}
        self.moves = {"pin": 0, "release": 0, "evict": 0, "pressure": 0}
        self._forced = forced
        self._wanted: dict[str, AgentPrefix] = {}
        self._probed_s = 0.0
        self._cached: list[str] = []

    @property
    def tokens(self) -> dict[str, int]:
        """Locked tokens by agent."""
        return {name: pin.tokens for name, pin in self.pins.items()}

    def keep(self, agents: dict[str, AgentPrefix]) -> None:
        """Keeps exactly these prefixes; one that is not in memory yet is locked when it is (`retry`)."""
        self._wanted = agents
        for name in [name for name in self.pins if name not in agents]:
            self._release(name)
            self.moves["release"] += 1
        self.retry()

    def retry(self) -> None:
        """Locks what is wanted and has come into memory since."""
        for name, agent in self._wanted.items():
            pin = self.pins.get(name)
            if pin is not None and pin.tokens != agent.length:
                self._release(name)
                pin = None
            if pin is None and agent.length > 0 and agent.key is not None:
                made = self.radix.pin(agent.tokens[: agent.length], agent.key)
                if made is not None:
                    self.pins[name] = made
                    self.moves["pin"] += 1

    def evict(self, agents: list[AgentPrefix]) -> None:
        """Evicts released prefixes at once, if that was asked for and can be done."""
        if not self._forced:
            return
        for agent in agents:
            if agent.name not in self.pins and agent.length > 0 and agent.key is not None:
                freed = self.radix.evict(agent.tokens[: agent.length], agent.key)
                self.moves["evict"] += freed > 0

    def release_all(self, *, pressure: bool = False) -> bool:
        """Unlocks everything.

        Returns:
            Whether anything was locked.
        """
        self._wanted = {}
        any_locked = bool(self.pins)
        for name in list(self.pins):
            self._release(name)
            self.moves["pressure" if pressure else "release"] += 1
        return any_locked

    def cached(self, agents: dict[str, AgentPrefix], now: float) -> list[str]:
        """Returns the agents whose whole prefix lies in memory without a lock of ours.

        Where looking touches the cache, it is done four times a second at most.
        """
        if now - self._probed_s < (0.05 if self.radix.reads_only else 0.25):
            return [name for name in self._cached if name not in self.pins]
        self._probed_s = now
        self._cached = [name for name, agent in agents.items() if name not in self.pins and self._is_whole(agent)]
        return self._cached

    def missing(self, agent: AgentPrefix) -> bool:
        """Tells whether an agent has a known prefix that is not whole in memory."""
        return agent.name not in self.pins and self._is_whole(agent) is False

    def _is_whole(self, agent: AgentPrefix) -> bool | None:
        """Tells whether an agent's prefix is whole in memory; None while it is not known."""
        if agent.length == 0 or agent.key is None:
            return None
        return self.radix.present(agent.tokens[: agent.length], agent.key) >= agent.length

    def _release(self, name: str) -> None:
        pin: Any = self.pins.pop(name)
        self.radix.unpin(pin)
