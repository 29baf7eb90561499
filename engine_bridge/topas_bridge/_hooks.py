"""Our functions around SGLang's methods. Each one calls the original, with or without a bridge."""

import logging
from collections.abc import Callable
from typing import Any

from topas_bridge._bridge import Bridge
from topas_bridge._config import config_from_environment
from topas_bridge._start import make_bridge
from topas_bridge._state import bridge_state, obey

__all__ = ["HOOKS", "bridge_of", "bridges"]

logger = logging.getLogger(__name__)
_ATTRIBUTE = "topas_bridge"
_bridges: list[Bridge] = []  # one a process; SchedulePolicy does not know its scheduler


def bridge_of(scheduler: Any) -> Bridge | None:
    """Returns the bridge of a scheduler, None while it starts or where there is none."""
    return getattr(scheduler, _ATTRIBUTE, None)


def bridges() -> list[Bridge]:
    """Returns the bridges of this process."""
    return list(_bridges)


def _start(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(scheduler, *args, **kwargs)
    config = config_from_environment()
    if config is not None:
        bridge = make_bridge(scheduler, config)
        setattr(scheduler, _ATTRIBUTE, bridge)
        _bridges.append(bridge)
    return result


def _prefill(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    bridge = bridge_of(scheduler)
    if bridge is None:
        return original(scheduler, *args, **kwargs)
    return bridge.admission_pass(original, args, kwargs)


def _order(original: Callable[..., Any], policy: Any, waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
    result = original(policy, waiting_queue, *args, **kwargs)
    for bridge in _bridges:
        try:
            bridge.order(waiting_queue)
        except Exception as error:  # noqa: BLE001 (no fault of ours may stop the engine)
            bridge.fall_back("bridge", error)
    return result


def _decode(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    bridge = bridge_of(scheduler)
    if bridge is not None:
        try:
            bridge.before_decode(batch)
        except Exception as error:  # noqa: BLE001 (no fault of ours may stop the engine)
            bridge.fall_back("bridge", error)
    return original(scheduler, batch, *args, **kwargs)


def _release_first(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around a flush or a pause: a lock must not outlive the cache that it was taken on."""
    bridge = bridge_of(scheduler)
    if bridge is not None:
        bridge.release()
    return original(scheduler, *args, **kwargs)


def _state(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    output = original(scheduler, *args, **kwargs)
    bridge = bridge_of(scheduler)
    if bridge is not None:
        try:
            output.internal_state["topas"] = bridge_state(bridge)
        except Exception:
            logger.exception("topas: could not tell the bridge's state")
    return output


def _command(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    bridge = bridge_of(scheduler)
    if bridge is None or not any(name.startswith("topas_") for name in request.server_args):
        return original(scheduler, request, *args, **kwargs)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    ours = {name: value for name, value in request.server_args.items() if name.startswith("topas_")}
    others = {name: value for name, value in request.server_args.items() if name not in ours}
    try:
        done = obey(bridge, ours)
    except Exception as error:  # noqa: BLE001 (no fault of ours may stop the engine)
        bridge.fall_back("bridge", error)
        done = False
    if not done:
        return _output(SetInternalStateReqOutput, updated=False)
    if not others:
        return _output(SetInternalStateReqOutput, updated=True)
    request.server_args = others
    return original(scheduler, request, *args, **kwargs)


def _output(kind: Any, *, updated: bool) -> Any:
    try:
        return kind(updated=updated)
    except TypeError:  # before 0.5.18 the answer also held the arguments
        return kind(updated=updated, server_args={})


HOOKS: dict[str, Callable[..., Any]] = {
    "start": _start,
    "prefill": _prefill,
    "decode": _decode,
    "flush": _release_first,
    "pause": _release_first,
    "state": _state,
    "command": _command,
    "order": _order,
}
