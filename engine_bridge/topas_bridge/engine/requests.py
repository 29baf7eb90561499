"""What the bridge reads of SGLang's `Req`."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "cache_key",
    "custom_params",
    "generated",
    "is_aborted",
    "is_manageable",
    "is_preemptible",
    "limit",
    "prompt",
]


def prompt(req: Any) -> Sequence[int]:
    """Returns the prompt's tokens, as the engine counts them."""
    tokens: Sequence[int] = req.origin_input_ids
    return tokens


def generated(req: Any) -> int:
    """Returns how many output tokens are known; with overlap scheduling one more is on its way."""
    return len(req.output_ids)


def limit(req: Any) -> int:
    """Returns the most output tokens, as SGLang has bounded what the client asked for."""
    return int(req.sampling_params.max_new_tokens or 0)


def custom_params(req: Any) -> Any:
    """Returns the client's `custom_params`, whatever they are."""
    return getattr(req.sampling_params, "custom_params", None)


def cache_key(req: Any) -> tuple[Any, Any]:
    """Returns what separates this request's cache from others: extra key (with the LoRA adapter in it) and salt."""
    return getattr(req, "extra_key", None), getattr(req, "cache_salt", None)


def is_aborted(req: Any) -> bool:
    """Tells whether a finished request was aborted."""
    return type(req.finished_reason).__name__ == "FINISH_ABORT"


def is_manageable(req: Any) -> bool:
    """Tells whether a policy may decide about a request; the others are served by SGLang's own scheduling.

    These are: SGLang's own health checks, beam groups, requests of a streaming session, multimodal ones, ones with
    input embeddings, and ones that generate nothing.
    """
    return (
        not str(req.rid).startswith("HEALTH_CHECK")
        and getattr(req, "beam_group", None) is None
        and req.session is None
        and req.multimodal_inputs is None
        and req.input_embeds is None
        and limit(req) > 0
        and len(req.origin_input_ids) > 0
    )


def is_preemptible(req: Any) -> bool:
    """Tells whether a running request may be preempted: what it would have to rebuild is its KV alone."""
    if req.finished() or req.to_finish is not None or req.return_logprob or req.grammar is not None:
        return False
    finishes = getattr(req, "next_output_finishes_by_length", None)
    return finishes is None or not finishes()
