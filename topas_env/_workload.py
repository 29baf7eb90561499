"""Workloads: what is served, as workflows and a trace, and where traces come from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from topas_env._core.trace import Trace
from topas_env._errors import InputError
from topas_env._trace_build import gather
from topas_env._workflow import Workflow
from topas_env.workloads import WorkloadPlan, plan, plan_names, poisson_arrivals

__all__ = ["Workload", "WorkloadSpec", "load_workload", "workload_names", "workload_spec"]


class NumberedIds(Sequence[str]):
    """Ids of drawn tasks, made when asked for: `t000000`, `t000001`, ...; their sorted order is their order.

    Args:
        count: How many there are.
    """

    __slots__ = ("_count", "_width")

    def __init__(self, count: int) -> None:
        self._count = count
        self._width = max(6, len(str(count - 1)))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [f"t{k:0{self._width}d}" for k in range(self._count)[index]]
        return f"t{range(self._count)[index]:0{self._width}d}"


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Workflows and the tasks that run them.

    Attributes:
        name: Its name, for tables.
        workflows: The workflows, indexed by `trace.workflow`. Agents of one name are one agent.
        trace: All tasks with their true lengths; policies never see it.
        task_ids: Ids of the tasks, in the trace's order.
        profile_s: Expected service of a stage, seconds, by (workflow, stage); may be empty. It should come from runs on
            other seeds.
        arrival_rate: Tasks per second of the Poisson process that the arrivals come from; None for recorded arrivals.
    """

    name: str
    workflows: tuple[Workflow, ...]
    trace: Trace
    task_ids: Sequence[str]
    profile_s: dict[tuple[str, str], float] = field(default_factory=dict)
    arrival_rate: float | None = None

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.trace.arrival)

    @property
    def num_requests(self) -> int:
        """Number of calls of all stages of all tasks."""
        return len(self.trace.calls)

    def to_file(self, path: str | Path) -> None:
        """Writes the workload as a version 1 file, as JSON lines where the name ends in `.jsonl`."""
        from topas_env._workload_file import write_workload

        write_workload(self, path)


class WorkloadSpec(ABC):
    """A source of traces. Parsing happens once; `draw` is cheap and may be called for every episode.

    Attributes:
        name: Name of the workload.
        about: One sentence for tables.
        workflows: Its workflows; the same in every draw.
        arrival_rate: Rate that is used when none is asked for, tasks per second; None where arrivals are recorded.
        num_tasks: Number of tasks when none is asked for.
    """

    name: str
    about: str
    workflows: tuple[Workflow, ...]
    arrival_rate: float | None
    num_tasks: int

    @abstractmethod
    def draw(self, *, seed: int = 0, num_tasks: int | None = None, arrival_rate: float | None = None) -> Workload:
        """Returns a workload; the same arguments give the same bytes, another rate gives the same tasks.

        Args:
            seed: At least 0.
            num_tasks: How many tasks, at least 1; the source's own number by default.
            arrival_rate: Tasks per second of a Poisson process; the source's own arrivals by default.

        Raises:
            InputError: An argument is out of range.
        """


class GeneratedSpec(WorkloadSpec):
    """Draws from a `WorkloadPlan`."""

    def __init__(self, source: WorkloadPlan) -> None:
        self._plan = source
        self.name = source.name
        self.about = source.about
        self.workflows = (source.workflow,)
        self.arrival_rate = source.arrival_rate
        self.num_tasks = source.num_tasks

    def draw(self, *, seed: int = 0, num_tasks: int | None = None, arrival_rate: float | None = None) -> Workload:
        n = self.num_tasks if num_tasks is None else num_tasks
        rate = self._plan.arrival_rate if arrival_rate is None else arrival_rate
        _check_draw(seed, n, rate)
        trace = self._plan.trace(seed=seed, num_tasks=n, arrival_rate=rate)
        return Workload(self.name, self.workflows, trace, NumberedIds(n), arrival_rate=rate)


