"""HiCache and LoRA without a GPU, for tests: plain copies, memory that is not pinned, streams with nothing to wait for.

Copies go through Python here, so their times mean nothing.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["VARIABLE", "hicache_flags", "register_no_gpu"]

VARIABLE = "TOPAS_TEST_NO_GPU"
_LOCK = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"


def hicache_flags(ratio: float = 4.0) -> list[str]:
    """Returns the flags with which the CPU engine keeps evicted KV in host memory, `ratio` times its pool."""
    return [
        *("--enable-hierarchical-cache", "--hicache-ratio", str(ratio), "--hicache-io-backend", "direct"),
        *("--hicache-mem-layout", "layer_first"),
    ]


def register_no_gpu() -> None:
    """Puts the stand-ins in place where `TOPAS_TEST_NO_GPU` is set."""
    if not os.environ.get(VARIABLE):
        return
    import torch
    from sglang.srt.mem_cache.pool_host import mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    library: Any = torch
    if not hasattr(library.cpu.Stream, "synchronize"):
        library.cpu.Stream.synchronize = lambda _: None
    library.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like"):
        setattr(library, name, _pageable(getattr(library, name)))
    mha.transfer_kv_direct = _copy
    HookRegistry.register(_LOCK, lambda *_, **__: None, HookType.REPLACE)


def _pageable(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        del pin_memory
        return make(*args, **kwargs)

    return made


def _copy(
    src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].to(target.dtype)
