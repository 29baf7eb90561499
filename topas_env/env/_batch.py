"""The work behind both environments: n worlds, their traces, and one kernel call for each step."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.batch import (
    ACT,
    LOOK,
    REPORT,
    RESUME,
    START,
    Board,
    Output,
    StateOutput,
    new_desk,
    step_candidates,
    step_state,
)
from topas_env._core.choice import CHOICE, Candidates, Choice
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._core.rows import AGENT_ROW_FEATURES, REQUEST_ROW_FEATURES, VIOLATIONS
from topas_env._core.world import GROW, STUCK, World
from topas_env._errors import InputError
from topas_env._live_snapshot import LiveSnapshots
from topas_env._new_world import grow, new_world
from topas_env._pack import Packed
from topas_env._services import known_services
from topas_env._snapshot import Snapshot
from topas_env._utilisation import check_fits
from topas_env._workload import Workload
from topas_env.env._settings import Settings
from topas_env.env._stack import Stack

__all__ = ["Batch", "Info", "Observation"]

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]

_LEAST_FOR_THREADS = 16  # smaller batches are not split
_ROWS = 64  # room for unfinished tasks and requests to start with
_RECORD = {None: 0, "ansi": 0, "rgb_array": 2}


class Batch:
    """n worlds under one setting.

    Args:
        settings: The checked arguments.
        count: n.
        threads: Threads that share a step.

    Attributes:
        workloads: The workload of each world's present episode.
    """

    workloads: list[Workload]

    def __init__(self, settings: Settings, count: int, threads: int = 1) -> None:
        self.settings = settings
        self.count = count
        self._all = np.arange(count)
        self._state = settings.mode == "state"
        self._stack: Stack | None = None
        self._board: Board | None = None
        self._desk: Any = None
        self._behind: tuple[World, Board] | None = None  # what the desk was made of
        self._snapshots: dict[int, LiveSnapshots] = {}
        self.workloads = []
        self._threads = max(1, min(threads, count // _LEAST_FOR_THREADS))
        self._parts = np.array_split(self._all, self._threads)
        self._pool: ThreadPoolExecutor | None = None
        self._no_actions: tuple[NDArray[Any], ...] = (np.zeros(count, np.int64),)
        if self._state:
            rows = (settings.max_agents, settings.max_requests)
            self._no_actions = tuple(np.zeros((count, size), np.int8) for size in rows)

    # -- episodes -----------------------------------------------------------------------------------------------------

    def start(self, indices: Sequence[int], seeds: Sequence[int], output: Output | StateOutput) -> None:
        """Starts an episode in the given worlds, each with the trace of its seed, and describes the first choice."""
        s = self.settings
        for index, seed in zip(indices, seeds, strict=True):
            workload = s.source.draw(seed=seed, num_tasks=s.num_tasks, arrival_rate=s.arrival_rate)
            check_fits(workload, s.profile)
            world = new_world(
                workload,
                s.profile,
                profile_s=known_services(workload, s.profile),
                decision_s=s.decision_s,
                record=_RECORD[s.render_mode],
                tasks_capacity=self._room("tasks"),
                requests_capacity=self._room("requests"),
            )
            if self._stack is None:
                self._stack = Stack(world, self.count)
                self._board = self._new_board(world)
                self.workloads = [workload] * self.count
            self._stack.put(index, world)
            self.workloads[index] = workload
            self._snapshots.pop(index, None)
        self._fit_board()
        self._run(START, np.asarray(indices, np.int64), self._no_actions, output)

    def step(self, actions: tuple[NDArray[Any], ...], output: Output | StateOutput) -> NDArray[Any]:
        """Applies an action in every world; returns REPORT (n,), which the next call overwrites."""
        if self._threads == 1:
            self._run(ACT, self._all, actions, output)
        else:
            self._run_threads(actions, output)
        return self.report

    def look(self, output: Output | StateOutput) -> None:
        """Describes the present choice of every world again."""
        self._run(LOOK, self._all, self._no_actions, output)

    @property
    def report(self) -> NDArray[Any]:
        """REPORT (n,) of the last call."""
        assert self._board is not None
        return self._board.report

    @property
    def started(self) -> bool:
        """Whether there has been an episode."""
        return self._stack is not None

    # -- what a choice looks like -------------------------------------------------------------------------------------

    def output(self) -> Output | StateOutput:
        """Returns fresh arrays for a kernel to write to."""
        s, n = self.settings, self.count
        overall = np.empty((n, len(GLOBAL_FEATURES)), np.float32)
        if self._state:
            return StateOutput(
                overall,
                np.empty((n, 0, len(CANDIDATE_FEATURES)), np.float32),
                np.empty((n, s.max_agents, len(AGENT_ROW_FEATURES)), np.float32),
                np.empty((n, s.max_requests, len(REQUEST_ROW_FEATURES)), np.float32),
            )
        return Output(
            overall,
            np.empty((n, s.max_candidates, len(CANDIDATE_FEATURES)), np.float32),
            np.empty((n, s.max_candidates), np.float32),
            np.empty((n, s.max_candidates), np.bool_),
        )

    def observation(self, output: Output | StateOutput) -> Observation:
        """Returns the batched observation that a kernel wrote."""
        n = self.count
        if isinstance(output, StateOutput):
            return {
                "agents": output.agents.reshape(n, -1),
                "global": output.overall,
                "requests": output.requests.reshape(n, -1),
            }
        return {
            "action_mask": output.mask,
            "candidates": output.candidates.reshape(n, -1),
            "global": output.overall,
        }

    def violation(self, index: int, code: int) -> str:
        """Returns the constraint that the last action of a world broke, with both its sides (state mode)."""
        report = self.report[index]
        left, right = int(report["left"]), int(report["right"])
        if VIOLATIONS[code] != VIOLATIONS[1]:
            return f"{VIOLATIONS[code]}: {left} against {right}"
        return f"{VIOLATIONS[code]}: one needs {self.settings.topology.agent_names[right]!r}"

    def world(self, index: int) -> World:
        """Returns a world, as views."""
        assert self._stack is not None, "reset comes first"
        return self._stack.get(index)

    def packed(self, index: int) -> Packed:
        """Returns what the scheduler of a world sees, with the names behind the rows."""
        world = self.world(index)
        head, v = world.v.head[0], world.v
        ids = [""] * len(v.requests)
        for row in (*v.running[: head["n_running"]].tolist(), *v.ready[: head["n_ready"]].tolist()):
            ids[row] = self._live(index).request_id(world, row)
        return Packed(v, self.settings.topology.agent_names, ids)

    def snapshot(self, index: int) -> Snapshot:
        """Returns what the scheduler of a world sees, as a record."""
        return self._live(index).make(self.world(index))

    def _live(self, index: int) -> LiveSnapshots:
        if index not in self._snapshots:
            self._snapshots[index] = LiveSnapshots(self.workloads[index])
        return self._snapshots[index]

    def choices(self, index: int) -> list[Choice]:
        """Returns the candidates of a world, as views."""
        assert self._board is not None, "reset comes first"
        c = self._board.candidates
        return [
            Choice(c.info[index, k : k + 1], c.prefixes[index, k], c.rows[index, k], c.credits[index, k])
            for k in range(int(c.count[index, 0]))
        ]

    def rows(self, index: int) -> NDArray[np.int64]:
        """Returns the request rows behind the rows of the state mode, -1 where there is none."""
        assert self._board is not None, "reset comes first"
        order: NDArray[np.int64] = self._board.order[index]
        return order

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave out the kernels' handle and the threads; both are made again when needed."""
        return {**self.__dict__, "_desk": None, "_behind": None, "_pool": None}

    def close(self) -> None:
        """Ends the threads; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    # -- kernel calls -------------------------------------------------------------------------------------------------

    def _run(self, what: int, todo: NDArray[np.int64], actions: tuple[NDArray[Any], ...], output: Any) -> None:
        """Calls the kernel, and again for worlds that needed more room."""
        self._call(what, todo, actions, output)
        self._make_room(what, todo, actions, output)

    def _call(self, what: int, todo: NDArray[np.int64], actions: tuple[NDArray[Any], ...], output: Any) -> None:
        if self._desk is None:
            self._fit_board()
        s = self.settings
        kernel: Any = step_state if self._state else step_candidates
        kernel(self._desk, s.skip_forced, what, todo, *actions, output)

    def _run_threads(self, actions: tuple[NDArray[Any], ...], output: Any) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1, thread_name_prefix="topas-env")
        others: list[Future[None]] = [
            self._pool.submit(self._call, ACT, part, actions, output) for part in self._parts[1:]
        ]
        self._call(ACT, self._parts[0], actions, output)
        wait(others)
        for other in others:
            other.result()
        self._make_room(ACT, self._all, actions, output)

    def _make_room(self, what: int, todo: NDArray[np.int64], actions: tuple[NDArray[Any], ...], output: Any) -> None:
        assert self._stack is not None
        assert self._board is not None
        while True:
            status = self._board.report["status"][todo]
            if not (status >= GROW).any():
                return
            for index in todo[status == STUCK]:
                raise InputError(self._stuck(int(index)))
            waiting = todo[status == GROW]
            for index in waiting.tolist():
                self._stack.put(index, grow(self.world(index)))
            self._fit_board()
            self._call(START if what == START else RESUME, waiting, actions, output)

    def _room(self, name: str) -> int:
        """Returns the rows that a new world should have, so that it need not grow as others had to."""
        if self._stack is None:
            return _ROWS
        rows: int = getattr(self._stack.arrays, name).shape[1]
        return rows

    def _stuck(self, index: int) -> str:
        call = int(self.world(index).clock["stuck_call"][0])
        return (
            f"workload {self.settings.source.name}: call {call} alone does not fit kv_budget_tokens "
            f"{self.settings.profile.kv_budget_tokens} of profile {self.settings.profile.name}"
        )

    def _new_board(self, world: World) -> Board:
        s, n = self.settings, self.count
        limit = s.max_candidates + 1  # the last row is scratch
        agents, requests = len(world.v.agents), len(world.v.requests)
        return Board(
            np.zeros(n, REPORT),
            Candidates(
                np.zeros((n, 1), np.int64),
                np.zeros((n, limit), CHOICE),
                np.zeros((n, limit, agents), np.uint8),
                np.zeros((n, limit, requests), np.int64),
                np.zeros((n, limit, requests)),
            ),
            np.full((n, s.max_requests if self._state else 0), -1, np.int64),
        )

    def _fit_board(self) -> None:
        """Gives the candidates room for as many requests as the worlds have."""
        assert self._stack is not None
        assert self._board is not None
        requests = self._stack.arrays.v.requests.shape[1]
        c = self._board.candidates
        if c.rows.shape[2] < requests:
            rows = np.zeros((*c.rows.shape[:2], requests), np.int64)
            credit = np.zeros(rows.shape)
            rows[:, :, : c.rows.shape[2]] = c.rows
            credit[:, :, : c.rows.shape[2]] = c.credits
            self._board = self._board._replace(candidates=c._replace(rows=rows, credits=credit))
        if self._behind is None or self._behind[0] is not self._stack.arrays or self._behind[1] is not self._board:
            self._behind = (self._stack.arrays, self._board)
            self._desk = new_desk(*self._behind, self.settings.params)
