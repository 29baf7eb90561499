"""`topas report`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLE", "report"]

EXAMPLE = "topas report out/dag-4 --out report.html"


def report(
    results: Annotated[Path, typer.Argument(help="results.jsonl of topas compare, or the folder that holds it.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file. Default: report.html beside the results."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Also write a Chrome/Perfetto trace of the first seed's runs to this file."),
    ] = None,
) -> None:
    """Render results of topas compare again, as a table and as one HTML file."""
    from topas_env.cli._table import error_console, print_points
    from topas_env.compare import read_results, summarise
    from topas_env.report import write_report, write_trace

    records = read_results(results)
    page = out or (results if results.is_dir() else results.parent) / "report.html"
    print_points(summarise(records))
    write_report(records, page)
    notes = error_console()
    notes.print(f"report: {page}", soft_wrap=True)
    if trace is not None:
        write_trace(records, trace)
        notes.print(f"trace: {trace} (open it at ui.perfetto.dev)", soft_wrap=True)
