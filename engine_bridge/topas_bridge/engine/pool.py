"""The KV pool: how much there is, and whether the next decode step fits."""

from typing import Any, NamedTuple

__all__ = ["Pool", "decode_fits", "read_pool", "reserve_ratio"]


class Pool(NamedTuple):
    """Tokens of the KV pool.

    Attributes:
        total: All of it.
        available: Free.
        evictable: In the radix cache and not locked.
        protected: In the radix cache and locked.
    """

    total: int
    available: int
    evictable: int
    protected: int


def read_pool(scheduler: Any) -> Pool:
    """Returns the pool's sizes."""
    tree = scheduler.tree_cache
    return Pool(
        int(scheduler.max_total_num_tokens),
        int(scheduler.token_to_kv_pool_allocator.available_size()),
        _size(tree, "full_evictable_size", "evictable_size"),
        _size(tree, "full_protected_size", "protected_size"),
    )


def decode_fits(scheduler: Any, batch: Any) -> bool:
    """Tells whether the next decode step finds its memory, counting what can be evicted."""
    needed = int(batch.new_tokens_required_next_decode())
    free = int(scheduler.token_to_kv_pool_allocator.available_size())
    return needed <= free or needed <= free + _size(scheduler.tree_cache, "full_evictable_size", "evictable_size")


def reserve_ratio(scheduler: Any) -> float | None:
    """Returns the share of the tokens to come that SGLang reserves for running requests now, None if it does not tell.

    It starts at 0.7 and falls while SGLang decodes.
    """
    tracker = getattr(scheduler, "new_token_ratio_tracker", None)
    return None if tracker is None else float(tracker.current)


def _size(tree: Any, *names: str) -> int:
    """Returns the largest of the sizes that the tree tells under these names: older trees answer 0 to newer names."""
    sizes = [0]
    for name in names:
        method = getattr(tree, name, None)
        value = method() if callable(method) else None
        if isinstance(value, tuple):  # one size for each kind of attention
            value = value[0]
        if value is not None:
            sizes.append(int(value))
    return max(sizes)
