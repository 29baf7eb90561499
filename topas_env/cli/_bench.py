"""`topas bench`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from topas_bridge._replay import ReplayOptions
    from topas_env import Workload

__all__ = ["EXAMPLE", "bench"]

EXAMPLE = "topas bench dag-4 --policies sglang-fcfs,sglang-lpm,topas --tiny /tmp/tiny --out runs/bench"
DEFAULT_POLICIES = "sglang-fcfs,sglang-lpm,fcfs,lpm,spf,topas"


def bench(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="Name or file.")],
    flags: Annotated[list[str] | None, typer.Argument(metavar="-- FLAGS", help="SGLang's own flags.")] = None,
    url: Annotated[str | None, typer.Option(help="Server that runs already; without it, one for each policy.")] = None,
    policies: Annotated[str, typer.Option(help="Policies, with commas between.")] = DEFAULT_POLICIES,
    api: Annotated[str, typer.Option(help="generate (SGLang), or completions (OpenAI-compatible).")] = "generate",
    model: Annotated[str, typer.Option(help="Model name for completions.")] = "default",
    api_key: Annotated[str | None, typer.Option(envvar="TOPAS_API_KEY", help="Sent as a bearer token.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", "--arrival-rate", help="Tasks a second, before --time-scale.")
    ] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", "--num-tasks", min=1, help="Tasks of a trace.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trace; the next ones follow.")] = 0,
    traces: Annotated[int, typer.Option(min=1, help="Traces for each policy.")] = 1,
    warm_up: Annotated[bool, typer.Option("--warm-up/--no-warm-up", help="Replay one more trace first.")] = True,
    prompt_scale: Annotated[float, typer.Option(help="Factor of prompt lengths.")] = 1.0,
    output_scale: Annotated[float, typer.Option(help="Factor of output lengths.")] = 1.0,
    time_scale: Annotated[float, typer.Option(help="Factor of arrival times and tool waits.")] = 1.0,
    profile: Annotated[str | None, typer.Option(help="Engine profile that policies are told.")] = None,
    reserve_ratio: Annotated[float | None, typer.Option(help="Share of max_new_tokens to reserve.")] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="TTFT and ITL need streaming.")] = True,
    fidelity: Annotated[bool, typer.Option("--fidelity", help="Compare with the simulator; needs --profile.")] = False,
    engine_core: Annotated[int | None, typer.Option(help="Core for each server's scheduler alone.")] = None,
    interleave: Annotated[bool, typer.Option("--interleave", help="Each trace on all servers in turn.")] = False,
    tiny: Annotated[str | None, typer.Option(help="Serve a tiny model, made in this folder, on the CPU.")] = None,
    out: Annotated[str, typer.Option(help="Folder of the results.")] = "runs/bench",
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Replay a workload open-loop against real servers and measure task completion times."""
    from topas_bridge._replay import ReplayOptions
    from topas_bridge._scale import scale_workload
    from topas_env import load_workload

    _check(url, api, flags or [], tiny, profile, fidelity=fidelity)

    def draw(trace_seed: int) -> "Workload":
        drawn = load_workload(workload, arrival_rate=rate, num_tasks=tasks, seed=trace_seed)
        return scale_workload(drawn, prompt=prompt_scale, output=output_scale, time=time_scale)

    options = ReplayOptions(api=api, model=model, api_key=api_key, stream=stream)
    drawn = tuple(draw(seed + i) for i in range(traces))
    if url is not None:
        from topas_bridge._bench import bench_endpoint

        lines = [bench_endpoint(url, trace, options)[0] | {"trace": i} for i, trace in enumerate(drawn)]
        _show(lines, json=json)
        return
    lines = _on_servers(
        policies,
        drawn,
        (draw(seed + traces),) if warm_up else (),
        options,
        flags or [],
        tiny,
        profile,
        reserve_ratio,
        engine_core,
        out,
        interleave=interleave,
    )
    _show(lines, json=json)
    if fidelity and profile is not None:
        _fidelity(lines, drawn, profile, out, json=json)


def _check(
    url: str | None, api: str, flags: list[str], tiny: str | None, profile: str | None, *, fidelity: bool
) -> None:
    """Refuses what cannot be run, before anything starts."""
    from topas_bridge._serve import check_installed, names_model
    from topas_env import load_profile
    from topas_env._errors import InputError

    if api not in ("generate", "completions"):
        raise InputError(f"topas bench: --api: {api!r} is neither generate nor completions")
    if url is not None:
        if fidelity or tiny is not None or flags:
            raise InputError("topas bench: --url cannot be given with --fidelity, --tiny or SGLang's flags")
    elif tiny is None and not names_model(flags):
        raise InputError("topas bench: give --url, --tiny, or SGLang's flags after --, at least --model-path")
    if profile is not None:
        load_profile(profile)
    elif fidelity:
        raise InputError("topas bench: --fidelity needs --profile, from topas calibrate on the same engine")
    check_installed("topas bench", "aiohttp", *([] if url is not None else ["sglang"]))


def _on_servers(
    policies: str,
    traces: "tuple[Workload, ...]",
    warm_up: "tuple[Workload, ...]",
    options: "ReplayOptions",
    flags: list[str],
    tiny: str | None,
    profile: str | None,
    reserve_ratio: float | None,
    engine_core: int | None,
    out: str,
    *,
    interleave: bool,
) -> list[dict[str, Any]]:
    import sys

    import msgspec

    from topas_bridge._bench import BenchPlan, bench_policies
    from topas_bridge._config import BridgeConfig
    from topas_bridge._serve import tiny_setup
    from topas_env.cli._options import make_folder, parse_list

    make_folder(Path(out))
    more, environment = tiny_setup(tiny) if tiny is not None else ([], {})
    plan = BenchPlan(
        policies=tuple(parse_list([policies])),
        traces=traces,
        warm_up=warm_up,
        flags=(*more, *flags),
        environment=environment,
        config=BridgeConfig(policy="fcfs", profile=profile, reserve_ratio=reserve_ratio),
        options=msgspec.structs.replace(options, lengths="stop_after"),
        python=sys.executable,
        engine_core=engine_core,
        interleave=interleave,
    )
    return bench_policies(plan, Path(out), lambda text: typer.echo(text, err=True))


def _show(lines: list[dict[str, Any]], *, json: bool) -> None:
    import json as encoder

    if json:
        for line in lines:
            typer.echo(encoder.dumps(line))
        return
    from topas_bridge._bench_table import bench_table

    typer.echo(bench_table(lines))


def _fidelity(
    lines: list[dict[str, Any]], traces: "tuple[Workload, ...]", profile: str, out: str, *, json: bool
) -> None:
    import msgspec

    from topas_bridge._bench_table import fidelity_table
    from topas_bridge._fidelity import fidelity
    from topas_env import load_profile

    found = fidelity(lines, traces, load_profile(profile), Path(out))
    typer.echo(msgspec.json.encode(found).decode() if json else fidelity_table(found))
