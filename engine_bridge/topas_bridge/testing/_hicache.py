"""HiCache without a GPU, for tests: plain copies, no page locking, streams that have nothing to wait for.

Copies go through Python here, so their times mean nothing.
"""

import os
from collections.abc import Sequence
from typing import Any

__all__ = ["VARIABLE", "hicache_flags", "register_hicache"]

VARIABLE = "TOPAS_TEST_HICACHE"
_LOCK = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"


def hicache_flags(ratio: float = 4.0) -> list[str]:
    """Returns the flags with which the CPU engine keeps evicted KV in host memory, `ratio` times its pool."""
    return [
        *("--enable-hierarchical-cache", "--hicache-ratio", str(ratio), "--hicache-io-backend", "direct"),
        *("--hicache-mem-layout", "layer_first"),
    ]


def register_hicache() -> None:
    """Puts the stand-ins in place where `TOPAS_TEST_HICACHE` is set."""
    if not os.environ.get(VARIABLE):
        return
    import torch
    from sglang.srt.mem_cache.pool_host import mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    stream: Any = torch.cpu.Stream
    if not hasattr(stream, "synchronize"):
        stream.synchronize = lambda _: None
    mha.transfer_kv_direct = _copy
    HookRegistry.register(_LOCK, lambda *_, **__: None, HookType.REPLACE)


def _copy(
    src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].to(target.dtype)
