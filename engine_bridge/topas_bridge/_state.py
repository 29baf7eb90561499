"""The state of the bridge as people see it, and the commands that it obeys while it runs.

Both travel through SGLang's own `/server_info` and `/set_internal_state`, so they listen where SGLang listens and
honour its API keys.
"""

from typing import Any

import msgspec

from topas_bridge._bridge import Bridge
from topas_bridge.engine.pool import read_pool

__all__ = ["bridge_state", "obey"]


def bridge_state(bridge: Bridge) -> dict[str, Any]:
    """Returns everything worth knowing as plain values; `snapshot` is the last one, for `topas explain`."""
    pool = read_pool(bridge.scheduler)
    guard, ledger, residency = bridge.guard, bridge.ledger, bridge.residency
    snapshot = bridge.last_snapshot
    return {
        "policy": bridge.config.policy,
        "shadow": bridge.config.shadow,
        "off": guard.off,
        "decisions": guard.decisions,
        "decision_s": guard.seconds,
        "faults": dict(guard.faults),
        "counts": dict(bridge.counts),
        "tags": dict(ledger.counts),
        "overhead_s": bridge.overhead_s,
        "busy_s": bridge.busy_s,
        "tasks": len(ledger.tasks),
        "requests": len(ledger.calls),
        "workflows": sorted(ledger.book.by_name),
        "agents": {
            agent.name: {"prefix_tokens": agent.length, "frozen": agent.frozen} for agent in ledger.agents.values()
        },
        "locked_tokens": residency.tokens,
        "prefix_moves": dict(residency.moves),
        "pool": dict(pool._asdict()),
        "can_evict": residency.radix.can_evict,
        "snapshot": None if snapshot is None else msgspec.json.decode(snapshot.to_json()),
    }


def obey(bridge: Bridge, commands: dict[str, Any]) -> bool:
    """Carries out commands; SGLang lets numbers through, nothing else.

    `topas_enable` 1 or 0 switches the policy on or off; `topas_dump` writes the last snapshot to the dump folder.

    Returns:
        Whether all of them were understood and done.
    """
    if not set(commands) <= {"topas_enable", "topas_dump"}:
        return False
    if "topas_enable" in commands:
        bridge.guard.switch(on=bool(commands["topas_enable"]))
        if bridge.guard.off:
            bridge.fall_back("off", None)
    if "topas_dump" in commands:
        return bridge.last_snapshot is not None and bridge.log.dump(bridge.last_snapshot) is not None
    return True
