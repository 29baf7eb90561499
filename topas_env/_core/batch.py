"""Steps of the environment over many worlds: apply an action, run on to the next choice, describe it.

`Stack` holds the arrays of n worlds with a leading dimension; the kernels work on slices of it, so one compiled loop
serves a single environment (n = 1) and a batch, and two threads may each take a part of it.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref
from numpy.typing import NDArray

from topas_env._core.apply import apply
from topas_env._core.candidates import list_candidates
from topas_env._core.choice import Candidates, Choice
from topas_env._core.decide import score_given
from topas_env._core.engine import advance
from topas_env._core.features import describe
from topas_env._core.jit import kernel, lean
from topas_env._core.layout import View
from topas_env._core.ref import ref
from topas_env._core.rows import choice_from_bits, request_rows, row_features
from topas_env._core.short import list_short
from topas_env._core.trace import Trace
from topas_env._core.world import END, POINT, World

__all__ = [
    "ACT",
    "LOOK",
    "REPORT",
    "RESUME",
    "START",
    "Board",
    "Desk",
    "Output",
    "StateOutput",
    "new_desk",
    "step_candidates",
    "step_state",
]

# What a step kernel does with each world that it is given.
START = 0  # run to the first choice of an episode
ACT = 1  # apply the action, run to the next choice
RESUME = 2  # go on after the world was given more room
LOOK = 3  # describe the present choice again

REPORT = np.dtype(
    [
        ("status", "i8"),  # POINT, END, GROW or STUCK
        ("invalid", "i8"),  # 1: the action was not allowed; state mode: index into VIOLATIONS
        ("left", "i8"),  # both sides of the violated constraint
        ("right", "i8"),
        ("forced", "i8"),  # requests admitted by force in this step
        ("overflow", "i8"),  # state mode: agents and requests without a row
        ("reward", "f8"),
        ("area", "f8"),  # integral of unfinished tasks that rewards have been paid for
        ("admissions", "i8"),  # by force, that have been reported
    ],
    align=True,
)


class Board(NamedTuple):
    """What the kernels keep for each world between steps.

    Attributes:
        report: REPORT (n,).
        candidates: `Candidates` with a leading dimension n.
        order: int64 (n, max_requests), requests of the rows in the state mode.
    """

    report: NDArray[Any]
    candidates: Candidates
    order: NDArray[np.int64]


class Output(NamedTuple):
    """What a step of the candidates mode writes, fresh for each call.

    Attributes:
        overall: float32 (n, features).
        candidates: float32 (n, max_candidates, features), rows without a candidate are 0.
        mask: float32 (n, max_candidates), 1 where there is a candidate.
        allowed: bool (n, max_candidates), the same.
    """

    overall: NDArray[np.float32]
    candidates: NDArray[np.float32]
    mask: NDArray[np.float32]
    allowed: NDArray[np.bool_]


class StateOutput(NamedTuple):
    """What a step of the state mode writes, fresh for each call.

    Attributes:
        overall: float32 (n, features).
        unused: float32 (n, 0, features), in the place of the candidates.
        agents: float32 (n, max_agents, features).
        requests: float32 (n, max_requests, features).
    """

    overall: NDArray[np.float32]
    unused: NDArray[np.float32]
    agents: NDArray[np.float32]
    requests: NDArray[np.float32]


@structref.register
class _DeskType(types.StructRef):
    """Numba's type of a `Desk`."""


class Desk(structref.StructRefProxy):
    """One handle for all that the kernels keep: Python passes it in a microsecond, sixty arrays take twenty.

    Attributes:
        stack: `World` with a leading dimension n.
        board: `Board`.
        params: PARAMS (1,).
    """


_define_proxy: Any = structref.define_proxy
_define_proxy(Desk, _DeskType, ["stack", "board", "params"])


@kernel
def new_desk(stack: World, board: Board, params: NDArray[Any]) -> Any:
    """Returns a handle; it keeps the arrays that it was given."""
    return Desk(stack, board, params)  # type: ignore[no-untyped-call]


@lean
def _world(s: World, i: int) -> World:
    """Returns world i of a stack."""
    v = s.v
    t = s.trace
    return World(
        View(
            v.head[i], v.agents[i], v.workflows[i], v.stages[i], v.preds[i], v.succs[i], v.topo[i], v.stats[i],
            v.totals[i], v.ordered[i], v.calls[i], v.call_outputs[i], v.tasks[i], v.task_stages[i], v.requests[i],
            v.running[i], v.ready[i], v.live[i],
        ),
        Trace(t.arrival[i], t.workflow[i], t.rank[i], t.stage0[i], t.first_call[i], t.calls[i]),
        s.physics[i], s.clock[i], s.agents[i], s.tasks[i], s.stages[i], s.requests[i], s.events[i], s.free_tasks[i],
        s.free_requests[i], s.task_totals[i], s.base[i], s.results[i], s.jct[i], s.itl[i], s.decisions[i], s.wall[i],
        s.log[i], s.samples[i], s.sample_tokens[i],
    )  # fmt: skip


