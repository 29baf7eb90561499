"""What every policy is: something that answers a snapshot with a decision."""

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray

from topas_env import Decision, Snapshot

__all__ = ["Policy"]


class Policy(ABC):
    """A scheduling policy; the same object runs in `simulate`, in the environment and inside SGLang.

    A subclass sets `name` and writes `decide`. Deriving from this class is a convenience: any object with `name`,
    `reset` and `decide` works everywhere; the extras below then have their defaults.

    Attributes:
        name: Shown in tables and results.
        manages_prefixes: Whether the policy moves prefixes between GPU and host memory itself. Only the host tier
            `topas-only` of an engine profile looks at it.
        plans_ahead: Whether a decision plays the future out, which takes far longer than a queue order does. Only the
            order in which a suite runs its policies looks at it.
        sglang_order: `fcfs` or `lpm` where a simulated engine runs without the policy, on SGLang's own queue of that
            order; empty for every policy that decides.
    """

    name: str = "policy"
    manages_prefixes: bool = False
    plans_ahead: bool = False
    sglang_order: str = ""

    def reset(self, *, seed: int | None = None) -> None:  # noqa: B027 (most policies remember nothing)
        """Forgets what the policy remembers of earlier snapshots; called before every run.

        Args:
            seed: Seed of the policy's own random draws, for policies that make any.
        """

    @abstractmethod
    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the prefixes and the requests to hold after this scheduling point.

        Args:
            snapshot: Everything that may be looked at; see SNAPSHOT.md. It is not to be changed.

        Returns:
            A feasible decision: an infeasible one is refused, never repaired.
        """

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code and the PARAMS (1,) of the kernel that decides exactly as `decide`; None without one."""
        return None
