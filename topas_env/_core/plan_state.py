"""Arrays of the planner: the scenarios that it draws, the state that every play starts from, the world it plays in."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Candidates, Choice, empty_candidates, empty_choice
from topas_env._core.layout import (
    AGENT,
    HEAD,
    HISTORY_LIMIT,
    REQUEST,
    TASK,
    TASK_STAGE,
    View,
)
from topas_env._core.trace import CALL
from topas_env._core.world import (
    AGENT_STATE,
    CALL_RESULT,
    CLOCK,
    DECISION,
    EVENT,
    ITL_BINS,
    LOG,
    PHYSICS,
    REQUEST_STATE,
    SAMPLE,
    STAGE_STATE,
    TASK_STATE,
)

__all__ = ["GUESS", "MOST_CALLS", "PLAN", "REPORT", "Board", "Planner", "empty_planner", "fits"]

MOST_CALLS = 16  # calls that a stage is planned with at most

PLAN = np.dtype(
    [
        ("rollouts", "i8"),  # plays of one decision, at most
        ("scenarios", "i8"),  # scenarios that the list of plays may use
        ("seed", "i8"),
        ("counter", "i8"),  # goes up with every decision
        ("horizon", "f8"),  # a play stops so many seconds from now
        ("tail", "f8"),  # weight of squared JCTs over the age scale
        ("arrivals", "i8"),  # future tasks drawn, at most
        ("counted", "i8"),  # the first so many of them count as present ones do
        ("tool", "f8"),  # guess of a tool wait, seconds
        ("budget", "f8"),  # seconds of wall time, infinity for none
        ("physics", "i8"),  # 1: `Planner.physics` holds the engine; 0: guess it from the view
        ("preempt", "i8"),  # states that preempt: 0 none of them, 1 those that a TOPAS variant chose, 2 all
        ("idle", "i8"),  # 1: states that keep idle prefixes are tried as well
        ("finalists", "i8"),  # plays that go on to further scenarios
        ("listed", "i8"),  # states of the environment's list
        ("parts", "i8"),  # code of the base policy that makes parts, where the best one is not the planner's own
        ("second", "i8"),  # base policies, the best first, that play the other states on
        ("lose", "f8"),  # a play is given up once it is so far behind the best one, as a share of that one's cost
        ("least", "i8"),  # a stage is known once so many of it are finished, or by its profile; 0: at once
        ("fallback", "i8"),  # code of the policy that is followed where most ready requests are of unknown stages
        ("margin", "f8"),  # share by which a state has to beat the best base policy's own choice
    ],
    align=True,
)

REPORT = np.dtype(
    [
        ("plays", "i8"),
        ("candidates", "i8"),
        ("chosen", "i8"),
        ("base", "i8"),  # code of the base policy behind the best play
        ("cost", "f8"),  # expected cost of the chosen candidate, seconds
        ("first", "f8"),  # of the best base policy's own choice in the scenario of means
    ],
    align=True,
)

GUESS = np.dtype(
    [
        ("n_out", "i8"),  # observed output lengths, ascending in the stage's row of `outs`
        ("suffix", "i8"),
        ("max_new", "i8"),
        ("calls", "f8"),  # calls of a stage on average
        ("call_s", "f8"),  # service of one call, NaN where none was seen
    ],
    align=True,
)


class Board(NamedTuple):
    """The mutable part of a planner's world; one copy is played on, another is what plays start from."""

    head: NDArray[Any]
    shown_agents: NDArray[Any]
    shown_tasks: NDArray[Any]
    shown_stages: NDArray[Any]
    shown_requests: NDArray[Any]
    running: NDArray[np.int64]
    ready: NDArray[np.int64]
    live: NDArray[np.int64]
    clock: NDArray[Any]
    agents: NDArray[Any]
    tasks: NDArray[Any]
    stages: NDArray[Any]
    requests: NDArray[Any]
    events: NDArray[Any]
    free_tasks: NDArray[np.int64]
    free_requests: NDArray[np.int64]


