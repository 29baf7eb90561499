"""What n-gram speculative decoding needs of SGLang's kernels, in plain Python: for tests, its times mean nothing.

Shapes: b requests, n draft tokens each, the first of which is the last token of the request.
"""

import ctypes
from typing import Any

__all__ = [
    *("assign_extend_cache_locs_cpu", "assign_req_to_token_pool_cpu", "copy_all_layer_kv_cache_cpu"),
    *("fill_accept_out_cache_loc_cpu", "reconstruct_indices_from_tree_mask", "verify_tree_greedy_cpu"),
]


def assign_extend_cache_locs_cpu(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, pool_len: int
) -> None:
    """Writes the KV slots of positions `start_offset` to `end_offset` of each request (b,) one after the other."""
    del pool_len
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end]
        at += end - start


def fill_accept_out_cache_loc_cpu(accept_index: Any, out_cache_loc: Any, accept_out_cache_loc: Any) -> None:
    """Writes the KV slots of the accepted tokens, given as (b, n) with -1 behind them, one after the other."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, pool_len: int
) -> None:
    """Makes the given KV slots those of positions `start_offset` to `end_offset` of each request (b,)."""
    del pool_len
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start]
        at += end - start


def copy_all_layer_kv_cache_cpu(data_ptrs: Any, strides: Any, tgt_loc: Any, src_loc: Any) -> None:
    """Copies KV slots within each buffer, given by its address and the bytes of a slot."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        slots = [ctypes.string_at(address + source * size, size) for source in sources]
        for target, slot in zip(targets, slots, strict=True):
            ctypes.memmove(address + target * size, slot, size)


def reconstruct_indices_from_tree_mask(
    tree_mask: Any,
    verified_seq_len: Any,
    positions: Any,
    retrieve_index: Any,
    retrieve_next_token: Any,
    retrieve_next_sibling: Any,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Turns masks (b, n, n), j an ancestor of i, into positions and links to the first child and the next sibling."""
    masks = tree_mask.view(batch_size, draft_token_num, draft_token_num).tolist()
    for b, (mask, length) in enumerate(zip(masks, verified_seq_len.tolist(), strict=True)):
        above = [[j for j in range(i) if mask[i][j]] for i in range(draft_token_num)]
        child: dict[int, int] = {}
        for i in reversed(range(draft_token_num)):
            parent = above[i][-1] if above[i] else -1
            positions[b * draft_token_num + i] = length + len(above[i])
            retrieve_index[b, i] = b * draft_token_num + i
            retrieve_next_token[b, i] = child.get(i, -1)
            retrieve_next_sibling[b, i] = child.get(parent, -1) if parent >= 0 else -1
            child[parent] = i


def verify_tree_greedy_cpu(
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    target_predict: Any,
) -> None:
    """Walks down each tree as long as a child is what the model says, and notes the nodes that it came through."""
    targets = target_predict.flatten().tolist()
    for b in range(len(candidates)):
        tokens, index = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        node, accepted = 0, [index[0]]
        while len(accepted) < accept_index.shape[1]:
            following = child[node]
            while following >= 0 and tokens[following] != targets[index[node]]:
                following = sibling[following]
            if following < 0:
                break
            node = following
            accepted.append(index[node])
        for place, at in enumerate(accepted):
            predicts[at] = targets[at]
            accept_index[b, place] = at
        accept_token_num[b] = len(accepted) - 1
