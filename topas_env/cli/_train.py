"""`topas train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from topas_agents._train import Reporter

__all__ = ["EXAMPLE", "train"]

EXAMPLE = "topas train --config examples/train.toml --out out/train"


def train(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML or JSON file, as examples/train.toml.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run, instead of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the training record as JSON.")] = False,
) -> None:
    """Train the policy `learned`: imitation of a teacher, then PPO, then an evaluation on other seeds.

    A run that is interrupted goes on where it was when the same command is given again. Its folder holds checkpoints,
    labels and tensorboard's files.
    """
    import msgspec

    from topas_agents._config import config_from_file
    from topas_agents._train import train as run
    from topas_env.cli._options import make_folder
    from topas_env.cli._table import error_console

    settings = config_from_file(config)
    changed: dict[str, Any] = {}
    if out is not None:
        changed["out"] = str(out)
    if seed is not None:
        changed["seed"] = seed
    settings = msgspec.structs.replace(settings, **changed)
    make_folder(Path(settings.out))
    reporter, bar = _reporter(Path(settings.out) / "log")
    with bar:
        record = run(settings, reporter).record
    path = Path(settings.out) / "learned.safetensors"
    if json:
        typer.echo(msgspec.json.encode(record).decode())
    else:
        for score in record.scores:
            note = f"  (held out: {score.held_out})" if score.held_out else ""
            typer.echo(
                f"{score.point}: {score.relative:+.1%} [{score.relative_low:+.1%}, {score.relative_high:+.1%}] "
                f"against {score.best_baseline}{note}"
            )
    error_console().print(f"checkpoint: {path}   use it: --set learned.checkpoint={path}", soft_wrap=True)


def _reporter(folder: Path) -> "tuple[Reporter, Any]":
    """Returns a reporter that draws a bar on a terminal, and the bar."""
    from topas_agents._train import Reporter
    from topas_env.cli._progress import progress_bar

    bar = progress_bar()

    class Bars(Reporter):
        tasks: dict[str, Any]

        def progress(self, what: str, done: int, total: int) -> None:
            if what not in self.tasks:
                self.tasks[what] = bar.add_task(what, total=total)
            bar.update(self.tasks[what], completed=done, total=total)

    reporter = Bars(folder)
    reporter.tasks = {}
    return reporter, bar
