"""What the picture shows: who ran when, and what lay in memory, over the recent past of one episode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.world import LOG_ADMIT, LOG_FINISH, LOG_PREEMPT, LOG_RETRACT, World

__all__ = ["Span", "memory_since", "spans_since"]

_ENDS = (LOG_FINISH, LOG_PREEMPT, LOG_RETRACT)


class Span(NamedTuple):
    """One attempt of a request on the engine, seconds; `whole` is False where it was preempted or retracted."""

    task: int
    agent: int
    start: float
    end: float
    whole: bool


def spans_since(world: World, start: float) -> list[Span]:
    """Returns the attempts that ended after `start` or still run, from a world with the full record (`record=2`)."""
    now = float(world.clock["time"][0])
    lines = world.log[: int(world.clock["n_log"][0])]
    lines = lines[np.isin(lines["kind"], (LOG_ADMIT, *_ENDS))]
    stage_rows = np.searchsorted(world.trace.first_call, lines["call"], side="right") - 1
    tasks = np.searchsorted(world.trace.stage0, stage_rows, side="right") - 1
    running: dict[int, tuple[int, int, float]] = {}
    spans: list[Span] = []
    columns = (lines["time"], lines["kind"], lines["agent"], lines["call"], tasks)
    for time, kind, agent, call, task in zip(*(column.tolist() for column in columns), strict=True):
        if kind == LOG_ADMIT:
            running[call] = (task, agent, time)
        elif call in running:
            spans.append(Span(*running.pop(call), time, kind == LOG_FINISH))
    spans += [Span(*begun, now, True) for begun in running.values()]
    return [span for span in spans if span.end >= start]


def memory_since(world: World, start: float) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns what lay in memory from `start` on, and at the last sample before it.

    Args:
        world: A world with the full record (`record=2`).
        start: Simulated time, seconds.

    Returns:
        Times of the samples, float64 (n,), seconds; tokens of each agent's prefix and of its running requests, int64
        (n, n_agents, 2); tokens of history leaves, int64 (n,).
    """
    n = int(world.clock["n_samples"][0])
    times = world.samples["time"][:n]
    first = max(int(np.searchsorted(times, start)) - 1, 0)
    return times[first:n], world.sample_tokens[first:n], world.samples["leaves"][first:n]