class RecordedSpec(WorkloadSpec):
    """Draws from recorded tasks: as they are, the first of them, or all in random order with Poisson arrivals.

    With a rate (asked for, or the recording's own where it has no absolute times) tasks come in random order,
    each once before any comes again; a repetition gets the id `ID#2`, `ID#3`, ...
    """

    def __init__(self, recorded: Workload) -> None:
        self._recorded = recorded
        self.name = recorded.name
        self.about = f"{recorded.num_tasks} tasks with {recorded.num_requests} requests from a file"
        self.workflows = recorded.workflows
        self.arrival_rate = recorded.arrival_rate
        self.num_tasks = recorded.num_tasks

    def draw(self, *, seed: int = 0, num_tasks: int | None = None, arrival_rate: float | None = None) -> Workload:
        n = self.num_tasks if num_tasks is None else num_tasks
        rate = self.arrival_rate if arrival_rate is None else arrival_rate
        _check_draw(seed, n, rate)
        recorded = self._recorded
        if rate is None:
            if n > recorded.num_tasks:
                raise InputError(
                    f"num_tasks: {n} is more than the {recorded.num_tasks} recorded tasks of {self.name}; "
                    "an arrival_rate repeats them"
                )
            if n == recorded.num_tasks:
                return recorded
            picks, arrival = np.arange(n), recorded.trace.arrival[:n]
        else:
            arrivals, order = np.random.SeedSequence(seed).spawn(2)
            arrival = poisson_arrivals(arrivals, n, rate)
            rng = np.random.default_rng(order)
            rounds = -(-n // recorded.num_tasks)
            picks = np.concatenate([rng.permutation(recorded.num_tasks) for _ in range(rounds)])[:n]
        ids = _repeated_ids(recorded.task_ids, picks)
        trace = gather(recorded.trace, picks, arrival, ids, [len(w.stages) for w in self.workflows])
        return Workload(self.name, self.workflows, trace, ids, dict(recorded.profile_s), rate)


def workload_names() -> tuple[str, ...]:
    """Returns the names of the shipped workloads."""
    return plan_names()


def workload_spec(source: "str | Path | Mapping[str, Any] | Workload | WorkloadSpec") -> WorkloadSpec:
    """Returns a source of traces.

    Args:
        source: A shipped name, a path of a file or folder that `topas import` knows, the content of a version 1
            workload file as a dict, or a workload.

    Raises:
        InputError: There is no such name or file, or its content is bad.
    """
    if isinstance(source, WorkloadSpec):
        return source
    if isinstance(source, Workload):
        return RecordedSpec(source)
    if isinstance(source, Mapping):
        from topas_env._workload_file import workload_from_dict

        return RecordedSpec(workload_from_dict(source))
    if isinstance(source, str) and source in plan_names():
        return GeneratedSpec(plan(source))
    if not isinstance(source, (str, Path)):
        raise InputError(f"workload: expected a name, a path or a dict, got {type(source).__name__}")
    if not Path(source).exists():
        raise InputError(f"workload: {str(source)!r} is neither a file nor one of {', '.join(plan_names())}")
    from topas_env._import import import_workload

    return RecordedSpec(import_workload(source))


def load_workload(
    source: "str | Path | Mapping[str, Any] | Workload | WorkloadSpec",
    *,
    arrival_rate: float | None = None,
    num_tasks: int | None = None,
    seed: int = 0,
) -> Workload:
    """Loads or draws a workload.

    Args:
        source: See `workload_spec`.
        arrival_rate: Tasks per second of a Poisson process. By default the rate of a shipped workload, the
            recorded arrivals of a file.
        num_tasks: Number of tasks; 100 by default for a shipped workload, all for a file.
        seed: Of everything that is drawn.

    Raises:
        InputError: One line that says what is wrong with the source or an argument.
    """
    return workload_spec(source).draw(seed=seed, num_tasks=num_tasks, arrival_rate=arrival_rate)


def _check_draw(seed: int, num_tasks: int, arrival_rate: float | None) -> None:
    if not _is_int(seed) or seed < 0:
        raise InputError(f"seed: expected an integer of at least 0, got {seed!r}")
    if not _is_int(num_tasks) or num_tasks < 1:
        raise InputError(f"num_tasks: expected an integer of at least 1, got {num_tasks!r}")
    if arrival_rate is None:
        return
    number = isinstance(arrival_rate, (int, float, np.floating, np.integer)) and not isinstance(arrival_rate, bool)
    if not number or not math.isfinite(arrival_rate) or arrival_rate <= 0:
        raise InputError(f"arrival_rate: expected a positive number of tasks per second, got {arrival_rate!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _repeated_ids(ids: Sequence[str], picks: NDArray[np.int64]) -> list[str]:
    seen: dict[int, int] = {}
    taken = set(ids)
    result = []
    for index in picks.tolist():
        seen[index] = seen.get(index, 0) + 1
        name = ids[index] if seen[index] == 1 else f"{ids[index]}#{seen[index]}"
        while seen[index] > 1 and name in taken:
            name += "+"
        taken.add(name)
        result.append(name)
    return result
