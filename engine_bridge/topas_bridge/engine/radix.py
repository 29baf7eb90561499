"""The radix cache: how much of a prefix lies there, keeping it, giving it back."""

import inspect
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Pin", "Radix"]


class Pin(NamedTuple):
    """A lock on a prefix.

    Attributes:
        node: The node (or its number) at the end of the prefix.
        receipt: What SGLang wants back to unlock it, None for versions without receipts.
        tokens: Length of the prefix.
    """

    node: Any
    receipt: Any
    tokens: int


class Radix:
    """The prefix cache of one scheduler."""

    def __init__(self, tree: Any) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        self.tree = tree
        self._match_params = MatchPrefixParams
        self._key = RadixKey
        self._core = getattr(tree, "tree_core", None)
        self._peek = getattr(self._core, "match_full_device_prefix", None)
        self._unlock_takes_receipt = "params" in inspect.signature(tree.dec_lock_ref).parameters

    @property
    def can_evict(self) -> bool:
        """Whether a prefix can be evicted by force: never on the Rust core, where a wrong node is fatal."""
        if self._core is not None:
            return hasattr(self._core, "_is_device_leaf") and hasattr(self.tree, "_evict_device_leaf")
        return hasattr(self.tree, "_delete_leaf") and type(self.tree).__name__ == "RadixCache"

    @property
    def reads_only(self) -> bool:
        """Whether `present` leaves the cache as it was."""
        return self._peek is not None

    def present(self, tokens: Sequence[int], key: tuple[Any, Any]) -> int:
        """Returns how many leading tokens lie in device memory.

        Where SGLang has a read-only match (0.5.23) this leaves the cache as it was; elsewhere it makes the path the
        most recently used one, as any match does.
        """
        if self._peek is not None:
            return int(self._peek(self._make_key(tokens, key))[0])
        return self._length(self._match(tokens, key))

    def pin(self, tokens: Sequence[int], key: tuple[Any, Any]) -> Pin | None:
        """Locks a prefix; None if it is not all in device memory."""
        if self._peek is not None and self.present(tokens, key) < len(tokens):
            return None
        match = self._match(tokens, key)
        if self._length(match) < len(tokens):
            return None
        node = match.last_device_node
        result = self.tree.inc_lock_ref(node)
        convert = getattr(result, "to_dec_params", None)
        return Pin(node, convert() if convert is not None else None, len(tokens))

    def unpin(self, pin: Pin) -> None:
        """Unlocks a prefix. A pin is given back once."""
        if self._unlock_takes_receipt and pin.receipt is not None:
            self.tree.dec_lock_ref(pin.node, pin.receipt)
        else:
            self.tree.dec_lock_ref(pin.node)

    def evict(self, tokens: Sequence[int], key: tuple[Any, Any]) -> int:
        """Evicts a prefix and what lies under it, leaves first, as far as it is not locked.

        Returns:
            How many tokens became free; 0 where `can_evict` is False.
        """
        if not self.can_evict:
            return 0
        allocator = self.tree.token_to_kv_pool_allocator
        before = int(allocator.available_size())
        match = self._match(tokens, key)
        if self._length(match) < len(tokens):
            return 0
        if self._core is not None:
            self._evict_unified(self._core.node_by_id(match.last_device_node))
        else:
            self._evict_classic(match.last_device_node)
        return int(allocator.available_size()) - before

    def _evict_unified(self, root: Any) -> None:
        core, tree = self._core, self.tree
        assert core is not None
        for node in _leaves_first(root):
            if core._is_device_leaf(node):  # noqa: SLF001 (there is no public name)
                backup = tree._evict_device_leaf(node.id, dict.fromkeys(tree.tree_components, 0))  # noqa: SLF001
                if backup is not None:
                    self._write_back(node.id, backup)

    def _write_back(self, node_id: Any, backup: Any) -> None:
        """Copies a node to host memory and gives its device memory back (HiCache with `write_back`)."""
        tree = self.tree
        if tree._execute_and_commit_kv_backup(backup, write_back=True) > 0:  # noqa: SLF001
            tree.writing_check(write_back=True)
            tree._demote(node_id, dict.fromkeys(tree.tree_components, 0))  # noqa: SLF001

    def _evict_classic(self, root: Any) -> None:
        tree = self.tree
        for node in _leaves_first(root):
            if node is not tree.root_node and node.lock_ref == 0 and not node.children and node.value is not None:
                tree.token_to_kv_pool_allocator.free(node.value)
                tree._delete_leaf(node)  # noqa: SLF001

    def _match(self, tokens: Sequence[int], key: tuple[Any, Any]) -> Any:
        return self.tree.match_prefix(self._match_params(key=self._make_key(tokens, key)))

    def _make_key(self, tokens: Sequence[int], key: tuple[Any, Any]) -> Any:
        tokens = tokens if isinstance(tokens, array) else array("q", tokens)
        extra_key, salt = key
        return self._key(tokens, extra_key=extra_key, **({} if salt is None else {"cache_salt": salt}))

    @staticmethod
    def _length(match: Any) -> int:
        length = getattr(match, "device_prefix_len", None)
        return int(length) if length is not None else len(match.device_indices)


def _leaves_first(root: Any) -> list[Any]:
    order, stack = [], [root]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(node.children.values())
    order.reverse()
    return order