class Planner(NamedTuple):
    """Everything that planning needs, allocated once.

    Attributes:
        work: The board that is played on.
        start: The board at the decision.
        physics: PHYSICS (1,), what the planner believes of the engine.
        guess: GUESS (n_stages,).
        outs: int64 (n_stages, HISTORY_LIMIT), observed outputs, ascending.
        arrival: float64 (scenarios, tasks), a scenario's tasks: the present ones, then those to come.
        workflow: int32 (scenarios, tasks).
        stage0: int64 (scenarios, tasks).
        rank: int64 (tasks,).
        first_call: int64 (scenarios, rows + 1).
        calls: CALL (scenarios, rows * 4).
        outputs: int64 (scenarios, requests), sampled output of present requests.
        n_tasks: int64 (scenarios,).
        results: CALL_RESULT, scratch of the engine, never read.
        jct: float64 (tasks,).
        itl, decisions, wall, log, samples, sample_tokens, task_totals: scratch of the engine, never read.
        cands: The list of candidates.
        choice: What the base policy decides.
        cost: float64 (candidates, bases, scenarios), NaN where it was not played.
        report: REPORT (1,).
        mean: float64 (n_stages,), expected service of each stage.
        path: float64 (n_stages,), that of the longest path from it to a sink.
        allowed: uint8 (n_agents,), scratch: whose requests may be admitted.
        pace: float64 (2, tasks + 1), cost so far when so many tasks were done: of the best play, of the present one.
    """

    work: Board
    start: Board
    physics: NDArray[Any]
    guess: NDArray[Any]
    outs: NDArray[np.int64]
    arrival: NDArray[np.float64]
    workflow: NDArray[np.int64]
    stage0: NDArray[np.int64]
    rank: NDArray[np.int64]
    first_call: NDArray[np.int64]
    calls: NDArray[Any]
    outputs: NDArray[np.int64]
    n_tasks: NDArray[np.int64]
    results: NDArray[Any]
    jct: NDArray[np.float64]
    itl: NDArray[np.int64]
    decisions: NDArray[Any]
    wall: NDArray[np.float64]
    log: NDArray[Any]
    samples: NDArray[Any]
    sample_tokens: NDArray[np.int64]
    task_totals: NDArray[np.float64]
    cands: Candidates
    choice: Choice
    cost: NDArray[np.float64]
    report: NDArray[Any]
    mean: NDArray[np.float64]
    path: NDArray[np.float64]
    allowed: NDArray[np.uint8]
    pace: NDArray[np.float64]


def _board(agents: int, tasks: int, depth: int, requests: int) -> Board:
    return Board(
        np.zeros(1, HEAD),
        np.zeros(agents, AGENT),
        np.zeros(tasks, TASK),
        np.zeros((tasks, depth), TASK_STAGE),
        np.zeros(requests, REQUEST),
        np.zeros(requests, np.int64),
        np.zeros(requests, np.int64),
        np.zeros(tasks, np.int64),
        np.zeros(1, CLOCK),
        np.zeros(agents, AGENT_STATE),
        np.zeros(tasks, TASK_STATE),
        np.zeros((tasks, depth), STAGE_STATE),
        np.zeros(requests, REQUEST_STATE),
        np.zeros(tasks + requests, EVENT),
        np.zeros(tasks, np.int64),
        np.zeros(requests, np.int64),
    )


def fits(q: Planner, v: View, *, candidates: int = 0, arrivals: int = 0) -> bool:
    """Returns whether room that was made for an earlier view is large enough for this one."""
    return (
        q.cands.prefixes.shape[1] == len(v.agents)
        and len(q.guess) == len(v.stages)
        and q.start.stages.shape[1] == v.task_stages.shape[1]
        and len(q.start.tasks) > len(v.tasks) + arrivals
        and q.cands.rows.shape[1] >= len(v.requests)
        and q.cands.info.shape[0] > candidates
    )


def empty_planner(v: View, *, scenarios: int, candidates: int, bases: int, arrivals: int) -> Planner:
    """Returns room to plan on views with arrays of these sizes."""
    depth = v.task_stages.shape[1]
    tasks = len(v.tasks) + arrivals + 1  # the engine wants a free row also where none will be needed
    requests = len(v.requests) + tasks * depth
    rows = tasks * depth
    agents = len(v.agents)
    return Planner(
        work=_board(agents, tasks, depth, requests),
        start=_board(agents, tasks, depth, requests),
        physics=np.zeros(1, PHYSICS),
        guess=np.zeros(len(v.stages), GUESS),
        outs=np.zeros((len(v.stages), HISTORY_LIMIT), np.int64),
        arrival=np.zeros((scenarios, tasks)),
        workflow=np.zeros((scenarios, tasks), np.int64),
        stage0=np.zeros((scenarios, tasks), np.int64),
        rank=np.zeros(tasks, np.int64),
        first_call=np.zeros((scenarios, rows + 1), np.int64),
        calls=np.zeros((scenarios, 4 * rows), CALL),
        outputs=np.zeros((scenarios, requests), np.int64),
        n_tasks=np.zeros(scenarios, np.int64),
        results=np.zeros(4 * rows, CALL_RESULT),
        jct=np.zeros(tasks),
        itl=np.zeros(ITL_BINS, np.int64),
        decisions=np.zeros(0, DECISION),
        wall=np.zeros(0),
        log=np.zeros(0, LOG),
        samples=np.zeros(0, SAMPLE),
        sample_tokens=np.zeros((0, agents, 2), np.int64),
        task_totals=np.zeros(HISTORY_LIMIT),
        cands=empty_candidates(candidates, agents, len(v.requests)),
        choice=empty_choice(agents, requests),
        cost=np.zeros((candidates + 1, bases, scenarios)),
        report=np.zeros(1, REPORT),
        mean=np.zeros(len(v.stages)),
        path=np.zeros(len(v.stages)),
        allowed=np.ones(agents, np.uint8),
        pace=np.zeros((2, tasks + 1)),
    )
