"""What SGLang's admission check counts, and the copies of a prefix that requests compute which were admitted too early.

A prefix is cached once the batch that computed it has been processed, which overlap scheduling does a step late. Who is
admitted before by SGLang's own pass computes it too and holds that copy until its own prefill is processed.
"""

from typing import Any

from numpy.typing import NDArray

from topas_env._core.estimates import to_come
from topas_env._core.jit import i64, lean
from topas_env._core.world import PREFILL, World

__all__ = [
    "chunk_left",
    "cost",
    "drop_copy",
    "end_copy",
    "is_cached",
    "iterations",
    "on_device",
    "room_left",
    "take_copy",
    "work_of",
]


@lean
def iterations(clock: NDArray[Any]) -> int:
    """Returns how many batches and steps the engine has run."""
    return int(clock[0].batches + clock[0].steps)


@lean
def on_device(w: World, agent: int) -> bool:
    """Tells whether a new request of the agent finds its prefix in the engine's memory, or on the way there."""
    state = w.agents[agent]
    seen = not w.physics[0].overlap or iterations(w.clock) > state.whole_since
    return bool(state.in_memory and state.left == 0 and seen)


@lean
def is_cached(w: World, agent: int) -> bool:
    """Tells whether it finds it there or on the host."""
    on_host = w.physics[0].tier and w.agents[agent].copied
    return bool(on_host or on_device(w, agent))


@lean
def room_left(w: World) -> float:
    """Returns the tokens that are left beside the running requests and their prefixes."""
    v = w.v
    room = float(v.head[0].budget)
    for a in range(len(v.agents)):
        if w.agents[a].n_running > 0:
            room -= v.agents[a].prefix
    for i in range(v.head[0].n_running):
        row = v.running[i]
        r = v.requests[row]
        left = v.head[0].reserve_ratio * to_come(v.head[0], v.requests[row])
        room -= float(r.suffix + r.generated + w.requests[row].copy + left)
    return room


@lean
def chunk_left(w: World) -> int:
    """Returns the tokens of prefill that the next batch has room for beside what runs already."""
    v = w.v
    now = w.clock[0].time
    left = w.physics[0].chunk
    for a in range(len(v.agents)):
        if w.agents[a].n_running > 0:
            left -= w.agents[a].left
    for i in range(v.head[0].n_running):
        row = v.running[i]
        if w.requests[row].phase == PREFILL and w.agents[v.requests[row].agent].ready_at <= now:
            left -= w.requests[row].work
    return int(left)


@lean
def work_of(w: World, row: int) -> int:
    """Returns the tokens that a new request has to compute beside its prefix."""
    r = w.v.requests[row]
    work = r.suffix - r.cached
    if not w.physics[0].rebuild_decode:
        work += r.generated
    return int(max(work, 1))


@lean
def cost(w: World, row: int, in_use: bool) -> tuple[int, int]:
    """Returns what the admission of a ready request takes: memory, all that it asked for included, and prefill.

    Args:
        w: The world.
        row: The request.
        in_use: Whether its agent's prefix is counted already, for another request.
    """
    r = w.v.requests[row]
    agent = i64(r.agent)
    prefix = w.v.agents[agent].prefix
    missing = not is_cached(w, agent)
    memory = r.suffix + r.generated + to_come(w.v.head[0], w.v.requests[row])
    if missing or not in_use:
        memory += prefix
    return int(memory), int(work_of(w, row) + (prefix if missing else 0))


@lean
def take_copy(w: World, row: int) -> None:
    """Makes a request that is admitted compute a copy of its prefix where another one is still computing it."""
    agent = i64(w.v.requests[row].agent)
    if w.agents[agent].n_running > 0 and not is_cached(w, agent):
        s = w.requests[row]
        s.copy = w.v.agents[agent].prefix
        s.work += s.copy
        w.clock[0].used += s.copy


@lean
def drop_copy(w: World, row: int) -> None:
    """Frees the copy of a request whose prefill has been processed."""
    s = w.requests[row]
    if s.copy > 0:
        w.clock[0].used -= s.copy
        s.copy = 0


@lean
def end_copy(w: World, row: int) -> None:
    """The prefill of a request with a copy is done; where its prefix was not whole, it is that copy now."""
    state = w.agents[w.v.requests[row].agent]
    if w.requests[row].copy > 0 and state.left > 0:
        state.left = 0
        state.whole_since = iterations(w.clock)
    if not w.physics[0].overlap:
        drop_copy(w, row)
