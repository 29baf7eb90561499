"""The static prefix of each agent: given by the client, or learned as the longest common prefix of its requests."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["AgentPrefix", "common_prefix"]

_STRIKES = 3  # so many requests that do not start with a fixed prefix make it shorter


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    different = np.nonzero(_integers(a[:n]) != _integers(b[:n]))[0]
    return int(different[0]) if len(different) else n


def _integers(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.frombuffer(tokens, dtype=f"i{tokens.itemsize}") if isinstance(tokens, array) else np.asarray(tokens)


class AgentPrefix:
    """What is known of one agent's prefix on this engine.

    Attributes:
        name: Name of the agent in the snapshot.
        key: What separates caches in SGLang (extra key with LoRA adapter, salt); None before its first request.
        tokens: The common tokens so far.
        length: Length of the prefix in tokens as the engine counts it, a multiple of the page size; 0 while unknown.
        frozen: Whether the length is fixed.
        last_used_s: When a request of the agent last ran.
        version: Grows when `length` changes.
    """

    __slots__ = (
        *("_freeze_after", "_page", "_seen", "_strikes"),
        *("frozen", "key", "last_used_s", "length", "name", "tokens", "version"),
    )

    def __init__(self, name: str, *, page_size: int, freeze_after: int) -> None:
        self.name = name
        self.key: tuple[Any, ...] | None = None
        self.tokens: Sequence[int] = ()
        self.length = 0
        self.frozen = False
        self.last_used_s = 0.0
        self.version = 0
        self._page = max(page_size, 1)
        self._freeze_after = freeze_after
        self._seen = 0
        self._strikes = 0

    def observe(self, prompt: Sequence[int], given: int | None) -> bool:
        """Learns from one request.

        Args:
            prompt: Its prompt tokens.
            given: Length of the prefix as the client says, None if it does not.

        Returns:
            Whether the request starts with the agent's prefix; if not, it is to be served as one that stands alone.
        """
        most = max(len(prompt) - 1, 0)  # the engine computes the last token of a prompt always
        self._seen += 1
        if given is not None and not self.frozen:
            self.frozen = True
            self._set(prompt, min(given, most))
            return True
        if self._seen == 1:
            self.tokens = prompt[:most]
            return True
        if not self.frozen:
            self.frozen = self._seen >= self._freeze_after
            self._set(prompt, min(common_prefix(self.tokens, prompt), most))
            return True
        if self.length <= most and prompt[: self.length] == self.tokens:
            self._strikes = 0
            return True
        self._strikes += 1
        if self._strikes < _STRIKES:
            return False
        self._strikes = 0
        self._set(prompt, min(common_prefix(self.tokens, prompt), most))
        return True

    def _set(self, prompt: Sequence[int], shared: int) -> None:
        length = shared // self._page * self._page
        self.tokens = prompt[: length if self.frozen else shared]
        if length != self.length:
            self.length = length
            self.version += 1
