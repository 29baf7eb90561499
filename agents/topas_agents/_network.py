"""The scoring network in torch, for training."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from topas_agents._architecture import Architecture, fresh_weights
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES

__all__ = ["Scorer"]


class _Standardise(nn.Module):
    """Brings inputs to mean 0 and deviation 1; the numbers are measured once, never trained."""

    shift: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale


class Scorer(nn.Module):
    """Scores the candidate states of scheduling points; the largest score is the choice.

    Each candidate goes through the same layers together with the features of the point; the mean and the maximum over
    a point's candidates are its context, in which each candidate is scored (the idea of Deep Sets, arXiv:1703.06114).
    So a permutation of the candidates permutes the scores, and nothing depends on how many candidates, agents, tasks
    or requests there are.

        h = relu(second relu(first [global, candidate]))
        score = w relu(third [h, mean h, max h])

    Args:
        architecture: Its shape.
        seed: Of the first weights.
    """

    def __init__(self, architecture: Architecture | None = None, seed: int = 0) -> None:
        super().__init__()
        self.architecture = architecture or Architecture()
        n = self.architecture.hidden
        self.n_global, self.n_candidate = len(GLOBAL_FEATURES), len(CANDIDATE_FEATURES)
        self.input = _Standardise(self.n_global + self.n_candidate)
        self.first = nn.Linear(self.n_global + self.n_candidate, n)
        self.second = nn.Linear(n, n)
        self.third = nn.Linear(3 * n, n)
        self.score = nn.Linear(n, 1)
        self.put(fresh_weights(self.architecture, seed))

    def put(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes over weights by name."""
        self.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Returns a copy of the weights by name, float32."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.state_dict().items()}

    def standardise(self, overall: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
        """Measures what inputs are brought to mean 0 and deviation 1 by; columns that never change are left alone.

        Args:
            overall: float32 (n, global features).
            rows: float32 (m, candidate features), rows of candidates that exist.
        """
        for x, columns in ((overall, slice(0, self.n_global)), (rows, slice(self.n_global, None))):
            deviation = x.std(axis=0, dtype=np.float64)
            scale = np.where(deviation > 1e-3, 1.0 / np.maximum(deviation, 1e-3), 1.0)
            self.input.shift[columns] = torch.from_numpy(x.mean(axis=0, dtype=np.float64).astype(np.float32))
            self.input.scale[columns] = torch.from_numpy(scale.astype(np.float32))

    def forward(self, overall: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores batches of points.

        Args:
            overall: float32 (n, global features).
            rows: float32 (n, k, candidate features).
            mask: bool (n, k), True where there is a candidate; at least one in each row.

        Returns:
            Scores, float32 (n, k), the most negative number where there is no candidate; and the context, float32
            (n, 2 * hidden): mean and maximum over the candidates.
        """
        count = rows.shape[1]
        x = torch.cat([overall.unsqueeze(1).expand(-1, count, -1), rows], dim=2)
        x = torch.relu(self.first(self.input(x)))
        x = torch.relu(self.second(x))
        present = mask.unsqueeze(2)
        mean = (x * present).sum(dim=1) / present.sum(dim=1)
        # What comes out of a relu is at least 0, and one candidate is always there.
        most = (x * present).amax(dim=1)
        context = torch.cat([mean, most], dim=1)
        x = torch.cat([x, context.unsqueeze(1).expand(-1, count, -1)], dim=2)
        scores = self.score(torch.relu(self.third(x))).squeeze(2)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min), context
