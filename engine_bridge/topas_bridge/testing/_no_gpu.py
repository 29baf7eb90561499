"""HiCache, LoRA and n-gram drafts without a GPU, for tests: plain copies, pageable memory, no streams to wait for.

All of it goes through Python here, so its times mean nothing.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["VARIABLE", "hicache_flags", "ngram_flags", "register_no_gpu"]

VARIABLE = "TOPAS_TEST_NO_GPU"
_LOCK = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"
_ATTEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"


def hicache_flags(ratio: float = 4.0) -> list[str]:
    """Returns the flags with which the CPU engine keeps evicted KV in host memory, `ratio` times its pool."""
    return [
        *("--enable-hierarchical-cache", "--hicache-ratio", str(ratio), "--hicache-io-backend", "direct"),
        *("--hicache-mem-layout", "layer_first"),
    ]


def ngram_flags(drafts: int = 4) -> list[str]:
    """Returns the flags with which the CPU engine verifies trees of `drafts` tokens drafted from earlier text."""
    return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(drafts)]


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
    HookRegistry.register(_ATTEND, _attend, HookType.AROUND)


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


def _attend(
    original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, **how: Any
) -> Any:
    """Attention of drafts to be verified, which this backend lacks: each sees its context and its ancestors."""
    if not batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, batch, **how)
    import torch
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool, n = backend.token_to_kv_pool, batch.spec_info.draft_token_num
    pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, None), k, v)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    queries = q.view(-1, n, layer.tp_q_head_num, layer.qk_head_dim)
    trees = batch.spec_info.custom_mask.view(-1, n, n)
    rows = []
    for query, tree, row, length in zip(queries, trees, batch.req_pool_indices, batch.seq_lens.tolist(), strict=True):
        slots = backend.req_to_token_pool.req_to_token[row, : length + n]
        mask = torch.cat([torch.ones(n, length, dtype=torch.bool), tree], dim=1)
        query, key, value = (part.transpose(0, 1) for part in (query, keys[slots], values[slots]))
        grouped = layer.tp_q_head_num != layer.tp_k_head_num
        attend = torch.nn.functional.scaled_dot_product_attention
        out = attend(query, key, value, attn_mask=mask, scale=layer.scaling, enable_gqa=grouped)
        rows.append(out.transpose(0, 1))
    return torch.cat(rows).reshape(q.shape[0], -1)
