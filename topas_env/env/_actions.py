"""From actions to arrays, and from decisions to actions and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.layout import RUNNING, View
from topas_env._decision import Decision
from topas_env._errors import InputError
from topas_env.env._batch import Batch
from topas_env.env._settings import Settings

__all__ = ["bits_of", "decisions", "encode", "indices_of"]


def indices_of(actions: Any, count: int) -> NDArray[np.int64]:
    """Returns int64 (count,) of integer actions.

    Raises:
        InputError: They are not so many integers.
    """
    array = np.asarray(actions)
    if array.dtype.kind not in "iub" or array.size != count:
        raise InputError(f"action: expected {count} integer{'s' if count > 1 else ''}, got {actions!r}")
    return array.reshape(count).astype(np.int64, copy=False)


def bits_of(actions: Any, settings: Settings, count: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Returns int8 (count, max_agents) and (count, max_requests) of actions of the state mode.

    Raises:
        InputError: They are no dict, or lack one of the two, or it is not so many bits.
    """
    if not isinstance(actions, Mapping):
        raise InputError(f"action: expected a dict with prefixes and requests, got {type(actions).__name__}")
    return (
        _bits(actions, "prefixes", (count, settings.max_agents)),
        _bits(actions, "requests", (count, settings.max_requests)),
    )


def _bits(actions: Mapping[str, Any], name: str, shape: tuple[int, int]) -> NDArray[np.int8]:
    array = np.asarray(actions.get(name))
    if array.dtype.kind not in "iub" or array.size != shape[0] * shape[1]:
        raise InputError(f"action[{name!r}]: expected {shape[1]} bits, got {actions.get(name)!r}")
    bits = (array != 0).astype(np.int8).reshape(shape)
    return np.ascontiguousarray(bits)


def decisions(batch: Batch, index: int) -> list[Decision]:
    """Returns the candidates of a world as decisions."""
    packed = batch.packed(index)
    return [packed.decision(choice) for choice in batch.choices(index)]


def encode(batch: Batch, index: int, decision: Decision) -> Any:
    """Returns the action of a decision: an index, or bits in the state mode.

    A decision that admits the same requests as a candidate in another order is that candidate, where there is none in
    the same order.

    Raises:
        InputError: It names what is not there, or is not among the candidates.
    """
    packed = batch.packed(index)
    known = (set(packed.agent_names), {packed.request_ids[row] for row in _present(packed.v)})
    for what, names, allowed in (("prefix", decision.prefixes, known[0]), ("request", decision.requests, known[1])):
        for name in names:
            if name not in allowed:
                raise InputError(f"decision: there is no {what} {name!r} now")
    if batch.settings.mode == "state":
        return _encode_bits(batch, index, decision)
    wanted = packed.choice(decision)
    n = int(wanted.info["n_kept"][0] + wanted.info["n_admitted"][0])
    rows = wanted.rows[:n]
    fallback = -1
    for k, choice in enumerate(batch.choices(index)):
        total = int(choice.info["n_kept"][0] + choice.info["n_admitted"][0])
        if total != n or not np.array_equal(choice.prefixes, wanted.prefixes):
            continue
        if np.array_equal(choice.rows[:n], rows):
            return k
        if fallback < 0 and np.array_equal(np.sort(choice.rows[:n]), np.sort(rows)):
            fallback = k
    if fallback < 0:
        raise InputError(
            f"decision: prefixes {list(decision.prefixes)} with requests {list(decision.requests)} is none of the "
            f"{len(batch.choices(index))} candidates; action_mode 'state' takes any feasible decision"
        )
    return fallback


def _present(view: View) -> list[int]:
    """Returns the rows of running and ready requests."""
    head = view.head[0]
    rows: list[int] = view.running[: head["n_running"]].tolist() + view.ready[: head["n_ready"]].tolist()
    return rows


def _encode_bits(batch: Batch, index: int, decision: Decision) -> dict[str, NDArray[np.int8]]:
    """Returns the bits of a decision whose names are known.

    Raises:
        InputError: It moves an agent or a request that has no row.
    """
    s = batch.settings
    packed = batch.packed(index)
    prefixes, requests = np.zeros(s.max_agents, np.int8), np.zeros(s.max_requests, np.int8)
    for a, name in enumerate(packed.agent_names):
        inside = name in decision.prefixes
        if a < s.max_agents:
            prefixes[a] = inside
        elif inside != bool(packed.v.agents["resident"][a]):
            raise InputError(f"decision: prefix {name!r} has no row, max_agents is {s.max_agents}")
    place = {int(row): k for k, row in enumerate(batch.rows(index)) if row >= 0}
    for row in _present(packed.v):
        name = packed.request_ids[row]
        inside = name in decision.requests
        if row in place:
            requests[place[row]] = inside
        elif inside != bool(packed.v.requests["status"][row] == RUNNING):
            raise InputError(f"decision: request {name!r} has no row, max_requests is {s.max_requests}")
    return {"prefixes": prefixes, "requests": requests}
