"""TOPAS: the candidate state with the largest score, found by the compiled search, and its three ablations."""

from typing import Any

import msgspec
from numpy.typing import NDArray

from topas_env import Decision, Snapshot
from topas_env._core.choice import default_params
from topas_env._core.codes import CODES
from topas_env._errors import InputError
from topas_policies._parameters import count, one_of, weight
from topas_policies._policy import Policy

__all__ = ["Topas", "TopasAging", "TopasBase", "TopasReuse"]

DEFAULT_M, DEFAULT_K = 6, 0
MOST_ENUMERATED = 12  # 4,095 prefix sets


class Topas(Policy):
    """Task-oriented, prefix-aware scheduling: the post-decision state with the largest score (arXiv:2608.25523).

    SCHEDULER.md says what it computes, choices that the paper leaves open included. The paper prints no parameters: the
    defaults are ours.

    Args:
        beta: Strength of the reuse term (paper, equation 11), at least 0.
        rho: Strength of aging (equation 12), at least 0; 0 is no aging.
        max_enumerated: M; with at most so many active agents every prefix set is tried, with more the bounded search.
        max_changes: K; cap on admissions and on preemptions of one decision, 0 for none.
        exact_limit: Up to so many joint outcomes of a task's residuals the expectation is exact.
        scenarios: Joint draws beyond that.
        estimates: `empirical`, the distributions of SCHEDULER.md section 2, or `point`: the mean of a stage's observed
            totals in the place of their distribution. With `point` a shorter branch of a fork is worth nothing until it
            is the last one: it is there to show why the expectation stands outside the max.
        M: Another name of max_enumerated.
        K: Another name of max_changes.

    Raises:
        InputError: A value out of its bounds, or one parameter under both its names.
    """

    name = "topas"
    manages_prefixes = True

    def __init__(
        self,
        beta: float = 1.0,
        rho: float = 0.5,
        max_enumerated: int = DEFAULT_M,
        max_changes: int = DEFAULT_K,
        exact_limit: int = 64,
        scenarios: int = 64,
        estimates: str = "empirical",
        *,
        M: int | None = None,  # noqa: N803 (the paper's name)
        K: int | None = None,  # noqa: N803
    ) -> None:
        self.beta = weight("beta", beta)
        self.rho = weight("rho", rho)
        max_enumerated = _either("max_enumerated", max_enumerated, DEFAULT_M, "M", M)
        max_changes = _either("max_changes", max_changes, DEFAULT_K, "K", K)
        self.max_enumerated = count("max_enumerated", max_enumerated, least=0, most=MOST_ENUMERATED)
        self.max_changes = count("max_changes", max_changes, least=0)
        self.exact_limit = count("exact_limit", exact_limit, least=0, most=65536)
        self.scenarios = count("scenarios", scenarios, least=1, most=65536)
        self.estimates = one_of("estimates", estimates, ("empirical", "point"))
        self._params = default_params(
            beta=self.beta,
            rho=self.rho,
            max_enumerated=self.max_enumerated,
            max_changes=self.max_changes,
            exact_limit=self.exact_limit,
            scenarios=self.scenarios,
        )

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the state with the largest score."""
        from topas_env._core.decide import decide
        from topas_env._pack import pack

        packed = pack(_with_point_totals(snapshot) if self.estimates == "point" else snapshot)
        choice = packed.room()
        decide(packed.v, CODES["topas"], self._params, choice)
        return packed.decision(choice)

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code and the parameters of the search.

        None for a subclass, which may decide otherwise, and for point estimates, which exist for comparison only.
        """
        if type(self).__module__ != __name__ or self.estimates == "point":
            return None
        return CODES[self.name], self._params.copy()


class TopasBase(Topas):
    """TOPAS without reuse and without aging: beta = 0 and rho = 0 (paper, figure 5)."""

    name = "topas-base"

    def __init__(
        self,
        max_enumerated: int = DEFAULT_M,
        max_changes: int = DEFAULT_K,
        exact_limit: int = 64,
        scenarios: int = 64,
        *,
        M: int | None = None,  # noqa: N803
        K: int | None = None,  # noqa: N803
    ) -> None:
        super().__init__(0.0, 0.0, max_enumerated, max_changes, exact_limit, scenarios, M=M, K=K)


class TopasReuse(Topas):
    """TOPAS without aging: rho = 0 (paper, figure 5)."""

    name = "topas-reuse"

    def __init__(
        self,
        beta: float = 1.0,
        max_enumerated: int = DEFAULT_M,
        max_changes: int = DEFAULT_K,
        exact_limit: int = 64,
        scenarios: int = 64,
        *,
        M: int | None = None,  # noqa: N803
        K: int | None = None,  # noqa: N803
    ) -> None:
        super().__init__(beta, 0.0, max_enumerated, max_changes, exact_limit, scenarios, M=M, K=K)


class TopasAging(Topas):
    """TOPAS without reuse: beta = 0 (paper, figure 5)."""

    name = "topas-aging"

    def __init__(
        self,
        rho: float = 0.5,
        max_enumerated: int = DEFAULT_M,
        max_changes: int = DEFAULT_K,
        exact_limit: int = 64,
        scenarios: int = 64,
        *,
        M: int | None = None,  # noqa: N803
        K: int | None = None,  # noqa: N803
    ) -> None:
        super().__init__(0.0, rho, max_enumerated, max_changes, exact_limit, scenarios, M=M, K=K)


def _with_point_totals(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot with the mean of each stage's totals in the place of the totals."""
    service = tuple(
        msgspec.structs.replace(entry, stage_totals_s=(sum(entry.stage_totals_s) / len(entry.stage_totals_s),))
        if entry.stage_totals_s
        else entry
        for entry in snapshot.service
    )
    return msgspec.structs.replace(snapshot, service=service)


def _either(long: str, value: Any, default: int, short: str, short_value: Any) -> Any:
    """Returns the value of a parameter with two names.

    Raises:
        InputError: Both are given and differ.
    """
    if short_value is None:
        return value
    if value not in (default, short_value):
        raise InputError(f"parameter {short}: {short_value!r} contradicts {long}={value!r}, the same parameter")
    return short_value
