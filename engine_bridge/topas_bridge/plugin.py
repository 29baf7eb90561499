"""The entry point that SGLang loads in each of its processes (group `sglang.srt.plugins`).

With the environment variable `TOPAS_BRIDGE` it puts a policy into the scheduler. Measurements and tests set variables
of their own, with or without a policy. Without any of them it does nothing and imports nothing of SGLang.
"""

import logging
import os
from typing import Any

from topas_bridge._config import VARIABLE
from topas_bridge._lengths import register_lengths
from topas_bridge._steps import register_steps
from topas_bridge.testing._no_gpu import register_no_gpu

__all__ = ["register", "registered"]

logger = logging.getLogger(__name__)
_state = {"loaded": False, "registered": False}


def registered() -> bool:
    """Tells whether SGLang has loaded this plugin in this process, with a policy."""
    return _state["registered"]


def register() -> None:
    """Registers the hooks that the environment asks for, and makes SGLang stop where one of them does not take hold.

    Raises:
        SystemExit: If this SGLang lacks what the bridge needs, or the settings are wrong. SGLang catches exceptions of
            plugins and goes on, and a scheduler that only has some of our hooks could lose requests.
    """
    if _state["loaded"]:
        return
    _state["loaded"] = True
    try:
        register_lengths()
        register_steps()
        register_no_gpu()
        if os.environ.get(VARIABLE):
            _register()
    except SystemExit:
        raise
    except BaseException as error:
        raise SystemExit(f"topas: the bridge cannot start: {type(error).__name__}: {error}") from error


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from topas_bridge._config import config_from_environment
    from topas_bridge._hooks import HOOKS
    from topas_bridge.engine.targets import TARGETS, missing_hooks, missing_interfaces
    from topas_bridge.engine.version import TESTED, sglang_version

    config = config_from_environment()
    assert config is not None
    version = sglang_version()
    _refuse_if(missing_interfaces(), version)
    if version not in TESTED:
        logger.warning("topas: SGLang %s has all that is needed, tested are %s", version, " and ".join(TESTED))
    for name, hook in HOOKS.items():
        HookRegistry.register(TARGETS[name], hook, HookType.AROUND)

    apply = HookRegistry.apply_hooks

    def apply_and_check(*args: Any, **kwargs: Any) -> Any:
        result = apply(*args, **kwargs)
        _refuse_if(missing_hooks(HOOKS), version)
        return result

    HookRegistry.apply_hooks = apply_and_check  # SGLang calls it once, after the last plugin
    _state["registered"] = True


def _refuse_if(missing: list[str], version: str) -> None:
    if missing:
        raise SystemExit(f"topas: SGLang {version} cannot be driven by a policy, it lacks: {'; '.join(missing)}")
