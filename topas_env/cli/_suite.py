"""`topas compare --suite`: a fixed set of points, policies and seeds, and its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from topas_env.compare import Record, Scalar, Suite

__all__ = ["run_suite"]


def run_suite(
    name: str,
    *,
    sessions: Path,
    tasks: int | None,
    seeds: str | None,
    only: Sequence[str],
    policies: Sequence[str],
    options: "Mapping[str, Mapping[str, Scalar]]",
    plugins: Sequence[str],
    out: Path,
    page: Path | None,
    jobs: int | None,
    minutes: float | None,
    json: bool,
) -> None:
    """Makes the runs of a suite that are not there yet, and writes OUT/NAME.html, .md and .jsonl.

    Args:
        name: Of the suite.
        sessions: Folder of recorded sessions.
        tasks: Tasks a run.
        seeds: As the option gives them.
        only: Patterns of points.
        policies: Names.
        options: Keyword arguments by policy.
        plugins: Files or modules that register policies.
        out: Folder of results.jsonl, which all suites share, and of the pages.
        page: Markdown file to write as well.
        jobs: Processes.
        minutes: Limit of time.
        json: Whether to print the findings as JSON lines.
    """
    from topas_env.cli._options import parse_seeds
    from topas_env.cli._progress import run_with_progress
    from topas_env.cli._table import error_console
    from topas_env.compare import make_suite, ordered_runs, run_cost

    suite = make_suite(
        name,
        sessions=sessions,
        tasks=tasks,
        seeds=None if seeds is None else parse_seeds(seeds),
        only=only,
        policies=policies,
        options=options,
        plugins=plugins,
    )
    notes = error_console()
    for note in suite.notes:
        notes.print(note, soft_wrap=True)
    runs = ordered_runs(suite, run_cost)
    notes.print(
        f"{suite.name}: {len(suite.points)} points, {len(suite.entries)} policies, {len(suite.seeds)} seeds, "
        f"{len(runs):,} runs",
        soft_wrap=True,
    )
    records = run_with_progress(runs, out / "results.jsonl", jobs, minutes)
    _write(suite, records, len(runs) - len(records), out, page, json=json)


def _write(suite: "Suite", records: "list[Record]", missing: int, out: Path, page: Path | None, *, json: bool) -> None:
    import msgspec

    from topas_env.cli._table import error_console
    from topas_env.report import suite_document, write_document, write_markdown

    made = suite_document(suite, records, missing)
    written = write_document(made, out, suite.name)
    if page is not None:
        write_markdown(made, page)
        written.append(page)
    if json:
        for fact in made.facts:
            typer.echo(msgspec.json.encode(fact).decode())
    else:
        _print_tables(made.blocks)
    notes = error_console()
    if missing:
        notes.print(f"{missing:,} runs are missing; the same command goes on", soft_wrap=True)
    notes.print("written: " + "   ".join(map(str, written)), soft_wrap=True)


def _print_tables(blocks: Sequence[object]) -> None:
    """Prints the first two tables of a page: what a person wants to know first."""
    from rich import box
    from rich.table import Table as Printed

    from topas_env.cli._table import console
    from topas_env.report._document import Table

    out = console()
    for block in [block for block in blocks if isinstance(block, Table)][:2]:
        table = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
        for k, name in enumerate(block.header):
            table.add_column(_bare(name), justify="left" if k == 0 or block.words else "right")
        for row in block.rows:
            table.add_row(*map(_bare, row))
        out.print(table)


def _bare(text: str) -> str:
    return text.replace("`", "").replace("**", "")
