"""`topas calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLE", "calibrate"]

EXAMPLE = "topas calibrate --url http://127.0.0.1:30000 -o my-engine.json"


def calibrate(
    url: Annotated[str | None, typer.Option(help="Idle SGLang server.")] = None,
    tiny: Annotated[str | None, typer.Option(help="Start a tiny model, made in this folder, instead.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", "--output", help="Profile to write.")] = Path("profile.json"),
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "measured",
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    api_key: Annotated[str | None, typer.Option(envvar="TOPAS_API_KEY", help="Sent as a bearer token.")] = None,
    flags: Annotated[list[str] | None, typer.Argument(metavar="-- FLAGS", help="SGLang's flags.")] = None,
    engine_core: Annotated[int | None, typer.Option(help="Core for the scheduler alone.")] = None,
) -> None:
    """Measure prefill and decode times of an engine and write an engine profile.

    A server that it starts itself logs its batches under a mixed load; one that runs already is timed from outside.
    """
    import msgspec

    from topas_bridge._calibrate import calibrate as measure
    from topas_bridge._calibrate_log import calibrate_logged
    from topas_bridge._serve import check_installed, names_model, tiny_setup
    from topas_env._errors import InputError
    from topas_env.cli._options import make_folder

    flags = flags or []
    local = tiny is not None or names_model(flags)
    if (url is None) == (not local):
        raise InputError("topas calibrate: give one of --url, --tiny, and SGLang's flags after -- with --model-path")
    check_installed("topas calibrate", "aiohttp", *(["sglang"] if local else []))
    make_folder(out.parent)
    if url is not None:
        profile, measured = measure(url, name=name, api_key=api_key, repeats=repeats)
        basis = f"{len(measured.prefill)} and {len(measured.steps)} points"
    else:
        more, environment = tiny_setup(tiny) if tiny is not None else ([], {})
        fit = calibrate_logged([*more, *flags], name=name, environment=environment, engine_core=engine_core)
        profile = fit.profile
        basis = f"{fit.prefills} and {fit.steps} batches, mean error {fit.prefill_error:.0%} and {fit.step_error:.0%}"
    out.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    typer.echo(
        f"{out}: prefill {profile.prefill_base_s * 1e3:.2f} ms + {profile.prefill_s_per_token * 1e6:.1f} us/token, "
        f"decode step {profile.step_base_s * 1e3:.2f} ms + {profile.step_s_per_request * 1e3:.3f} ms a request "
        f"({basis})"
    )
