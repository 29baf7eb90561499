"""TOPAS without preemption, to tell what preemption costs it from what its choice of admissions gives."""

from typing import TYPE_CHECKING

import msgspec

from topas_env import Decision, Snapshot
from topas_env._core.codes import CODES
from topas_policies._topas import Topas

if TYPE_CHECKING:
    from collections.abc import Callable

    from topas_env._core.choice import Choice
    from topas_env._core.layout import View

__all__ = ["TopasKeep"]

_NEVER_S = 1e6  # far beyond any other term of the score


class TopasKeep(Topas):
    """TOPAS that preempts nothing: each running request counts as if it had been admitted for a fortune.

    SCHEDULER.md section 7: as the paper defines it, the score is asked again at every event, g grows while the credit
    of a running request stays, and preemption can thrash. Here the credit (equation 10) is so large that no state that
    preempts can win; prefixes, admissions and all else are as in `topas`. It takes the parameters of `topas`.
    """

    name = "topas-keep"

    @property
    def decide_view(self) -> "Callable[[View, Choice], None]":
        """The same decision for a state given as arrays; not there for point estimates, which need a snapshot."""
        if self.estimates == "point":
            raise AttributeError("decide_view")
        return self._decide_view

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the state with the largest score among those that preempt nothing."""
        requests = tuple(
            msgspec.structs.replace(request, admission_credit_s=_NEVER_S) if request.status == "running" else request
            for request in snapshot.requests
        )
        return super().decide(msgspec.structs.replace(snapshot, requests=requests))

    def _decide_view(self, v: "View", choice: "Choice") -> None:
        """Writes the decision; the credits of the running requests are put back as they were."""
        from topas_env._core.decide import decide

        rows = v.running[: int(v.head["n_running"][0])]
        own = v.requests["credit"][rows]
        v.requests["credit"][rows] = _NEVER_S
        decide(v, CODES["topas"], self._params, choice)
        v.requests["credit"][rows] = own
