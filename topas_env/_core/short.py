"""The short list of candidate states: what cheap queue orders would choose, and parts of it; nothing is searched.

`list_candidates` draws the paths of all tasks and packs many prefix sets, which is most of the time of a decision. The
states here are found in a few passes over the ready requests, none of them preempts, and their score terms are 0.
Order: 0 the running requests alone; what the baselines but srpt, and the `hold-` policies, would choose;
`SHORT_ORDERS`; parts of what `hold-depth` would choose: half, one request, one agent's alone, all but one agent's.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.baselines import baseline_from
from topas_env._core.candidates import keep_if_new, slot
from topas_env._core.choice import Candidates
from topas_env._core.codes import CODES, SHORT_ORDERS
from topas_env._core.estimates import Estimates
from topas_env._core.jit import i64, inner, kernel
from topas_env._core.layout import View
from topas_env._core.marginals import GROUP, READY_INFO, new_paths
from topas_env._core.orders import NOBODY, hold_order, order, own_code, stage_paths
from topas_env._core.ref import ref

__all__ = ["add_parts", "list_short", "short_list"]

_SRPT, _HOLD_MANY, _TOPAS = CODES["srpt"], CODES["hold-many"], CODES["topas"]
_MORE = np.array(
    [own_code(name.removeprefix("hold-"), hold=name.startswith("hold-")) for name in SHORT_ORDERS], np.int64
)
_FIRST_MORE = len(CODES)  # its bit in `origin`
_PARTS = own_code("depth", hold=True)
_ALL = 1 << 60


@inner
def add_parts(
    v: View,
    code: int,
    mean: NDArray[np.float64],
    path: NDArray[np.float64],
    allowed: NDArray[np.uint8],
    c: Candidates,
    limit: int,
) -> None:
    """Adds what an order of `orders` would do, and would do for a part of the ready requests, while there is room.

    The parts: the first half of what it admits, and the first one of it; for each agent its requests alone, and all
    but its requests.

    Args:
        v: What may be seen.
        code: From `own_code`.
        mean: From `stage_paths`.
        path: From `stage_paths`.
        allowed: uint8 (n_agents,), 1 for every agent, before and after.
        c: The list.
        limit: Most candidates.
    """
    n = len(v.agents)
    waiting = np.zeros(n, np.uint8)
    for i in range(v.head[0].n_ready):
        waiting[v.requests[v.ready[i]].agent] = 1
    if c.count[0] >= limit:
        return
    order(v, code, mean, path, allowed, _ALL, slot(c, c.count[0]))
    whole = i64(c.info[c.count[0]].n_admitted)
    keep_if_new(c, 0)
    if whole > 1 and c.count[0] < limit:
        order(v, code, mean, path, allowed, whole // 2, slot(c, c.count[0]))
        keep_if_new(c, 0)
        if whole > 3 and c.count[0] < limit:
            order(v, code, mean, path, allowed, 1, slot(c, c.count[0]))
            keep_if_new(c, 0)
    for but in range(2):
        for a in range(n):
            if waiting[a] and c.count[0] < limit:
                allowed[:] = but
                allowed[a] = 1 - but
                order(v, code, mean, path, allowed, _ALL, slot(c, c.count[0]))
                keep_if_new(c, 0)
    allowed[:] = 1


@inner
def list_short(v: View, params: NDArray[Any], c: Candidates) -> None:
    """Fills the list; the last row of `c` is scratch, so with room for n rows it holds at most n - 1 states."""
    limit = c.info.shape[0] - 1
    n_agents = len(v.agents)
    mean = np.empty(len(v.stages))
    path = np.empty(len(v.stages))
    allowed = np.ones(n_agents, np.uint8)
    for k in range(c.info.shape[0]):
        info = c.info[k]
        info.admit = 0.0
        info.move = 0.0
        info.redo = 0.0
        info.revoke = 0.0
        info.reuse = 0.0
        info.total = 0.0
    c.count[0] = 0
    order(v, NOBODY, mean, path, allowed, 0, slot(c, 0))
    c.count[0] = 1
    if v.head[0].n_ready == 0:
        return
    stage_paths(v, mean, path)
    none = Estimates(np.empty(0, READY_INFO), np.empty(0, GROUP), new_paths(0, 0, 0, 0))
    for code in range(_TOPAS):
        if code != _SRPT and c.count[0] < limit:
            out = slot(c, c.count[0])
            if code < _HOLD_MANY:
                baseline_from(v, code, params[0].gate, none, out)
            else:
                hold_order(v, code, out)
            keep_if_new(c, 1 << code)
    for m in range(_MORE.shape[0]):
        if c.count[0] < limit:
            order(v, _MORE[m], mean, path, allowed, _ALL, slot(c, c.count[0]))
            keep_if_new(c, 1 << (_FIRST_MORE + m))
    add_parts(v, _PARTS, mean, path, allowed, c, limit)


@kernel
def short_list(v: View, params: NDArray[Any], c: Candidates) -> None:
    """As `list_short`, for callers in Python."""
    list_short(ref(v), params, ref(c))
