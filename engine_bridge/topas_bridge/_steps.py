"""A log of what the engine did, from inside the scheduler.

Timing an engine from outside mixes its steps with the HTTP server, the client and whatever else the machine does. With
`TOPAS_STEP_LOG` set to a path, every batch and every request of a server is written there. SGLang's loop is back to
back while it has work, so the time from one start to the next is the whole cost of a batch, the scheduler's own part
included. All times are of the monotonic clock, which the processes of one machine share.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from topas_bridge.engine.pool import reserve_ratio

__all__ = ["VARIABLE", "EngineLog", "Request", "Step", "read_log", "register_steps"]

VARIABLE = "TOPAS_STEP_LOG"
_RUN = "sglang.srt.managers.scheduler.Scheduler.run_batch"
_QUEUE = "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue"
_FINISH = "sglang.srt.managers.schedule_batch.Req.update_finish_state"
_LINES = 50  # written at once


class Step(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """One batch.

    Attributes:
        start_s: When it started.
        forward_s: Time in `run_batch`.
        prefill: Whether it prefills.
        requests: Requests in it.
        tokens: Tokens that it computes.
        context: Tokens of context of its requests, the computed ones included.
        waiting: Requests in the waiting queue.
        reserve_ratio: Share of the tokens to come that SGLang reserves for running requests.
    """

    start_s: float
    forward_s: float
    prefill: bool
    requests: int
    tokens: int
    context: int
    waiting: int
    reserve_ratio: float


class Request(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """A request that was queued or has ended.

    Attributes:
        id: Its `rid`.
        time_s: When.
        end: False: queued; True: ended.
    """

    id: str
    time_s: float
    end: bool


class EngineLog(msgspec.Struct, frozen=True):
    """What a log holds, in order.

    Attributes:
        steps: Batches.
        requests: Requests that were queued or have ended.
    """

    steps: list[Step]
    requests: list[Request]


def register_steps() -> None:
    """Registers the hooks where `TOPAS_STEP_LOG` is set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    lines: list[bytes] = []
    encoder = msgspec.json.Encoder()

    def write(entry: Step | Request) -> None:
        lines.append(encoder.encode(entry) + b"\n")
        if len(lines) >= _LINES:
            with Path(path).open("ab") as file:
                file.writelines(lines)
            lines.clear()

    def run(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        prefill = bool(batch.forward_mode.is_extend())
        lengths = batch.seq_lens_cpu
        context = int(lengths.sum()) if lengths is not None else 0
        tokens = int(batch.extend_num_tokens) if prefill else len(batch.reqs)
        size, waiting, ratio = len(batch.reqs), len(scheduler.waiting_queue), reserve_ratio(scheduler) or 0.0
        result = original(scheduler, batch, *args, **kwargs)
        write(Step(started, time.monotonic() - started, prefill, size, tokens, context, waiting, ratio))
        return result

    def queue(original: Callable[..., Any], scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        write(Request(str(req.rid), time.monotonic(), False))
        return original(scheduler, req, *args, **kwargs)

    def finish(original: Callable[..., Any], req: Any, *args: Any, **kwargs: Any) -> Any:
        before = req.finished()
        result = original(req, *args, **kwargs)
        if req.finished() and not before:
            write(Request(str(req.rid), time.monotonic(), True))
        return result

    HookRegistry.register(_RUN, run, HookType.AROUND)
    HookRegistry.register(_QUEUE, queue, HookType.AROUND)
    HookRegistry.register(_FINISH, finish, HookType.AROUND)


def read_log(path: str | Path) -> EngineLog:
    """Returns what is in a log; the newest entries may not have been written yet."""
    decoder = msgspec.json.Decoder(Step | Request)
    entries = [decoder.decode(line) for line in Path(path).read_bytes().splitlines() if line.endswith(b"]")]
    steps = [entry for entry in entries if isinstance(entry, Step)]
    return EngineLog(steps, [entry for entry in entries if isinstance(entry, Request)])
