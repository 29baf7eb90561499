"""The scorer as the policy of sb3-contrib's MaskablePPO."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor, nn

from topas_agents._architecture import Architecture
from topas_agents._network import Scorer

__all__ = ["ScorerPolicy"]


class ScorerPolicy(MaskableActorCriticPolicy):
    """An actor-critic whose logits are the scores of a `Scorer`, and whose value comes from its context.

    Args:
        observation_space: Of the environment's candidates mode.
        action_space: Of the same.
        lr_schedule: Learning rate by progress.
        architecture: Shape of the scorer.
        seed: Of its first weights.
        **kwargs: For Stable-Baselines3.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        architecture: Architecture | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self._architecture = architecture or Architecture()
        self._seed = seed
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        """Makes the networks; those that the parent class would make are not needed."""
        self.scorer = Scorer(self._architecture, self._seed)
        n = self._architecture.hidden
        self.critic = nn.Sequential(
            nn.Linear(2 * n + self.scorer.n_global, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1)
        )
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _scores(self, obs: PyTorchObs) -> tuple[Tensor, Tensor]:
        """Returns the logits, float32 (n, max_candidates), and the values, float32 (n, 1)."""
        assert isinstance(obs, dict)
        overall, mask = obs["global"], obs["action_mask"] > 0.5
        rows = obs["candidates"].reshape(len(mask), mask.shape[1], -1)
        scores, context = self.scorer(overall, rows, mask)
        # The critic learns from a context that it does not shape: the actor's layers stay the actor's.
        return scores, self.critic(torch.cat([context.detach(), overall], dim=1))

    def _distribution(self, scores: Tensor, action_masks: NDArray[np.bool_] | None) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=scores)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, action_masks: NDArray[np.bool_] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns actions, values and log-probabilities."""
        scores, values = self._scores(obs)
        distribution = self._distribution(scores, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values, distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns values, log-probabilities and the entropy."""
        scores, values = self._scores(obs)
        distribution = self._distribution(scores, action_masks)  # type: ignore[arg-type]  # a tensor of the buffer
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: PyTorchObs, action_masks: NDArray[np.bool_] | None = None) -> MaskableDistribution:
        """Returns the distribution of actions."""
        return self._distribution(self._scores(obs)[0], action_masks)

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """Returns the values, float32 (n, 1)."""
        return self._scores(obs)[1]
