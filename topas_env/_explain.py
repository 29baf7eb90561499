"""What `topas explain` says of one snapshot: the decision, its TOPAS score, and the best states beside it."""

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env._decision import check_decision
from topas_env._score import ScoreTerms, policy_params
from topas_env._snapshot import Snapshot

if TYPE_CHECKING:
    from topas_env._core.choice import Choice
    from topas_env._pack import Packed

__all__ = ["Candidate", "Explanation", "explain"]

SHOWN = 5
LISTED = 1024  # candidate states that are made to find the best ones


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A post-decision state and its TOPAS score.

    Attributes:
        prefixes: Agents resident after it.
        requests: Ids running after it, as in a decision.
        admitted: Those newly admitted, in order.
        preempted: Running requests that it preempts, in snapshot order.
        terms_s: Terms of the score, seconds.
        score_s: The score, seconds.
        chosen: Whether it is what the policy decided.
    """

    prefixes: tuple[str, ...]
    requests: tuple[str, ...]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    terms_s: ScoreTerms
    score_s: float
    chosen: bool = False


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy's decision on a snapshot.

    Attributes:
        policy: Name of the policy.
        state: What it decided.
        candidates: How many distinct states were scored to decide: 1 for a policy that scores none but its own.
        decision_ms: How long the decision took, milliseconds.
        best: The states with the largest scores among those that TOPAS may choose (no idle prefix, within its cap on
            changes), the best first; what the baselines would do is among them.
    """

    policy: str
    state: Candidate
    candidates: int
    decision_ms: float
    best: tuple[Candidate, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns what `topas explain --json` prints (SNAPSHOT.md, section Explain)."""
        terms = self.state.terms_s
        return {
            "policy": self.policy,
            "prefixes": list(self.state.prefixes),
            "requests": list(self.state.requests),
            "admitted": list(self.state.admitted),
            "preempted": list(self.state.preempted),
            "terms_s": {name: getattr(terms, name) for name in ("admit", "move", "redo", "revoke", "reuse")},
            "score_s": self.state.score_s,
            "candidates": self.candidates,
            "decision_ms": self.decision_ms,
        }


def explain(snapshot: Snapshot, policy: Any) -> Explanation:
    """Asks a policy for its decision and scores it beside the other candidate states.

    Args:
        snapshot: The snapshot.
        policy: Any policy. Where it has a `beta` or a `rho`, the scores are by its own, else by TOPAS's defaults.

    Returns:
        The decision and its score.

    Raises:
        InfeasibleDecision: The policy decided against SNAPSHOT.md.
    """
    from topas_env._core.decide import decide, score
    from topas_env._pack import pack

    compiled = getattr(policy, "compiled", lambda: None)()
    if compiled is not None or hasattr(policy, "decide_view"):
        policy.decide(snapshot)  # loads kernels and weights, so that the time below is that of a decision
        policy.reset()
    start = time.perf_counter()
    decision = policy.decide(snapshot)
    decision_ms = (time.perf_counter() - start) * 1e3
    check_decision(snapshot, decision)

    packed = pack(snapshot)
    params = policy_params(policy) if compiled is None else compiled[1]
    choice = packed.choice(decision)
    score(packed.v, params, choice)
    state = _candidate(packed, choice, chosen=True)

    scored = min(1, len(snapshot.requests))
    if compiled is not None:
        again = packed.room()
        decide(packed.v, compiled[0], params, again)
        scored = max(scored, int(again.info["n_scored"][0]))

    return Explanation(policy.name, state, scored, decision_ms, _best(packed, params, state))


def _best(packed: "Packed", params: NDArray[Any], chosen: Candidate) -> tuple[Candidate, ...]:
    """Returns the best states that TOPAS may choose, each in one order of admission."""
    from topas_env._core.candidates import candidates
    from topas_env._core.choice import Choice, empty_candidates

    listed = empty_candidates(LISTED, len(packed.agent_names), len(packed.request_ids))
    candidates(packed.v, params, listed)
    agents = packed.v.requests["agent"]
    cap = int(params["max_changes"][0])
    best: dict[tuple[tuple[str, ...], frozenset[str]], Candidate] = {}
    order = sorted(range(int(listed.count[0])), key=lambda i: -listed.info["total"][i])
    for i in order:
        info = listed.info[i]
        rows = listed.rows[i, : int(info["n_kept"]) + int(info["n_admitted"])]
        idle = np.count_nonzero(listed.prefixes[i]) > np.unique(agents[rows]).size
        capped = cap and max(int(info["n_admitted"]), int(info["n_preempted"])) > cap
        if idle or capped:
            continue
        one = Choice(listed.info[i : i + 1], listed.prefixes[i], listed.rows[i], listed.credits[i])
        state = _candidate(packed, one, chosen=False)
        key = (state.prefixes, frozenset(state.requests))
        if key == (chosen.prefixes, frozenset(chosen.requests)):
            state = chosen
        best.setdefault(key, state)
        if len(best) == SHOWN:
            break
    return tuple(best.values())


def _candidate(packed: "Packed", choice: "Choice", *, chosen: bool) -> Candidate:
    """Returns a scored choice by names."""
    info = choice.info[0]
    decision = packed.decision(choice)
    kept = decision.requests[: int(info["n_kept"])]
    n_running = int(packed.v.head["n_running"][0])
    running = [packed.request_ids[row] for row in packed.v.running[:n_running].tolist()]
    terms = ScoreTerms(*(float(info[name]) for name in ("admit", "move", "redo", "revoke", "reuse")))
    return Candidate(
        prefixes=decision.prefixes,
        requests=decision.requests,
        admitted=decision.requests[len(kept) :],
        preempted=tuple(name for name in running if name not in kept),
        terms_s=terms,
        score_s=terms.total,
        chosen=chosen,
    )
