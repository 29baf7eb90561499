"""`topas reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topas_env.compare import Record
    from topas_env.reproduce import Case

__all__ = ["EXAMPLE", "reproduce"]

EXAMPLE = "topas reproduce --out out/reproduce"


def reproduce(
    section: Annotated[
        list[str] | None,
        typer.Option("--section", "-s", help="Part to make; repeat it or put commas between. Default: all."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="N for 0 to N-1, FIRST:LAST, or A,B,C.")] = "10",
    tasks: Annotated[int, typer.Option(min=2, help="Tasks a run.")] = 200,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Begin nothing after so many minutes, and report what is there.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results and of the pages.")] = Path(
        "out/reproduce"
    ),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one a core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON lines, not as a table.")] = False,
) -> None:
    """Make the paper's tables and figures again, beside its numbers, and sweep what the paper leaves open.

    An interrupted command goes on where it was. It writes results.jsonl (the runs), reproduction.jsonl (the findings),
    reproduction.html, and reproduction.md with its figures in img.
    """
    from topas_env._errors import InputError
    from topas_env.cli._options import parse_list, parse_seeds
    from topas_env.reproduce import SECTIONS, section_cases

    names = parse_list(section or []) or list(SECTIONS)
    for name in names:
        if name not in SECTIONS:
            raise InputError(f"--section: {name!r} is none of {', '.join(SECTIONS)}")
    chosen = parse_seeds(seeds)
    cases = section_cases(names, tasks, chosen)
    if not json:
        _show_choices(len(cases))
    records = _run(cases, out / "results.jsonl", jobs, minutes)
    _report(records, chosen, tasks, len(cases) - len(records), out, json=json)


def _show_choices(runs: int) -> None:
    from rich.table import Table

    from topas_env.cli._table import error_console
    from topas_env.reproduce import CHOICES

    table = Table("open in the paper", "here", "reason", title=f"{runs:,} runs, with these choices", show_lines=True)
    for choice in CHOICES:
        table.add_row(*choice)
    error_console().print(table)


def _run(cases: "Sequence[Case]", path: Path, jobs: int | None, minutes: float | None) -> "list[Record]":
    from topas_env.cli._progress import progress_bar
    from topas_env.reproduce import run_cases

    bar = progress_bar(transient=True)
    out = bar.console
    task = bar.add_task("runs", total=len(cases))
    finished = 0

    def update(done: int, _total: int) -> None:
        nonlocal finished
        finished = done
        bar.update(task, completed=done)

    try:
        with bar:
            return run_cases(cases, path, jobs=jobs, minutes=minutes, progress=update)
    except KeyboardInterrupt:
        out.print(f"{finished} of {len(cases)} runs are kept in {path}; the same command goes on", soft_wrap=True)
        raise


def _report(records: "list[Record]", seeds: list[int], tasks: int, missing: int, out: Path, *, json: bool) -> None:
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from topas_env.cli._table import error_console
    from topas_env.reproduce import document, write_document

    made = document(records, seeds, tasks, missing)
    pages = write_document(made, out)
    if json:
        for fact in made.facts:
            typer.echo(msgspec.json.encode(fact).decode())
    else:
        table = Table("result", "paper", "here", "so", "told prefill")
        for fact in made.facts:
            if "paper" in fact:
                against = f" against {fact['against']}" if fact.get("against") else ""
                row = (fact["result"] + against, fact["paper"], fact["here"], fact.get("verdict", ""))
                table.add_row(*row, fact.get("prefill", ""))
        Console().print(table)
    notes = error_console()
    if missing:
        notes.print(f"{missing} of {missing + len(records)} runs are missing; the same command goes on", soft_wrap=True)
    notes.print("written: " + "   ".join(map(str, pages)), soft_wrap=True)
