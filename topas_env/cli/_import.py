"""`topas import`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLE", "import_"]

EXAMPLE = "topas import ../shared/data/claude-code -o sessions.jsonl"


def import_(
    source: Annotated[Path, typer.Argument(metavar="PATH", help="A file or a folder of one format.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Workload file to write; .jsonl for tasks one a line.")],
) -> None:
    """Turn recorded sessions or another workload file into a workload file, version 1."""
    from topas_env._workload import load_workload
    from topas_env.cli._table import error_console

    workload = load_workload(source)
    workload.to_file(out)
    error_console().print(
        f"{out}: {workload.num_tasks} tasks, {workload.num_requests} requests, {len(workload.workflows)} workflows",
        soft_wrap=True,
    )
