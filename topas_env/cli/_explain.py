"""`topas explain`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

if TYPE_CHECKING:
    from topas_env._explain import Explanation

__all__ = ["EXAMPLE", "explain"]

EXAMPLE = "topas explain snapshot.json --policy topas --set beta=2"


def explain(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="JSON file, .jsonl file, or - for standard input.")
    ],
    policy: Annotated[str, typer.Option("--policy", "-p", help="Name or module:Class.")] = "topas",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Parameter of the policy; repeat it for several."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: one object for each snapshot.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="The input holds one snapshot a line.")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option(help="Python file or module that registers policies; repeat it for several.")
    ] = None,
) -> None:
    """Show what a policy decides on a snapshot, and the TOPAS score of that state and of the best others.

    A file of one snapshot a line is answered line by line; a bad line is answered with its error, and the exit
    status is then 2.
    """
    from topas_env._errors import InputError
    from topas_env.cli._options import parse_assignments
    from topas_env.compare import import_plugins
    from topas_policies import make_policy

    import_plugins(plugin or [])
    chosen = make_policy(policy, **parse_assignments(set_ or []))
    name = "standard input" if snapshot == "-" else snapshot
    if not (jsonl or snapshot.endswith(".jsonl")):
        with _open(snapshot) as stream:
            _show(_answer(stream.read(), chosen, name), json=json)
        return
    bad = 0
    with _open(snapshot) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                answer = _answer(line, chosen, f"{name}:{number}")
            except InputError as error:
                bad += 1
                _show_error(str(error), number, json=json)
                continue
            _show(answer, json=json, line=number)
    if bad:
        raise typer.Exit(2)


@contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    """Opens the file, or standard input for "-"; what cannot be read is bad input."""
    from topas_env._errors import InputError

    try:
        if name == "-":
            yield sys.stdin.buffer
        else:
            with Path(name).open("rb") as stream:
                yield stream
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{name}: {error.strerror}") from None


def _answer(text: bytes, policy: Any, name: str) -> "Explanation":
    from topas_env._errors import InfeasibleDecision, InputError
    from topas_env._explain import explain as explain_decision
    from topas_env._snapshot import Snapshot

    snapshot = Snapshot.from_json(text, source=name)
    try:
        return explain_decision(snapshot, policy)
    except InfeasibleDecision as error:
        raise InputError(f"{name}: policy {policy.name}: {error}") from error


def _show_error(message: str, line: int, *, json: bool) -> None:
    import msgspec

    if json:
        typer.echo(msgspec.json.encode({"error": message, "line": line}).decode())
    else:
        typer.echo(f"topas: {message}", err=True)


def _show(answer: "Explanation", *, json: bool, line: int | None = None) -> None:
    import msgspec

    if json:
        typer.echo(msgspec.json.encode(answer.to_dict()).decode())
    else:
        _print(answer, line)


_TERMS = ("admit", "move", "redo", "revoke", "reuse")


def _print(answer: "Explanation", line: int | None) -> None:
    from rich import box
    from rich.table import Table

    from topas_env.cli._table import console, number

    found = answer.to_dict()
    out = console()
    out.print(f"[bold]{found['policy']}[/bold]" + (f" on line {line}" if line is not None else ""))
    for label, key in (
        ("prefixes kept or made resident", "prefixes"),
        ("requests that run", "requests"),
        ("newly admitted", "admitted"),
        ("preempted", "preempted"),
    ):
        out.print(f"  {label}: {', '.join(found[key]) or '-'}", soft_wrap=True)
    terms = found["terms_s"]
    signs = dict(zip(_TERMS, "+---+", strict=True))
    parts = "  ".join(f"{signs[term]} {term} {_seconds(terms[term])}" for term in _TERMS)
    out.print(f"  score {_seconds(found['score_s'])} s  =  {parts}", soft_wrap=True)
    states = f"{found['candidates']} states scored, " if found["candidates"] > 1 else ""
    out.print(f"  {states}decided in {number(found['decision_ms'], 2)} ms")
    title = "The states that TOPAS scores best"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("score s", justify="right")
    for term in _TERMS:
        table.add_column(term, justify="right")
    table.add_column("prefixes")
    table.add_column("admits")
    table.add_column("preempts")
    for best in answer.best:
        table.add_row(
            _seconds(best.score_s),
            *(_seconds(float(getattr(best.terms_s, term))) for term in _TERMS),
            ", ".join(best.prefixes) or "-",
            _few(best.admitted),
            _few(best.preempted),
            style="bold" if best.chosen else "",
        )
    out.print(table)


def _seconds(value: float) -> str:
    return f"{value:,.3f}" if value else "0"


def _few(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4]) or "-"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
