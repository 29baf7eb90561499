"""What an engine's log says about its speed, and a profile as fast as the engine was in some stretch of it."""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_bridge._steps import EngineLog
from topas_env import EngineProfile

__all__ = ["Iterations", "at_speed", "iterations", "predicted_s", "profile_of_stretch"]

_TIMES = (
    *("prefill_base_s", "prefill_s_per_token", "prefill_s_per_kv_token", "step_base_s"),
    *("step_s_per_request", "step_s_per_kv_token"),
)


class Iterations(NamedTuple):
    """Batches after which the engine went on at once, so that the next start tells how long they took; arrays (n,).

    Attributes:
        start_s: When each started.
        seconds: Until the next one started.
        prefill: Whether it prefills, bool.
        requests: Requests in it.
        tokens: Tokens that it computes.
        context: Tokens of context of its requests.
        reserve_ratio: Share of the tokens to come that the engine reserved.
    """

    start_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    prefill: NDArray[np.bool_]
    requests: NDArray[np.float64]
    tokens: NDArray[np.float64]
    context: NDArray[np.float64]
    reserve_ratio: NDArray[np.float64]


def iterations(log: EngineLog) -> Iterations:
    """Returns the batches of a log without those before a pause in which the engine had no request.

    Where launching a batch takes less than half of the time to the next one (a GPU with overlap scheduling), SGLang
    waits for its result in the round after it: that round's time is then taken as the batch's.
    """
    present: set[str] = set()
    idle: list[float] = []
    for entry in sorted(log.requests, key=lambda entry: entry.time_s):
        if entry.end:
            present.discard(entry.id)
        else:
            present.add(entry.id)
        if not present:
            idle.append(entry.time_s)
    starts = np.array([step.start_s for step in log.steps], float)
    pauses = np.searchsorted(np.array(idle), starts)
    rounds = np.diff(starts)
    keep = pauses[1:] == pauses[:-1]
    late = bool(keep.any()) and float(np.sum([s.forward_s for s in log.steps[:-1]] * keep)) < 0.5 * rounds[keep].sum()
    if late:
        keep = np.append(keep[:-1] & keep[1:], False)
        rounds = np.append(rounds[1:], np.inf)
    steps = [step for step, kept in zip(log.steps[:-1], keep, strict=True) if kept]
    columns = [(s.requests, s.tokens, s.context, s.reserve_ratio) for s in steps]
    table = np.array(columns, float).reshape(-1, 4)
    prefill = np.array([step.prefill for step in steps], bool)
    return Iterations(starts[:-1][keep], rounds[keep], prefill, *table.T)


def predicted_s(profile: EngineProfile, ran: Iterations) -> NDArray[np.float64]:
    """Returns how long each batch takes by the profile, seconds, float64 (n_batches,)."""
    prefill = profile.prefill_base_s + profile.prefill_s_per_token * ran.tokens
    prefill = prefill + profile.prefill_s_per_kv_token * ran.context
    step = profile.step_base_s + profile.step_s_per_request * ran.requests
    return np.where(ran.prefill, prefill, step + profile.step_s_per_kv_token * ran.context)


def at_speed(profile: EngineProfile, factor: float) -> EngineProfile:
    """Returns the profile with all times of batches and steps `factor` times as long."""
    return msgspec.structs.replace(profile, **{name: getattr(profile, name) * factor for name in _TIMES})


def profile_of_stretch(profile: EngineProfile, ran: Iterations, begin_s: float, end_s: float) -> EngineProfile:
    """Returns the profile with all speeds changed by one factor, as in a stretch of the log.

    A constant reservation becomes the mean one of the stretch.

    Args:
        profile: The engine's profile.
        ran: Its batches.
        begin_s: Start of the stretch.
        end_s: Its end.
    """
    inside = (ran.start_s >= begin_s) & (ran.start_s < end_s)
    if not inside.any():
        return profile
    factor = float(ran.seconds[inside].sum() / predicted_s(profile, ran)[inside].sum())
    profile = at_speed(profile, factor)
    if profile.reserve_decay_steps:
        return profile
    return msgspec.structs.replace(profile, reserve_ratio=float(ran.reserve_ratio[inside].mean()))
