"""Replay of recorded output lengths: a request ends after `stop_after` tokens, whatever it asked for.

A trace says how long each output was and, apart from that, how much the client had asked for. A scheduler must only see
the second. This hook ends a request as a stop token would, in every server that `topas bench` starts, SGLang's own
policies included. It is a plugin of its own and off unless `TOPAS_REPLAY_LENGTHS` is set.
"""

import os
from collections.abc import Callable
from typing import Any

__all__ = ["VARIABLE", "register_lengths"]

VARIABLE = "TOPAS_REPLAY_LENGTHS"
_TARGET = "sglang.srt.managers.schedule_batch.Req.update_finish_state"


def register_lengths() -> None:
    """Registers the hook; SGLang's plugin entry point."""
    if not os.environ.get(VARIABLE):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _end_in_time, HookType.AROUND)


def _end_in_time(original: Callable[..., Any], req: Any, *args: Any, **kwargs: Any) -> Any:
    params = req.sampling_params.custom_params
    if isinstance(params, dict) and not req.finished() and req.to_finish is None:
        stop = params.get("stop_after")
        if isinstance(stop, int) and len(req.output_ids) >= stop:
            from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN

            req.to_finish = FINISH_MATCHED_TOKEN(matched=int(req.output_ids[-1]))
    return original(req, *args, **kwargs)
