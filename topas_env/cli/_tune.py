"""`topas tune`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLE", "tune"]

EXAMPLE = "topas tune --workload dag-4,chain-3 --trials 50 --out out/tuned.json"


def tune(
    workload: Annotated[
        list[str] | None, typer.Option("--workload", "-w", help="Names or files; default: four.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Engine profile, a name or a file.")] = "qwen2.5-32b-a100-80g",
    load: Annotated[list[str] | None, typer.Option(help="Utilisations; default: 0.6,0.9.")] = None,
    host_tier: Annotated[str, typer.Option(help="all, none, or both with a comma between.")] = "all,none",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks a run.")] = 40,
    seeds: Annotated[str, typer.Option(help="Training seeds; report results on others.")] = "1000000,",
    trials: Annotated[int, typer.Option(min=1, help="Parameter sets to try.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampler.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("out/tuned.json"),
) -> None:
    """Search the weights of the score, M, K and a minimum gain for preempting: the policy `tuned`.

    The trials are kept in a journal beside the result; the same command goes on from there.
    """
    from topas_agents._tune import TuneSettings
    from topas_agents._tune import tune as search
    from topas_env.cli._options import make_folder, parse_list, parse_numbers, parse_seeds
    from topas_env.cli._progress import progress_bar
    from topas_policies._tuned import save_tuning

    plain = TuneSettings()
    settings = TuneSettings(
        workloads=tuple(parse_list(workload or [])) or plain.workloads,
        profile=profile,
        host_tiers=tuple(parse_list([host_tier])),
        loads=tuple(parse_numbers(load or [], "--load")) or plain.loads,
        num_tasks=tasks,
        seeds=tuple(parse_seeds(seeds)),
        trials=trials,
        seed=seed,
    )
    make_folder(out.parent)
    bar = progress_bar()
    task = bar.add_task("trials", total=trials)

    def update(done: int, total: int, best: float) -> None:
        bar.update(task, completed=done, total=total, description=f"best {best:.4f}")

    with bar:
        found = search(settings, out.with_suffix(".journal"), update)
    save_tuning(out, found)
    for name in found.parameters.__struct_fields__:
        typer.echo(f"{name} = {getattr(found.parameters, name):g}")
    bar.console.print(
        f"{out}: mean JCT {found.record['objective_found']:.4f} of the best baseline's on the training seeds   "
        f"use it: --set tuned.parameters={out}",
        soft_wrap=True,
    )
