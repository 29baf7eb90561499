"""A decision: which prefixes stay and which requests run, and when that is feasible (SNAPSHOT.md)."""

import msgspec

from topas_env._errors import InfeasibleDecision
from topas_env._snapshot import Snapshot

__all__ = ["Decision", "check_decision"]


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A post-decision state, (R', Q').

    Attributes:
        prefixes: Agents resident after the decision.
        requests: Ids running after it: those that go on in snapshot order, then the admitted in order of admission.
    """

    prefixes: tuple[str, ...]
    requests: tuple[str, ...]


def check_decision(snapshot: Snapshot, decision: Decision) -> None:
    """Refuses an infeasible decision; it is never repaired.

    Raises:
        InfeasibleDecision: With the violated constraint and both its sides.
    """
    raise InfeasibleDecision("not written yet", 0, 0)