@lean
def _list(c: Candidates, i: int) -> Candidates:
    """Returns the candidates of world i."""
    return Candidates(c.count[i], c.info[i], c.prefixes[i], c.rows[i], c.credits[i])


@lean
def _nth(c: Candidates, k: int) -> Choice:
    """Returns candidate k of one world."""
    return Choice(c.info[k : k + 1], c.prefixes[k], c.rows[k], c.credits[k])


@lean
def _settle(w: World, c: Candidates, params: NDArray[Any], skip: bool) -> int:
    """Runs to the next point with a choice; with `skip`, points with one candidate are passed."""
    while True:
        status = advance(w)
        if status != POINT:
            c.count[0] = 0
            return int(status)
        if params[0].short:
            list_short(w.v, params, c)
        else:
            list_candidates(w.v, params, c)
        if not skip or c.count[0] > 1:
            return int(status)
        apply(w, _nth(c, 0))


@lean
def _account(w: World, r: Any, status: int, what: int) -> None:
    """Books the reward and the admissions by force; those before the first choice are booked with the first step."""
    c = w.clock[0]
    r.status = status
    if what == START:
        r.area = 0.0
        r.admissions = 0
        return
    if what == ACT:
        r.reward = 0.0
        r.forced = 0
    r.reward += r.area - c.area
    r.area = c.area
    r.forced += c.forced - r.admissions
    r.admissions = c.forced


@lean
def _step_candidates(
    s: World, b: Board, params: NDArray[Any], skip: bool, what: int, i: int, action: int, out: Output
) -> None:
    """Does `what` with world i in the candidates mode."""
    w = ref(_world(s, i))
    c = ref(_list(b.candidates, i))
    r = b.report[i]
    status = r.status
    if what == ACT:
        r.invalid = 0
        if status == POINT:
            if action < 0 or action >= c.count[0]:
                r.invalid = 1
                action = 0
            apply(w, _nth(c, action))
        elif action != 0:
            r.invalid = 1
    if what != LOOK:
        if what != ACT or status != END:
            status = _settle(w, c, params, skip)
        _account(w, r, status, what)
    n = max(c.count[0], 1)
    describe(w.v, c, out.overall[i], out.candidates[i])
    for j in range(out.allowed.shape[1]):
        out.allowed[i, j] = j < n
        out.mask[i, j] = 1.0 if j < n else 0.0


@kernel
def step_candidates(
    desk: Any, skip: bool, what: int, todo: NDArray[np.int64], actions: NDArray[np.int64], out: Output
) -> None:
    """Does `what` with the worlds `todo` of a stack in the candidates mode; `actions` has one for each world of it."""
    stack, board, params = desk.stack, desk.board, desk.params
    s, b = ref(stack), ref(board)
    for k in range(todo.shape[0]):
        _step_candidates(s, b, params, skip, what, todo[k], actions[todo[k]], out)


@lean
def _step_state(
    s: World, b: Board, params: NDArray[Any], skip: bool, what: int, i: int, prefix_bits: NDArray[np.int8],
    request_bits: NDArray[np.int8], sides: NDArray[np.int64], none: NDArray[np.int64], out: StateOutput,
) -> None:  # fmt: skip
    """Does `what` with world i in the state mode; `sides` is int64 (2,) of scratch, `none` is a zero."""
    w = ref(_world(s, i))
    c = ref(_list(b.candidates, i))
    r = b.report[i]
    order = b.order[i]
    status = r.status
    if what == ACT:
        r.invalid = 0
        if status == POINT:
            # The scratch row behind the candidates gives the room for the choice.
            choice = _nth(c, c.info.shape[0] - 1)
            r.invalid = choice_from_bits(w.v, order, prefix_bits[i], request_bits[i], choice, sides)
            r.left = sides[0]
            r.right = sides[1]
            if r.invalid == 0:
                score_given(w.v, params, choice)
                apply(w, choice)
            else:
                apply(w, _nth(c, 0))
    if what != LOOK:
        if what != ACT or status != END:
            status = _settle(w, c, params, skip)
        _account(w, r, status, what)
    r.overflow = request_rows(w.v, order) + max(w.v.agents.shape[0] - prefix_bits.shape[1], 0)
    describe(w.v, ref(Candidates(none, c.info, c.prefixes, c.rows, c.credits)), out.overall[i], out.unused[i])
    row_features(w.v, params, order, out.agents[i], out.requests[i])


@kernel
def step_state(
    desk: Any, skip: bool, what: int, todo: NDArray[np.int64], prefix_bits: NDArray[np.int8],
    request_bits: NDArray[np.int8], out: StateOutput,
) -> None:  # fmt: skip
    """Does `what` with the worlds `todo` of a stack in the state mode; the bits are (n, rows)."""
    stack, board, params = desk.stack, desk.board, desk.params
    s, b = ref(stack), ref(board)
    sides = np.zeros(2, np.int64)
    none = np.zeros(1, np.int64)
    for k in range(todo.shape[0]):
        _step_state(s, b, params, skip, what, todo[k], prefix_bits, request_bits, sides, none, out)
