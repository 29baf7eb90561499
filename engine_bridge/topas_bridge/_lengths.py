"""Replay of recorded output lengths: a request ends after `stop_after` tokens, whatever it asked for.

A trace says how long each output was and, apart from that, how much the client had asked for. A scheduler must only see
the second. This hook ends a request as a stop token would, in every server that `topas bench` starts, SGLang's own
policies included, and keeps stop tokens that the model happens to draw from ending it before. The client does not ask
for `ignore_eos`: SGLang would reserve the whole of `max_new_tokens` for such requests. It is off unless
`TOPAS_REPLAY_LENGTHS` is set.
"""

import os
from collections.abc import Callable
from typing import Any

__all__ = ["VARIABLE", "register_lengths"]

VARIABLE = "TOPAS_REPLAY_LENGTHS"
_TARGET = "sglang.srt.managers.schedule_batch.Req.update_finish_state"


def register_lengths() -> None:
    """Registers the hook where `TOPAS_REPLAY_LENGTHS` is set."""
    if not os.environ.get(VARIABLE):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _end_in_time, HookType.AROUND)


def _end_in_time(original: Callable[..., Any], req: Any, *args: Any, **kwargs: Any) -> Any:
    params = req.sampling_params.custom_params
    stop = params.get("stop_after") if isinstance(params, dict) else None
    if not isinstance(stop, int) or req.finished():
        return original(req, *args, **kwargs)
    if req.to_finish is None and len(req.output_ids) >= stop:
        from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN

        req.to_finish = FINISH_MATCHED_TOKEN(matched=int(req.output_ids[-1]))
    sampling = req.sampling_params
    asked, sampling.ignore_eos = sampling.ignore_eos, True
    try:
        return original(req, *args, **kwargs)
    finally:
        sampling.ignore_eos = asked
