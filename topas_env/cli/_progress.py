"""Runs with a progress bar on a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from topas_env.cli._table import error_console
from topas_env.compare import Record, RunConfig, run_all

__all__ = ["progress_bar", "run_with_progress"]


def progress_bar(*, transient: bool = False) -> Progress:
    """Returns a bar on standard error, which draws nothing where that is no terminal.

    Args:
        transient: Whether the bar goes away at its end.
    """
    out = error_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=transient,
        disable=not out.is_terminal,
    )


def run_with_progress(
    runs: Sequence[RunConfig], path: Path, jobs: int | None, minutes: float | None = None
) -> list[Record]:
    """Makes the runs that the file does not hold yet; says on standard error how far they are.

    Raises:
        InputError: as `run_all` does.
        KeyboardInterrupt: after a line that says what was kept.
    """
    bar = progress_bar(transient=True)
    out = bar.console
    finished = 0
    task = bar.add_task("runs", total=len(runs))

    def update(done: int, total: int, run: RunConfig | None) -> None:
        nonlocal finished
        finished = done
        if run is None and done:
            out.print(f"{done} of {total} runs were finished before: {path}", soft_wrap=True)
        elif run is not None:
            bar.update(task, description=f"{run.point.label()}: {run.policy}")
        bar.update(task, completed=done)

    try:
        with bar:
            return run_all(runs, path, jobs=jobs, minutes=minutes, progress=update)
    except KeyboardInterrupt:
        out.print(
            f"{finished} of {len(runs)} runs are kept in {path}; the same command goes on from there", soft_wrap=True
        )
        raise
