"""A post-decision state as arrays, one (`Choice`) or many (`Candidates`), and the parameters of the score."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHOICE", "PARAMS", "Candidates", "Choice", "default_params", "empty_candidates", "empty_choice"]

PARAMS = np.dtype(
    [
        ("beta", "f8"),  # strength of reuse (paper, equation 11)
        ("rho", "f8"),  # strength of aging (equation 12)
        ("max_enumerated", "i8"),  # M: at most so many active agents are enumerated
        ("max_changes", "i8"),  # K: cap on admissions and on preemptions, 0 for none
        ("exact_limit", "i8"),  # at most so many joint outcomes are enumerated
        ("scenarios", "i8"),  # joint draws beyond that
        ("gate", "i8"),  # gated-lpm: backlog of last stages that opens the gate
        ("short", "i8"),  # environment: 1 for the short list of candidates
    ],
    align=True,
)

CHOICE = np.dtype(
    [
        ("n_kept", "i8"),
        ("n_admitted", "i8"),
        ("n_preempted", "i8"),
        ("n_scored", "i8"),  # distinct states that were scored to find it
        ("origin", "i8"),  # candidates: bit c set where policy of code c would choose it
        ("admit", "f8"),
        ("move", "f8"),
        ("redo", "f8"),
        ("revoke", "f8"),
        ("reuse", "f8"),
        ("total", "f8"),
    ],
    align=True,
)


class Choice(NamedTuple):
    """One post-decision state.

    Attributes:
        info: CHOICE (1,).
        prefixes: uint8 (n_agents,), 1 for each agent resident after the decision.
        rows: int64 (capacity of requests,), rows of `View.requests`: the n_kept that go on, in snapshot order, then the
            n_admitted in order of admission.
        credits: float64 (capacity of requests,), the summand of `admit` of each of `rows`; 0 for those that go on.
    """

    info: NDArray[Any]
    prefixes: NDArray[np.uint8]
    rows: NDArray[np.int64]
    credits: NDArray[np.float64]


class Candidates(NamedTuple):
    """A list of distinct post-decision states, as arrays with a leading dimension; index 0 is the incumbent.

    Attributes:
        count: int64 (1,), how many there are.
        info: CHOICE (max_candidates + 1,); the last row of each array is scratch.
        prefixes: uint8 (max_candidates + 1, n_agents).
        rows: int64 (max_candidates + 1, capacity of requests).
        credits: float64 (max_candidates + 1, capacity of requests).
    """

    count: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    info: NDArray[Any]
    prefixes: NDArray[np.uint8]
    rows: NDArray[np.int64]
    credits: NDArray[np.float64]


def default_params(**overrides: float) -> NDArray[Any]:
    """Returns PARAMS (1,) with the defaults of SCHEDULER.md section 6 and the given overrides."""
    params = np.zeros(1, PARAMS)
    params[0] = (1.0, 0.5, 6, 0, 64, 64, 4, 0)
    for name, value in overrides.items():
        params[name] = value
    return params


def empty_choice(agents: int, requests: int) -> Choice:
    """Returns a choice with room for the given numbers of agents and request rows."""
    return Choice(np.zeros(1, CHOICE), np.zeros(agents, np.uint8), np.zeros(requests, np.int64), np.zeros(requests))


def empty_candidates(limit: int, agents: int, requests: int) -> Candidates:
    """Returns room for `limit` candidates, and one more row in which the kernel tries states out."""
    limit += 1
    return Candidates(
        np.zeros(1, np.int64),
        np.zeros(limit, CHOICE),
        np.zeros((limit, agents), np.uint8),
        np.zeros((limit, requests), np.int64),
        np.zeros((limit, requests)),
    )
