"""`topas policies` and `topas workloads`."""

from typing import Annotated

import typer

__all__ = ["POLICIES_EXAMPLE", "WORKLOADS_EXAMPLE", "policies", "workloads"]

POLICIES_EXAMPLE = "topas policies --plugin my_policy.py"
WORKLOADS_EXAMPLE = "topas workloads --profile qwen2.5-32b-a100-80g-mem0.90 --json"


def policies(
    plugin: Annotated[
        list[str] | None, typer.Option(help="Python file or module that registers policies; repeat it for several.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """List the policies: those that ship, those of other installed packages, those of plugins."""
    import msgspec
    from rich.table import Table

    from topas_env.cli._table import console
    from topas_env.compare import import_plugins
    from topas_policies import policy_info, policy_names

    import_plugins(plugin or [])
    found = [policy_info(name) for name in policy_names()]
    if json:
        for info in found:
            typer.echo(msgspec.json.encode(info).decode())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("parameters")
    for info in found:
        parameters = ", ".join(
            key if default is None else f"{key}={default}" for key, default in info.parameters.items()
        )
        table.add_row(info.name, info.summary, parameters)
    console().print(table)


def workloads(
    profile: Annotated[str, typer.Option(help="Engine profile, a name or a file.")] = "qwen2.5-32b-a100-80g",
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """List the workloads that ship, with their utilisation of an engine at their own arrival rate."""
    import msgspec
    from rich.table import Table

    from topas_env._profile import load_profile
    from topas_env._utilisation import utilisation
    from topas_env._workload import load_workload, workload_names
    from topas_env.cli._table import console
    from topas_env.workloads import plan

    engine = load_profile(profile)
    rows = []
    for name in workload_names():
        drawn = load_workload(name, seed=0)
        workflow = drawn.workflows[0]
        rows.append(
            {
                "workload": name,
                "stages": len(workflow.stages),
                "agents": len(workflow.agents),
                "prefix_tokens": sum(agent.prefix_tokens for agent in workflow.agents),
                "arrival_rate": drawn.arrival_rate,
                "utilisation": round(utilisation(drawn, engine), 3),
                "profile": engine.name,
                "about": plan(name).about,
            }
        )
    if json:
        for row in rows:
            typer.echo(msgspec.json.encode(row).decode())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("workload", style="bold", no_wrap=True)
    for heading in ("stages", "agents", "prefix tokens", "task/s", "utilisation"):
        table.add_column(heading, justify="right")
    table.add_column("what it is")
    for row in rows:
        cells = [row["workload"], row["stages"], row["agents"], f"{row['prefix_tokens']:,}", f"{row['arrival_rate']:g}"]
        table.add_row(*map(str, cells), f"{row['utilisation']:.2f}", str(row["about"]))
    out = console()
    out.print(table)
    out.print(f"\nUtilisation on {engine.name} at each workload's own rate.", style="dim")
