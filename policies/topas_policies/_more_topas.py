"""TOPAS without preemption, to tell what preemption costs it from what its choice of admissions gives."""

import msgspec

from topas_env import Decision, Snapshot
from topas_policies._topas import Topas

__all__ = ["TopasKeep"]

_NEVER_S = 1e6  # far beyond any other term of the score


class TopasKeep(Topas):
    """TOPAS that preempts nothing: each running request counts as if it had been admitted for a fortune.

    SCHEDULER.md section 7: as the paper defines it, the score is asked again at every event, g grows while the credit
    of a running request stays, and preemption can thrash. Here the credit (equation 10) is so large that no state that
    preempts can win; prefixes, admissions and all else are as in `topas`. It takes the parameters of `topas`.
    """

    name = "topas-keep"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the state with the largest score among those that preempt nothing."""
        requests = tuple(
            msgspec.structs.replace(request, admission_credit_s=_NEVER_S) if request.status == "running" else request
            for request in snapshot.requests
        )
        return super().decide(msgspec.structs.replace(snapshot, requests=requests))
