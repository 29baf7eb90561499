"""The shape of the scoring network, and the forward pass that the shipped policy runs, without torch."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES

__all__ = ["Architecture", "NumpyScorer", "fresh_weights"]

MOST_HIDDEN = 1024
KIND = "candidate-scorer-1"
LISTS = ("full", "short")


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a scorer of candidate states; `Scorer` says what it computes.

    Attributes:
        hidden: Width of its layers.
        kind: What the weights mean.
        candidate_list: List of candidates that it scores, `full` or `short`, as the environment has them.
    """

    hidden: int = 64
    kind: str = KIND
    candidate_list: str = "full"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the name and the shape of every weight; all are float32."""
        inputs, n = len(GLOBAL_FEATURES) + len(CANDIDATE_FEATURES), self.hidden
        return {
            "input.shift": (inputs,),
            "input.scale": (inputs,),
            "first.weight": (n, inputs),
            "first.bias": (n,),
            "second.weight": (n, n),
            "second.bias": (n,),
            "third.weight": (n, 3 * n),
            "third.bias": (n,),
            "score.weight": (1, n),
            "score.bias": (1,),
        }

    def problem(self) -> str | None:
        """Returns what is wrong with the values, in words; None if nothing is."""
        if self.kind != KIND:
            return f"kind: {self.kind!r} is not {KIND!r}"
        if not 1 <= self.hidden <= MOST_HIDDEN:
            return f"hidden: {self.hidden} is not from 1 to {MOST_HIDDEN}"
        if self.candidate_list not in LISTS:
            return f"candidate_list: {self.candidate_list!r} is none of {', '.join(LISTS)}"
        return None


class NumpyScorer:
    """The forward pass for one scheduling point, in plain numpy: a few small products, no framework in between.

    Args:
        weights: Float32 arrays by name, with the shapes of `Architecture.shapes`.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        n_global = len(GLOBAL_FEATURES)
        hidden = weights["first.bias"].shape[0]
        # The standardisation of the inputs is a part of the first layer: W (x - shift) scale + b.
        scaled = weights["first.weight"].astype(np.float64) * weights["input.scale"]
        bias = weights["first.bias"] - scaled @ weights["input.shift"].astype(np.float64)
        first = scaled.astype(np.float32).T
        third = weights["third.weight"].T
        self._overall, self._rows = _plain(first[:n_global]), _plain(first[n_global:])
        self._bias1 = bias.astype(np.float32)
        self._second, self._bias2 = _plain(weights["second.weight"].T), weights["second.bias"]
        self._own = _plain(third[:hidden])
        self._mean, self._most = _plain(third[hidden : 2 * hidden]), _plain(third[2 * hidden :])
        self._bias3 = weights["third.bias"]
        self._score, self._bias4 = _plain(weights["score.weight"][0]), float(weights["score.bias"][0])

    def __call__(self, overall: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns a score for each candidate, float32 (n,).

        Args:
            overall: Features of the point, float32 (len(GLOBAL_FEATURES),).
            rows: Features of its candidates, float32 (n, len(CANDIDATE_FEATURES)), n at least 1.
        """
        x: NDArray[np.float32] = rows @ self._rows
        x += overall @ self._overall + self._bias1
        np.maximum(x, 0.0, out=x)
        x = x @ self._second
        x += self._bias2
        np.maximum(x, 0.0, out=x)
        # add.reduce: what ndarray.mean and max do after some checks that cost more than the sums.
        mean = np.add.reduce(x, axis=0) * np.float32(1.0 / x.shape[0])
        context = mean @ self._mean + np.maximum.reduce(x, axis=0) @ self._most
        x = x @ self._own
        x += context + self._bias3
        np.maximum(x, 0.0, out=x)
        scores: NDArray[np.float32] = x @ self._score
        scores += np.float32(self._bias4)
        return scores


def fresh_weights(architecture: Architecture, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Returns random weights: uniform in +-1/sqrt(inputs of the layer), the standardisation left as the identity."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, shape in architecture.shapes().items():
        layer = architecture.shapes()[f"{name.partition('.')[0]}.weight"] if not name.startswith("input") else shape
        bound = 1.0 / math.sqrt(layer[-1])
        weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    weights["input.shift"][:] = 0.0
    weights["input.scale"][:] = 1.0
    return weights


def _plain(array: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, np.float32)
