"""The policy `learned`: the network's favourite among the candidate states."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_agents._architecture import NumpyScorer
from topas_agents._checkpoint import SHIPPED, Checkpoint, load_checkpoint
from topas_env import Decision, Snapshot
from topas_env._core.features import CANDIDATE_FEATURES
from topas_env._errors import InputError
from topas_policies import Policy
from topas_policies._parameters import weight

__all__ = ["LearnedPolicy", "Look", "idle"]

_PREEMPTED, _BATCH = CANDIDATE_FEATURES.index("preempted"), CANDIDATE_FEATURES.index("batch")


def idle(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns which candidates let the engine stand still though another one does not, bool (n,).

    An engine that stands still has nothing to wait for but an arrival. Plays without arrivals do not see what that
    costs, and a network can want it on engines that it was not trained on.

    Args:
        rows: Features of the candidates, float32 (n, candidate features).
    """
    still: NDArray[np.bool_] = rows[:, _BATCH] == 0.0
    return still & ~still.all()


class Look:
    """Candidates and features of scheduling points, with the room for them kept between points.

    Args:
        max_candidates: Most candidates of a point.
        candidate_list: `full` or `short`, as the environment has them.

    Attributes:
        overall: float32 (global features,) of the last point.
        rows: float32 (max_candidates, candidate features) of the last point.
        candidates: The last point's `Candidates`.
    """

    def __init__(self, max_candidates: int = 32, candidate_list: str = "full") -> None:
        # Imported here, so that numba loads with the first decision that needs it.
        from topas_env._core.candidates import candidates
        from topas_env._core.choice import default_params, empty_candidates
        from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
        from topas_env._core.short import short_list

        self._list = short_list if candidate_list == "short" else candidates
        self._empty = empty_candidates
        self._limit = max_candidates
        self.params = default_params()
        self.overall = np.zeros(len(GLOBAL_FEATURES), np.float32)
        self.rows = np.zeros((max_candidates, len(CANDIDATE_FEATURES)), np.float32)
        self.candidates = empty_candidates(max_candidates, 0, 0)

    def at(self, v: Any) -> int:
        """Fills candidates and features of the point `v` (a `View`); returns how many candidates there are."""
        from topas_env._core.features import features

        agents, requests = len(v.agents), len(v.requests)
        if self.candidates.prefixes.shape[1] != agents or self.candidates.rows.shape[1] < requests:
            self.candidates = self._empty(self._limit, agents, requests + requests // 4)
        self._list(v, self.params, self.candidates)
        features(v, self.candidates, self.overall, self.rows)
        return int(self.candidates.count[0])

    def choice(self, index: int) -> Any:
        """Returns a candidate as a `Choice` that shares its arrays."""
        from topas_env._core.choice import Choice

        c = self.candidates
        return Choice(c.info[index : index + 1], c.prefixes[index], c.rows[index], c.credits[index])


class LearnedPolicy(Policy):
    """A network that scores the candidate states, trained by `topas train`; it works for any workload and engine.

    Args:
        checkpoint: Path of a checkpoint, or one in memory; None for the one that ships.
        max_candidates: Most candidates that are looked at, from 1 to 4096.
        preempt_margin: What a state that preempts must score above the best that does not; None: it never preempts. A
            teacher that plays on without preempting finds one preemption cheap; taken at every event they thrash
            (metagpt-tl at high load: mean JCT up to 1.5 times the best baseline's), so none is the default.

    Attributes:
        checkpoint: The weights and how they came about.
        scores: Scores of the candidates of the last decision, float32.

    Raises:
        InputError: The checkpoint is missing, damaged or for other features.
    """

    name = "learned"
    manages_prefixes = True
    checkpoint: Checkpoint
    scores: NDArray[np.float32]

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint | None = None,
        max_candidates: int = 32,
        preempt_margin: float | None = None,
    ) -> None:
        whole = isinstance(max_candidates, int) and not isinstance(max_candidates, bool)
        if not whole or not 1 <= max_candidates <= 4096:
            raise InputError(f"parameter max_candidates: {max_candidates!r} is not a whole number from 1 to 4096")
        if not isinstance(checkpoint, str | Path | Checkpoint | None):
            raise InputError(f"parameter checkpoint: {checkpoint!r} is not a path")
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = load_checkpoint(SHIPPED if checkpoint is None else checkpoint)
        self.max_candidates = max_candidates
        self.preempt_margin = math.inf if preempt_margin is None else weight("preempt_margin", preempt_margin)
        self.checkpoint = checkpoint
        self.scores = np.zeros(0, np.float32)
        self._scorer = NumpyScorer(checkpoint.weights)
        self._look: Look | None = None

    def score(self, overall: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the score of each candidate less the margin, float32 (n,), -inf of those that `idle` marks.

        Args:
            overall: As `NumpyScorer` takes it.
            rows: Likewise.
        """
        scores = self._scorer(overall, rows)
        scores[idle(rows)] = -np.inf
        # The incumbent, the first one, preempts nobody: there is always a choice.
        scores[rows[:, _PREEMPTED] > 0.0] -= self.preempt_margin
        return scores

    def _best(self, v: Any) -> Any:
        """Returns the favourite candidate of a point as a `Choice` that the next decision overwrites."""
        if self._look is None:
            self._look = Look(self.max_candidates, self.checkpoint.architecture.candidate_list)
        n = self._look.at(v)
        if n == 1:
            self.scores = np.zeros(1, np.float32)
            return self._look.choice(0)
        self.scores = self.score(self._look.overall, self._look.rows[:n])
        return self._look.choice(int(self.scores.argmax()))

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the candidate state with the largest score; of equals the first."""
        from topas_env._pack import pack

        packed = pack(snapshot)
        return packed.decision(self._best(packed.v))

    def decide_view(self, v: Any, choice: Any) -> None:
        """Writes the decision at a point given as arrays, with its terms and credits.

        Args:
            v: `topas_env._core.layout.View`.
            choice: `topas_env._core.choice.Choice` with room for the view's agents and requests, written.
        """
        best = self._best(v)
        n = int(best.info["n_kept"][0] + best.info["n_admitted"][0])
        choice.info[0] = best.info[0]
        choice.prefixes[:] = best.prefixes
        choice.rows[:n] = best.rows[:n]
        choice.credits[:n] = best.credits[:n]
