"""`topas serve`."""

from typing import Annotated

import typer

__all__ = ["EXAMPLE", "serve"]

EXAMPLE = "topas serve --policy topas -- --model-path Qwen/Qwen2.5-7B-Instruct --port 30000"


def serve(
    flags: Annotated[list[str] | None, typer.Argument(metavar="-- FLAGS", help="SGLang's own flags.")] = None,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Name of the policy.")] = "topas",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Parameter of the policy; repeatable.")
    ] = None,
    plugin: Annotated[list[str] | None, typer.Option(help="Module that registers policies; repeatable.")] = None,
    profile: Annotated[str | None, typer.Option(help="Engine profile (name or file) with the costs to tell.")] = None,
    workflows: Annotated[str | None, typer.Option(help="JSON file with the workflows that requests name.")] = None,
    reserve_ratio: Annotated[float | None, typer.Option(help="Share of max_new_tokens to reserve.")] = None,
    reserve_cap: Annotated[int | None, typer.Option(help="Most tokens that the ratio applies to.")] = None,
    budget_ms: Annotated[float, typer.Option(help="Most time of one decision.")] = 100.0,
    hold_s: Annotated[float, typer.Option(help="No request is held longer than this.")] = 120.0,
    evict: Annotated[str, typer.Option(help="lazy, or forced where the Python radix core runs.")] = "lazy",
    shadow: Annotated[bool, typer.Option("--shadow", help="Decide and log, change nothing.")] = False,
    dump_dir: Annotated[str | None, typer.Option(help="Folder for snapshots and the decision log.")] = None,
    log_decisions: Annotated[bool, typer.Option("--log-decisions", help="Write each decision to the folder.")] = False,
    tiny: Annotated[str | None, typer.Option(help="Serve a tiny model, made in this folder, on the CPU.")] = None,
) -> None:
    """Start SGLang's server with a policy in its scheduler: which prefixes stay and which requests run."""
    from topas_bridge._config import BridgeConfig
    from topas_bridge._serve import serve as run
    from topas_env.cli._options import parse_assignments

    config = BridgeConfig(
        policy=policy,
        options=parse_assignments(set_ or []),
        imports=tuple(plugin or ()),
        profile=profile,
        workflows=workflows,
        reserve_ratio=reserve_ratio,
        reserve_cap_tokens=reserve_cap,
        budget_ms=budget_ms,
        hold_s=hold_s,
        evict=evict,
        shadow=shadow,
        dump_dir=dump_dir,
        log_decisions=log_decisions or shadow,
    )
    run(config, flags or [], tiny=tiny)
