"""Runs of a world: one step for policies in Python, whole runs for compiled ones."""

import time
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from topas_env._core.apply import apply
from topas_env._core.choice import Choice
from topas_env._core.codes import CODES
from topas_env._core.decide import choose
from topas_env._core.engine import advance
from topas_env._core.jit import inner, kernel
from topas_env._core.ref import ref
from topas_env._core.world import PAUSED, POINT, World

__all__ = ["now_s", "proceed", "run"]

_TOPAS = CODES["topas"]
_CLOCK_ID = time.CLOCK_MONOTONIC
_t: Any = types
_clock_gettime = _t.ExternalFunction("clock_gettime", _t.int32(_t.int32, _t.CPointer(_t.int64)))


@inner
def now_s(buffer: NDArray[np.int64]) -> float:
    """Returns the machine's monotonic clock in seconds; `buffer` is int64 (2,)."""
    _clock_gettime(_CLOCK_ID, buffer.ctypes)
    return float(buffer[0] + 1e-9 * buffer[1])


@kernel
def proceed(w: World, choice: Choice, decided: bool) -> int:
    """Carries out a decision, where there is one, and runs to the next scheduling point.

    Returns:
        What `advance` returns.
    """
    here = ref(w)
    if decided:
        apply(here, choice)
    return int(advance(here))


@kernel
def run(w: World, code: int, params: NDArray[Any], choice: Choice, limit: int) -> int:
    """Runs a compiled policy to the end, or for `limit` decisions.

    The baselines never look at admission credits, so none are worked out for them.

    Returns:
        What `advance` returns, or PAUSED.
    """
    here = ref(w)
    buffer = np.zeros(2, np.int64)
    for _ in range(limit):
        state = advance(here)
        if state != POINT:
            return int(state)
        start = now_s(buffer)
        choose(here.v, code, params, choice)
        if code < _TOPAS:
            choice.credits[:] = 0.0
        if w.clock[0].record >= 1:
            w.wall[w.clock[0].n_decision_rows] = now_s(buffer) - start
        apply(here, choice)
    return PAUSED
