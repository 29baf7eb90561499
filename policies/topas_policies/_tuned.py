"""The TOPAS score with other weights, found by `topas tune`: what tuning alone gives."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_env import Decision, Snapshot
from topas_env._errors import InputError
from topas_policies._parameters import count, weight
from topas_policies._policy import Policy
from topas_policies._topas import MOST_ENUMERATED

__all__ = ["SHIPPED_TUNING", "Tuned", "TunedParameters", "Tuning", "load_tuning", "save_tuning"]

SHIPPED_TUNING = Path(__file__).parent / "tuned.json"


class TunedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of `tuned`; the defaults are those of TOPAS.

    Attributes:
        move: Weight of the time to move prefixes; that of `admit` is 1.
        redo: Weight of the output that a preemption throws away.
        revoke: Weight of the credit that a preemption takes back.
        reuse: Weight of the reuse term (the paper's beta).
        rho: Strength of aging.
        min_gain: A state that preempts must beat the best one that does not by so many `age_scale_s`.
        max_enumerated: M of the search.
        max_changes: K of the search, 0 for no cap.
    """

    move: float = 1.0
    redo: float = 1.0
    revoke: float = 1.0
    reuse: float = 1.0
    rho: float = 0.5
    min_gain: float = 0.0
    max_enumerated: int = 6
    max_changes: int = 0


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Found parameters and how they were found.

    Attributes:
        version: 1.
        parameters: The parameters.
        record: Seeds, workloads, trials and scores of the search.
    """

    version: int
    parameters: TunedParameters
    record: dict[str, Any]


class Tuned(Policy):
    """The linear TOPAS score with tuned weights and a minimum gain for preempting (`topas tune`).

    It scores the environment's candidate states, each term but `admit` times its weight. The weights that ship were
    found by Optuna on seeds of their own; `tuned.json` has the record.

    Args:
        parameters: Path of a file that `topas tune` wrote; None for the one that ships.
        max_candidates: Most candidates that are looked at.
        move: This and the others: the parameter of this name of `TunedParameters` instead of the file's.
        redo: Likewise.
        revoke: Likewise.
        reuse: Likewise.
        rho: Likewise.
        min_gain: Likewise.
        max_enumerated: Likewise.
        max_changes: Likewise.

    Raises:
        InputError: The file is damaged, or a parameter is out of its bounds.
    """

    name = "tuned"
    manages_prefixes = True

    def __init__(
        self,
        parameters: str | Path | TunedParameters | None = None,
        max_candidates: int = 48,
        *,
        move: float | None = None,
        redo: float | None = None,
        revoke: float | None = None,
        reuse: float | None = None,
        rho: float | None = None,
        min_gain: float | None = None,
        max_enumerated: int | None = None,
        max_changes: int | None = None,
    ) -> None:
        if not isinstance(parameters, str | Path | TunedParameters | None):
            raise InputError(f"parameter parameters: {parameters!r} is not a path")
        if not isinstance(parameters, TunedParameters):
            parameters = load_tuning(SHIPPED_TUNING if parameters is None else parameters).parameters
        given = {
            "move": move, "redo": redo, "revoke": revoke, "reuse": reuse, "rho": rho, "min_gain": min_gain,
            "max_enumerated": max_enumerated, "max_changes": max_changes,
        }  # fmt: skip
        overrides = {name: value for name, value in given.items() if value is not None}
        self.parameters = _checked(msgspec.structs.replace(parameters, **overrides))
        self.max_candidates = count("max_candidates", max_candidates, least=1, most=4096)
        self._candidates: Any = None
        self._params: Any = None

    def _best(self, v: Any) -> Any:
        """Returns the chosen candidate of a `View` as a `Choice` that the next decision overwrites."""
        from topas_env._core.candidates import candidates
        from topas_env._core.choice import Choice, default_params, empty_candidates

        p = self.parameters
        agents, requests = len(v.agents), len(v.requests)
        c = self._candidates
        if c is None or c.prefixes.shape[1] != agents or c.rows.shape[1] < requests:
            self._params = default_params(
                beta=1.0, rho=p.rho, max_enumerated=p.max_enumerated, max_changes=p.max_changes
            )
            c = self._candidates = empty_candidates(self.max_candidates, agents, requests + requests // 4)
        candidates(v, self._params, c)
        info = c.info[: int(c.count[0])]
        score = info["admit"] - p.move * info["move"] - p.redo * info["redo"] - p.revoke * info["revoke"]
        score += p.reuse * info["reuse"]
        calm = info["n_preempted"] == 0
        score[~calm] -= p.min_gain * float(v.head["age_scale"][0])
        if p.max_changes:
            over = np.maximum(info["n_preempted"], info["n_admitted"]) > p.max_changes
            score[over & (np.arange(len(score)) > 0)] = -np.inf
        k = int(score.argmax())
        return Choice(c.info[k : k + 1], c.prefixes[k], c.rows[k], c.credits[k])

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the candidate state with the largest weighted score; of equals the first."""
        from topas_env._pack import pack

        packed = pack(snapshot)
        return packed.decision(self._best(packed.v))

    def decide_view(self, v: Any, choice: Any) -> None:
        """Writes the decision at a point given as arrays (a `View`) into a `Choice` with room for it.

        Credits are those that the simulator and the bridge give every decision: by the default rho, not the tuned one.
        """
        from topas_env._core.choice import default_params
        from topas_env._core.decide import score

        best = self._best(v)
        n = int(best.info["n_kept"][0] + best.info["n_admitted"][0])
        choice.info[0] = best.info[0]
        choice.prefixes[:] = best.prefixes
        choice.rows[:n] = best.rows[:n]
        choice.credits[:n] = 0.0
        if best.info["n_admitted"][0]:
            score(v, default_params(), choice)


def load_tuning(path: str | Path) -> Tuning:
    """Reads a file that `topas tune` wrote.

    Raises:
        InputError: It cannot be read, or a value in it is wrong; one line names file, path and value.
    """
    try:
        tuning = msgspec.json.decode(Path(path).read_bytes(), type=Tuning)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{path}: {' '.join(str(reason).split())}") from None
    if tuning.version != 1:
        raise InputError(f"{path}: $.version: {tuning.version} is not 1")
    try:
        _checked(tuning.parameters)
    except InputError as error:
        raise InputError(f"{path}: $.parameters: {error}") from None
    return tuning


def save_tuning(path: str | Path, tuning: Tuning) -> None:
    """Writes found parameters with their record."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tuning), indent=1) + b"\n")


def _checked(parameters: TunedParameters) -> TunedParameters:
    """Returns the parameters if all are within their bounds.

    Raises:
        InputError: One is not.
    """
    for name in ("move", "redo", "revoke", "reuse", "rho", "min_gain"):
        weight(name, getattr(parameters, name))
    count("max_enumerated", parameters.max_enumerated, least=0, most=MOST_ENUMERATED)
    count("max_changes", parameters.max_changes, least=0)
    return parameters
