"""Tables for a terminal."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from topas_env.compare import Interval, PointSummary

__all__ = ["console", "error_console", "point_table", "print_points"]


def console() -> Console:
    """Returns the console of standard output; wide where it is no terminal, so that nothing is cut off."""
    from sys import stdout

    return Console(width=None if stdout.isatty() else 200, highlight=False)


def error_console() -> Console:
    """Returns the console of standard error."""
    return Console(stderr=True, highlight=False)


def print_points(points: Sequence[PointSummary]) -> None:
    """Prints a table for each operating point."""
    out = console()
    for point in points:
        out.print(point_table(point))


def number(value: float, digits: int = 3) -> str:
    """Returns a number with about so many significant digits, without an exponent; "-" for NaN."""
    if math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 6)}f}"


def _interval(interval: Interval) -> str:
    if math.isnan(interval.low):
        return number(interval.value)
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def _percent(interval: Interval | None, *, is_best: bool) -> Text:
    if is_best:
        return Text("best baseline")
    if interval is None:
        return Text("-")
    text = f"{interval.value:+.1f}%"
    if not math.isnan(interval.low):
        text += f" [{interval.low:+.1f}, {interval.high:+.1f}]"
    return Text(text, style={-1: "bold green", 1: "red", 0: ""}[interval.sign])


def point_table(point: PointSummary) -> Group:
    """Returns the table of one operating point, with its heading and its footnote."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in (
        "mean JCT s", "against best", "p99 JCT s", "against best", "task/s", "batch", "moves", "preempted",
        "retracted", "decision ms",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    for row in point.rows:
        table.add_row(
            row.policy,
            _interval(row.mean_jct_s),
            _percent(row.mean_difference, is_best=row.policy == point.best_mean),
            _interval(row.p99_jct_s),
            _percent(row.p99_difference, is_best=row.policy == point.best_p99),
            number(row.task_throughput),
            number(row.mean_batch),
            number(row.prefix_moves),
            number(row.preemptions),
            number(row.retractions),
            number(row.decision_ms, 2),
        )
    heading = Text(point.point.label(), style="bold")
    heading.append(f"   {point.profile}, {point.tasks} tasks a run", style="not bold")
    if not math.isnan(point.utilisation):
        heading.append(f", utilisation {point.utilisation:.2f}", style="not bold")
    if not point.rows:
        return Group(heading, Text("No seed has been finished by every policy yet: run the command again."))
    note = Text(
        f"{point.rows[0].seeds} seeds, 95% bootstrap intervals; bound (critical path alone on the engine, prefixes "
        f"resident) {number(point.rows[0].bound_s)} s",
        style="dim",
    )
    return Group(heading, table, note, Text())
