"""Many worlds in arrays with a leading dimension, the form that the batch kernels work on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.layout import View
from topas_env._core.trace import Trace
from topas_env._core.world import World

__all__ = ["Stack"]

_SPARE = 1.25  # room beyond what is needed where a dimension has to grow

Arrays = list[NDArray[Any]]


def _arrays(world: World) -> Arrays:
    """Returns the arrays of a world, in order."""
    return [*world.v, *world.trace, *world[2:]]


def _world(arrays: Arrays) -> World:
    """Returns the world of arrays in the order of `_arrays`."""
    first, second = len(View._fields), len(View._fields) + len(Trace._fields)
    return World(View(*arrays[:first]), Trace(*arrays[first:second]), *arrays[second:])


class Stack:
    """The arrays of n worlds; a place may hold a smaller world than there is room for.

    Array lengths are bounds for the kernels and nothing else, apart from those that all worlds of an environment share
    (tasks, agents, stages), so the rest of a longer array does not matter.

    Args:
        like: A world of the kind that comes.
        count: n.

    Attributes:
        arrays: A `World` whose arrays have a leading dimension n.
    """

    arrays: World

    def __init__(self, like: World, count: int) -> None:
        self._count = count
        self._parts = [np.zeros((count, *part.shape), part.dtype) for part in _arrays(like)]
        self.arrays = _world(self._parts)

    def put(self, index: int, world: World) -> None:
        """Copies a world into a place; arrays that are too short grow."""
        parts = _arrays(world)
        grown = False
        for k, part in enumerate(parts):
            room = self._parts[k]
            if part.shape != room.shape[1:]:
                if any(need > there for need, there in zip(part.shape, room.shape[1:], strict=True)):
                    self._parts[k] = room = self._enlarged(room, part.shape)
                    grown = True
                room[index][tuple(slice(0, size) for size in part.shape)] = part
            else:
                room[index] = part
        if grown:
            self.arrays = _world(self._parts)

    def get(self, index: int) -> World:
        """Returns one world, as views of its place."""
        return _world([part[index] for part in self._parts])

    def _enlarged(self, room: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        sizes = [
            there if need <= there else max(need, int(there * _SPARE))
            for need, there in zip(shape, room.shape[1:], strict=True)
        ]
        larger = np.zeros((self._count, *sizes), room.dtype)
        larger[tuple(slice(0, size) for size in room.shape)] = room
        return larger
