"""The share of the tokens to come that an engine reserves, where it changes as SGLang's `new_token_ratio` does."""

from typing import Any

from numpy.typing import NDArray

from topas_env._core.jit import lean
from topas_env._core.world import World

__all__ = ["lower_reserve", "raise_reserve", "reset_reserve"]

_STEPS_AHEAD = 20  # SGLANG_RETRACT_DECODE_STEPS


@lean
def reset_reserve(head: NDArray[Any], physics: NDArray[Any]) -> None:
    """The engine is idle."""
    if physics[0].reserve_moves:
        head[0].reserve_ratio = physics[0].reserve_first


@lean
def lower_reserve(head: NDArray[Any], physics: NDArray[Any], steps: int) -> None:
    """So many decode steps went well."""
    p = physics[0]
    if p.reserve_moves:
        head[0].reserve_ratio = max(head[0].reserve_ratio - p.reserve_decay * steps, p.reserve_least)


@lean
def raise_reserve(w: World) -> None:
    """A request was retracted: the ratio becomes what those that are left have used, and some steps more."""
    if not w.physics[0].reserve_moves:
        return
    h = w.v.head[0]
    used = 0
    asked = 1
    for i in range(h.n_running):
        r = w.v.requests[w.v.running[i]]
        used += r.generated + _STEPS_AHEAD
        asked += r.max_new
    h.reserve_ratio = min(1.0, used / asked)
