"""The table of subcommands."""

from typing import Annotated

import typer

from topas_env.cli import (
    _bench,
    _calibrate,
    _compare,
    _explain,
    _import,
    _lists,
    _report,
    _reproduce,
    _serve,
    _train,
    _tune,
)

__all__ = ["app"]

app = typer.Typer(
    name="topas",
    help="Which agent prefixes stay in the KV cache, and which requests run: compare policies and look into them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(asked: bool) -> None:
    if asked:
        from topas_env import __version__

        typer.echo(f"topas-env {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Takes what stands before a subcommand."""
    del version


def _epilog(line: str) -> str:
    return f"[dim]Example:[/dim] {line}"


app.command("compare", epilog=_epilog(_compare.EXAMPLE))(_compare.compare)
app.command("explain", epilog=_epilog(_explain.EXAMPLE))(_explain.explain)
app.command("policies", epilog=_epilog(_lists.POLICIES_EXAMPLE))(_lists.policies)
app.command("workloads", epilog=_epilog(_lists.WORKLOADS_EXAMPLE))(_lists.workloads)
app.command("report", epilog=_epilog(_report.EXAMPLE))(_report.report)
app.command("import", epilog=_epilog(_import.EXAMPLE))(_import.import_)
app.command("train", epilog=_epilog(_train.EXAMPLE))(_train.train)
app.command("tune", epilog=_epilog(_tune.EXAMPLE))(_tune.tune)
app.command("serve", epilog=_epilog(_serve.EXAMPLE))(_serve.serve)
app.command("bench", epilog=_epilog(_bench.EXAMPLE))(_bench.bench)
app.command("calibrate", epilog=_epilog(_calibrate.EXAMPLE))(_calibrate.calibrate)
app.command("reproduce", epilog=_epilog(_reproduce.EXAMPLE))(_reproduce.reproduce)
