"""`topas compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topas_env.cli._suite import run_suite

if TYPE_CHECKING:
    from topas_env.compare import Point, RunConfig, Scalar

__all__ = ["EXAMPLE", "compare"]

EXAMPLE = "topas compare --workload dag-4 --rate 0.05,0.10 --policy spf,lpm,topas --seeds 5 --out out/dag-4"


def compare(
    suite: Annotated[
        str | None,
        typer.Option(
            help="A fixed set of points, policies and seeds instead: standard (the leaderboard), robust, ablation."
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Name, file or folder; repeat it or put commas between. Default: dag-4."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="Name or module:Class; repeat it or put commas between. Default: all plain ones."
        ),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate", "-r", help="Tasks a second; repeat it or put commas between. Default: the workload's own."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="N for 0 to N-1, FIRST:LAST, or A,B,C. Default: 5; of a suite 5000:5020, which are held out."
        ),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks a run. Default: the workload's own; of a suite 100.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Engine profile, a name or a file. Default: qwen2.5-32b-a100-80g.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="profile.PARAMETER=VALUE (commas between values: one point for each) or POLICY.PARAMETER=VALUE.",
        ),
    ] = None,
    decision_time: Annotated[
        str | None,
        typer.Option(help="Seconds that a decision takes in simulated time, or 'measured'. Default: none."),
    ] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(help="Python file or module that registers policies; repeat it for several."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Points of a suite, as in chain-3, '*/0.95/*' or dag-4/0.5/all; repeat it or put commas between."
        ),
    ] = None,
    sessions: Annotated[Path, typer.Option(help="Recorded coding-agent sessions of the standard suite.")] = Path(
        "../shared/data/claude-code"
    ),
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many minutes, and report what is there.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the page of a suite to this Markdown file, as docs/leaderboard.md.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of results.jsonl and the report. Default: out/compare; of a suite out/suites."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Also write a Chrome/Perfetto trace of the first seed's runs to this file."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one a core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the finished runs as JSON lines, not tables.")] = False,
) -> None:
    """Run policies on the same traces, print a table, and write JSON lines and an HTML report.

    A run that is interrupted goes on where it was when the same command is given again. A suite has its own points:
    topas compare --suite standard --minutes 50 --page docs/leaderboard.md
    """
    from topas_env.cli._options import parse_list, parse_numbers, parse_seeds
    from topas_env.compare import grid, import_plugins

    plugins = list(plugin or [])
    import_plugins(plugins)
    names = parse_list(policy or [])
    if suite is not None:
        fixed = {"--workload": workload, "--rate": rate, "--profile": profile, "--decision-time": decision_time}
        _refuse({**fixed, "--trace": trace}, "with --suite, which has its own")
        _, options = _assignments(set_ or [], names or _all_policies(), profile=False)
        run_suite(
            suite, sessions=sessions, tasks=tasks, seeds=seeds, only=parse_list(only or []), policies=names,
            options=options, plugins=plugins, out=out or Path("out/suites"), page=page, jobs=jobs, minutes=minutes,
            json=json,
        )  # fmt: skip
        return
    _refuse({"--only": only, "--page": page}, "without --suite")
    names = names or _default_policies()
    overrides, options = _assignments(set_ or [], names)
    time, rates = _decision_time(decision_time), parse_numbers(rate or [], "--rate")
    workloads = parse_list(["dag-4"] if workload is None else workload)
    points = _points(workloads, rates, tasks, profile or "qwen2.5-32b-a100-80g", overrides, time)
    runs = grid(points, names, parse_seeds(seeds or "5"), options, plugins)
    _run(runs, out or Path("out/compare"), trace, jobs, minutes, json=json)


def _refuse(options: "dict[str, object]", why: str) -> None:
    """Refuses options that were given."""
    from topas_env._errors import InputError

    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}: cannot be given {why}")


def _run(
    runs: "list[RunConfig]", out: Path, trace: Path | None, jobs: int | None, minutes: float | None, *, json: bool
) -> None:
    import msgspec

    from topas_env.cli._progress import run_with_progress
    from topas_env.cli._table import error_console, print_points
    from topas_env.compare import summarise
    from topas_env.report import write_report, write_trace

    results = out / "results.jsonl"
    records = run_with_progress(runs, results, jobs, minutes)
    if json:
        for record in records:
            slim = {key: value for key, value in record.items() if key not in {"timeline", "jct_s"}}
            typer.echo(msgspec.json.encode(slim).decode())
    else:
        print_points(summarise(records))
    write_report(records, out / "report.html")
    notes = error_console()
    notes.print(f"report: {out / 'report.html'}   runs: {results}", soft_wrap=True)
    if trace is not None:
        write_trace(records, trace)
        notes.print(f"trace: {trace} (open it at ui.perfetto.dev)", soft_wrap=True)


def _default_policies() -> list[str]:
    from topas_env.compare import PAPER_BASELINES

    return [*PAPER_BASELINES, "topas"]


def _all_policies() -> list[str]:
    from topas_policies import policy_names

    return policy_names()


def _assignments(
    values: list[str], policies: list[str], *, profile: bool = True
) -> "tuple[dict[str, list[Scalar]], dict[str, dict[str, Scalar]]]":
    """Returns the values of profile parameters, and the options of each policy."""
    from topas_env._errors import InputError
    from topas_env.cli._options import parse_assignments

    overrides: dict[str, list[Scalar]] = {}
    options: dict[str, dict[str, Scalar]] = {}
    for text in values:
        ((key, _),) = parse_assignments([text]).items()
        owner, dot, name = key.rpartition(".")
        owners = ["profile", *policies] if profile else policies
        if not dot or not name or owner not in owners:
            known = ", ".join(owners)
            raise InputError(f"--set {key}: expected OWNER.PARAMETER=VALUE with an OWNER of {known}")
        known_names = overrides if owner == "profile" else options.setdefault(owner, {})
        if name in known_names:
            raise InputError(f"--set {key}: is set twice")
        raw = text.partition("=")[2]
        if owner == "profile":
            overrides[name] = [parse_assignments([f"{key}={part}"])[key] for part in raw.split(",")]
        else:
            options[owner][name] = parse_assignments([text])[key]
    return overrides, options


def _decision_time(text: str | None) -> float | str | None:
    from topas_env._errors import InputError

    if text is None or text == "measured":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e6:
        raise InputError(f"--decision-time: {text!r} is neither 'measured' nor a number of seconds")
    return value


def _points(
    workloads: list[str],
    rates: list[float],
    tasks: int | None,
    profile: str,
    overrides: "dict[str, list[Scalar]]",
    decision_time: float | str | None,
) -> "list[Point]":
    import itertools

    from topas_env._errors import InputError
    from topas_env.compare import Point

    if not workloads:
        raise InputError("--workload: none is given")
    variants = [dict(zip(overrides, values, strict=True)) for values in itertools.product(*overrides.values())]
    chosen_rates: list[float | None] = [*rates] or [None]
    return [
        Point(workload, rate, tasks, profile, variant, decision_time)
        for workload in workloads
        for variant in variants
        for rate in chosen_rates
    ]
