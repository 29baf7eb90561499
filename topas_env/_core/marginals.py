"""What completing a ready request takes off its task's longest remaining path, outcome by outcome.

A task's longest remaining path starts at a *source*: an unfinished stage whose predecessors are all done. A waiting
stage has an unfinished predecessor, and a hypothetical completion changes the residual of a ready stage only, which
is a source. So with `down` the longest path behind a source, drawn once, the path of one joint outcome is

    max over sources s of (Z_s or max(Z_s - D_s, 0)) + down_s

and all marginals of a task follow from two numbers a source and outcome. They depend on which of its sources are taken
as completed and on nothing else, and the search asks for the same ones again and again: they are kept in a hash table.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.jit import i64, inner, lean

__all__ = ["GROUP", "READY_INFO", "Paths", "complete", "first_marginals", "mix", "new_paths", "restart"]

NOISE = 1e-9  # a marginal below this share of the path is zero
_PROBES = 8
_OPEN, _TAKEN = 0, 1

READY_INFO = np.dtype(
    [
        ("reserve", "i8"),  # d_r of SNAPSHOT.md
        ("group", "i8"),  # position of its task in `Estimates.groups`
        ("row", "i8"),  # of its stage in `Paths.table`
        ("following", "i8"),  # next ready request of the same task, or -1
        ("agent", "i8"),  # position among the active agents
        ("place", "i8"),  # in the order of task arrival, ready_s and id
        ("weight", "f8"),  # g of the task (paper, equation 12)
        ("marginal", "f8"),  # progress with no hypothetical completion, seconds
        ("worth", "f8"),  # weight * marginal / reserve, what GreedyPack goes by
        # While one prefix set is packed:
        ("tied", "i8"),  # position in `Problem.tied`, or -1
        ("picked", "i8"),  # the pass in which it was picked last
        ("now_marginal", "f8"),  # as `marginal`, after the completions of this pass
        ("now_worth", "f8"),
    ],
    align=True,
)

GROUP = np.dtype(
    [
        ("task", "i8"),  # row in `View.tasks`
        ("first", "i8"),  # first ready request
        ("last", "i8"),
        ("row0", "i8"),  # first of its sources' rows
        ("n_rows", "i8"),
        ("outcomes", "i8"),  # joint outcomes, equally likely
        ("older", "i8"),  # the last distinct state before it, of the same workflow
        ("path", "f8"),  # expected longest remaining path, seconds
        # While one prefix set is packed:
        ("present", "i8"),  # the last pass in which the task had a request in the batch
        ("waits", "i8"),  # the last pass in which it waited for an incoming prefix
        ("done", "i8"),  # hash of the completed sources
        ("pass_of_done", "i8"),
    ],
    align=True,
)

SOURCE = np.dtype(
    [
        ("taken", "i8"),  # 1: completed, while marginals are worked out
        ("first", "f8"),  # marginal with no hypothetical completion, seconds
    ],
    align=True,
)

MEMO = np.dtype([("row0", "i8"), ("done", "i8")], align=True)  # row0: -1 where the slot is free


class Paths(NamedTuple):
    """The paths from every source of the tasks with a ready request, and the marginals worked out so far.

    Attributes:
        table: float64 (2, rows, outcomes), the path from a source that is not completed, and from one that is.
        sources: SOURCE (rows,).
        work: float64 (3, outcomes), scratch.
        memo: MEMO (a power of two,), what the rows of `gains` are.
        gains: float64 (slots + 1, most sources of a task), marginals; the last row is of what found no free slot.
    """

    table: NDArray[np.float64]
    sources: NDArray[Any]
    work: NDArray[np.float64]
    memo: NDArray[Any]
    gains: NDArray[np.float64]


@inner
def new_paths(rows: int, widest: int, outcomes: int, n_ready: int) -> Paths:
    """Returns room for `rows` sources, at most `widest` of one task, and a table for the marginals."""
    slots = 64
    while slots < 4 * n_ready and slots < 4096:
        slots *= 2
    memo = np.empty(slots, MEMO)
    for i in range(slots):
        memo[i].row0 = -1
    return Paths(
        np.empty((2, rows, outcomes)),
        np.zeros(rows, SOURCE),
        np.empty((3, outcomes)),
        memo,
        np.empty((slots + 1, widest)),
    )


@lean
def mix(x: int) -> int:
    """Returns 63 bits that look random (the finisher of splitmix64)."""
    y = np.uint64(x + 1) * np.uint64(0x9E3779B97F4A7C15)
    y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64((y ^ (y >> np.uint64(31))) >> np.uint64(1)))


@lean
def _work_out(p: Paths, group: Any, slot: int) -> float:
    """Writes the marginals of a task's sources into a row of `gains`, `SOURCE.taken` being completed.

    The loops go along the outcomes, source by source, so that the compiler makes vector instructions of them.

    Returns:
        The expected longest remaining path after these completions, seconds.
    """
    row0 = group.row0
    outcomes = group.outcomes
    best = p.work[0]
    second = p.work[1]
    at = p.work[2]
    for k in range(outcomes):
        best[k] = -1.0
        second[k] = 0.0
        at[k] = 0.0
    for r in range(group.n_rows):
        paths = p.table[p.sources[row0 + r].taken, row0 + r]
        source = float(r)
        for k in range(outcomes):
            x = paths[k]
            y = best[k]
            z = second[k]
            bigger = x > y
            second[k] = (y if y > 0.0 else 0.0) if bigger else (x if x > z else z)  # noqa: FURB136
            at[k] = source if bigger else at[k]
            best[k] = x if bigger else y
    gains = p.gains[slot]
    for r in range(group.n_rows):
        gains[r] = 0.0
    path = 0.0
    for k in range(outcomes):
        path += best[k]
        r = i64(at[k])
        if not p.sources[row0 + r].taken:
            gains[r] += best[k] - max(second[k], p.table[_TAKEN, row0 + r, k])
    for r in range(group.n_rows):
        gains[r] = gains[r] / outcomes if gains[r] >= NOISE * path else 0.0
    return path / outcomes


@lean
def first_marginals(p: Paths, group: Any) -> None:
    """Fills `SOURCE.first` and the path of a task, with no hypothetical completion."""
    slot = p.memo.shape[0]
    group.path = _work_out(p, group, slot)
    for r in range(group.n_rows):
        p.sources[group.row0 + r].first = p.gains[slot, r]


@lean
def _find(p: Paths, ready: NDArray[Any], group: Any, turn: int) -> int:
    """Returns the row of `gains` for the completions of this pass."""
    slots = p.memo.shape[0]
    at = (group.done ^ (group.row0 * 0x9E3779B1)) & (slots - 1)
    found = slots
    for _ in range(_PROBES):
        slot = p.memo[at]
        if slot.row0 == group.row0 and slot.done == group.done:
            return int(at)
        if slot.row0 < 0:
            slot.row0 = group.row0
            slot.done = group.done
            found = at
            break
        at = (at + 1) & (slots - 1)
    i = group.first
    while i >= 0:
        p.sources[ready[i].row].taken = _TAKEN if ready[i].picked == turn else _OPEN
        i = ready[i].following
    _work_out(p, group, found)
    i = group.first
    while i >= 0:
        p.sources[ready[i].row].taken = _OPEN
        i = ready[i].following
    return int(found)


@lean
def complete(p: Paths, ready: NDArray[Any], groups: NDArray[Any], i: int, turn: int) -> None:
    """Takes ready request i as completed in pass `turn`: brings the marginals and worths of its task up to date."""
    ready[i].picked = turn
    group = groups[ready[i].group]
    if group.first == group.last:
        return
    if group.pass_of_done != turn:
        group.pass_of_done = turn
        group.done = 0
    group.done ^= mix(ready[i].row)
    slot = _find(p, ready, groups[ready[i].group], turn)
    j = group.first
    while j >= 0:
        r = ready[j]
        r.now_marginal = p.gains[slot, r.row - group.row0]
        r.now_worth = r.weight * r.now_marginal / r.reserve
        j = r.following


@lean
def restart(ready: NDArray[Any], group: Any) -> None:
    """Takes back every completion of a task, for a new pass."""
    j = group.first
    while j >= 0:
        ready[j].now_marginal = ready[j].marginal
        ready[j].now_worth = ready[j].worth
        j = ready[j].following
