"""The methods of SGLang that the bridge wraps, and the proof that each wrapper is really in place.

SGLang only logs a hook whose target does not exist, and goes on. A scheduler without one of our hooks would hold
requests and never give them back, so every process checks all of them after SGLang has applied its hooks.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from topas_bridge.engine.version import OLDEST, sglang_version, version_tuple

__all__ = ["TARGETS", "missing_hooks", "missing_interfaces", "unsupported_modes"]

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
TARGETS = {
    "start": _SCHEDULER + "__init__",
    "prefill": _SCHEDULER + "get_new_batch_prefill",
    "decode": _SCHEDULER + "update_running_batch",
    "flush": _SCHEDULER + "flush_cache",
    "pause": _SCHEDULER + "pause_generation",
    "state": _SCHEDULER + "get_internal_state",
    "command": _SCHEDULER + "set_internal_state",
    "order": "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority",
}

_PARAMETERS = {
    "prefill": ("self", "running_batch"),
    "decode": ("self", "batch"),
    "order": ("self", "waiting_queue"),
}

_NEEDED = {
    "sglang.srt.managers.scheduler.Scheduler": ("_add_request_to_queue",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch": (
        *("release_req", "filter_batch", "new_tokens_required_next_decode"),
    ),
    "sglang.srt.managers.schedule_batch.Req": ("finished", "reset_for_retract"),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache": (
        *("match_prefix", "inc_lock_ref", "dec_lock_ref", "evictable_size", "protected_size"),
    ),
    "sglang.srt.mem_cache.radix_cache": ("RadixKey",),
    "sglang.srt.mem_cache.base_prefix_cache": ("MatchPrefixParams",),
}


def missing_interfaces() -> list[str]:
    """Returns what this SGLang lacks, one phrase each; empty if the bridge can work with it."""
    if version_tuple(sglang_version()) < OLDEST:
        return [f"version {'.'.join(map(str, OLDEST))} or newer"]
    missing = []
    for name, path in TARGETS.items():
        method = _resolve(path)
        if method is None:
            missing.append(path)
        elif name in _PARAMETERS:
            found = tuple(inspect.signature(inspect.unwrap(method)).parameters)
            if found[: len(_PARAMETERS[name])] != _PARAMETERS[name]:
                missing.append(f"{path}({', '.join(_PARAMETERS[name])}), found ({', '.join(found)})")
    for owner, names in _NEEDED.items():
        missing += [f"{owner}.{name}" for name in names if _resolve(f"{owner}.{name}") is None]
    return missing


def missing_hooks(hooks: dict[str, Callable[..., Any]]) -> list[str]:
    """Returns the targets whose method does not lead to our hook.

    Args:
        hooks: Our functions by the names of `TARGETS`.
    """
    return [TARGETS[name] for name, hook in hooks.items() if not _leads_to(_resolve(TARGETS[name]), hook)]


def unsupported_modes(scheduler: Any) -> list[str]:
    """Returns the modes of a started scheduler in which a policy cannot drive it, one phrase each."""
    args = scheduler.server_args
    found = [
        f"--{name.replace('_', '-')} {getattr(args, name)} (each rank would decide for itself; run replicas)"
        for name in ("tp_size", "pp_size")
        if (getattr(args, name, 1) or 1) > 1
    ]
    if getattr(args, "enable_dp_attention", False):
        found.append("--enable-dp-attention")
    if getattr(args, "disaggregation_mode", "null") != "null":
        found.append(f"--disaggregation-mode {args.disaggregation_mode}")
    if getattr(args, "disable_radix_cache", False):
        found.append("--disable-radix-cache (there are no prefixes to keep)")
    if getattr(args, "enable_priority_scheduling", False):
        found.append("--enable-priority-scheduling (it would undo the policy's order)")
    if getattr(scheduler, "dllm_config", None) is not None:
        found.append("diffusion language models")
    return found


def _resolve(path: str) -> Any:
    module, _, rest = path, "", ""
    names: list[str] = []
    while module:
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            module, _, rest = module.rpartition(".")
            names.insert(0, rest)
            continue
        for name in names:
            found = getattr(found, name, None)
        return found
    return None


def _leads_to(method: Any, hook: Callable[..., Any]) -> bool:
    """Tells whether a wrapped method calls our hook: SGLang's wrapper holds it in its closure."""
    while method is not None:
        for cell in getattr(method, "__closure__", None) or ():
            if cell.cell_contents is hook:
                return True
        method = getattr(method, "__wrapped__", None)
    return False
