"""The score of a decision on a snapshot, term by term."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from topas_env._decision import Decision, check_decision
from topas_env._snapshot import Snapshot

__all__ = ["ScoreTerms", "policy_params", "score_terms"]


class ScoreTerms(NamedTuple):
    """The terms of the TOPAS score of one state, seconds (SCHEDULER.md section 4; paper, equation 13).

    Attributes:
        admit: Expected reduction of the tasks' remaining paths, weighted by age.
        move: Cost of moving prefixes.
        redo: Work that preemption repeats.
        revoke: Credit that preemption takes back.
        reuse: Worth of keeping prefixes for the next stages.
    """

    admit: float
    move: float
    redo: float
    revoke: float
    reuse: float

    @property
    def total(self) -> float:
        """The score: admit - move - redo - revoke + reuse."""
        return self.admit - self.move - self.redo - self.revoke + self.reuse


def score_terms(
    snapshot: Snapshot,
    decision: Decision,
    *,
    beta: float = 1.0,
    rho: float = 0.5,
    exact_limit: int = 64,
    scenarios: int = 64,
) -> ScoreTerms:
    """Returns the score terms of any feasible decision, whoever took it.

    Args:
        snapshot: What was seen.
        decision: What was decided; its admitted requests count in their order.
        beta: Strength of reuse.
        rho: Strength of aging.
        exact_limit: Up to so many joint outcomes of a task the expectation is exact.
        scenarios: Joint draws beyond that.

    Raises:
        InfeasibleDecision: The decision violates a constraint.
    """
    from topas_env._core.choice import default_params
    from topas_env._core.decide import score
    from topas_env._pack import pack

    check_decision(snapshot, decision)
    packed = pack(snapshot)
    choice = packed.choice(decision)
    score(packed.v, default_params(beta=beta, rho=rho, exact_limit=exact_limit, scenarios=scenarios), choice)
    info = choice.info[0]
    return ScoreTerms(*(float(info[name]) for name in ScoreTerms._fields))


def policy_params(policy: object) -> NDArray[Any]:
    """Finds what a policy's states are scored by.

    Returns:
        PARAMS (1,), the policy's own `beta` and `rho`, factors without a unit, where it has them; else the defaults.
    """
    from topas_env._core.choice import default_params

    own = {name: getattr(policy, name, None) for name in ("beta", "rho")}
    return default_params(**{name: value for name, value in own.items() if isinstance(value, (int, float))})
