"""`topas serve`: SGLang's own server, with a policy inside its scheduler."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from topas_bridge._config import BridgeConfig, config_to_environment
from topas_env._errors import InputError

__all__ = ["ENGINE_POLICIES", "PLUGIN", "check_installed", "names_model", "serve", "serve_environment", "tiny_setup"]

PLUGIN = "topas"
ENGINE_POLICIES = {"sglang-fcfs": ("--schedule-policy", "fcfs"), "sglang-lpm": ("--schedule-policy", "lpm")}
"""SGLang alone, without the plugin, with its own schedule policies: the flags for each."""


def check_installed(command: str, *modules: str) -> None:
    """Refuses a command whose packages this environment lacks.

    Args:
        command: Its name, for the message.
        *modules: Top-level modules that it imports.

    Raises:
        InputError: One is not there.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{command}: not installed in this environment: {', '.join(missing)} (docs/bridge.md, Install)"
        )


def names_model(flags: Sequence[str]) -> bool:
    """Returns whether SGLang's flags say which model is served."""
    return any(flag.split("=")[0] in ("--model-path", "--model") for flag in flags)


def serve_environment(config: BridgeConfig) -> dict[str, str]:
    """Returns the variables with which SGLang's processes run the policy, after checking that they will.

    There are none for SGLang alone.

    Raises:
        InputError: Without SGLang, without our plugin's entry point, or with an unknown policy.
    """
    config.check()
    if importlib.util.find_spec("sglang") is None:
        raise InputError("topas serve: SGLang is not installed in this environment (docs/bridge.md says how)")
    from topas_bridge._start import make_bridge_policy
    from topas_bridge.engine.version import OLDEST, sglang_version, version_tuple

    version = sglang_version()
    if version_tuple(version) < OLDEST:
        raise InputError(f"topas serve: SGLang {version} is too old, {'.'.join(map(str, OLDEST))} or newer is needed")
    if not any(point.name == PLUGIN for point in entry_points(group="sglang.srt.plugins")):
        raise InputError("topas serve: this package is not installed here, so SGLang cannot find it (pip install -e .)")
    make_bridge_policy(config)
    if config.policy in ENGINE_POLICIES:
        if config.shadow:
            raise InputError(f"topas serve: --shadow: {config.policy} is SGLang without the plugin; name a policy")
        return {}
    variables = config_to_environment(config)
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN not in [name.strip() for name in allowed.split(",")]:
        variables["SGLANG_PLUGINS"] = f"{allowed},{PLUGIN}"
    return variables


def tiny_setup(folder: str) -> tuple[list[str], dict[str, str]]:
    """Returns the flags and variables for the tiny model on this CPU, which is written to `folder` first."""
    from topas_bridge.testing import make_tiny_checkpoint, tiny_environment, tiny_flags

    return tiny_flags(make_tiny_checkpoint(folder)), tiny_environment()


def serve(config: BridgeConfig, flags: Sequence[str], *, tiny: str | None = None) -> None:
    """Becomes SGLang's server; does not return.

    Args:
        config: The bridge's settings.
        flags: SGLang's own flags, handed on unchanged.
        tiny: Folder for the tiny model, to serve it on this CPU; None to serve what the flags say.

    Raises:
        InputError: If the policy could not run; see `serve_environment`.
    """
    variables = serve_environment(config)
    more: list[str] = []
    if tiny is not None:
        more, tiny_variables = tiny_setup(tiny)
        path = [tiny_variables.pop("PYTHONPATH"), os.environ.get("PYTHONPATH", "")]
        variables |= tiny_variables | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    elif not names_model(flags):
        raise InputError("topas serve: give SGLang's flags after --, at least --model-path")
    command = [sys.executable, "-m", "sglang.launch_server", *more, *flags, *ENGINE_POLICIES.get(config.policy, ())]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, {**os.environ, **variables})  # noqa: S606 (a server of our own interpreter)
