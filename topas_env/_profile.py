"""Engine profiles: the physical parameters of one serving engine, shipped as JSON files with their sources."""

from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = ["EngineProfile", "load_profile", "profile_names"]

_FOLDER = Path(__file__).resolve().parent / "profiles"


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Physical parameters of one engine; times in seconds, sizes in tokens.

    Attributes:
        name: Name of the profile.
        description: What it describes.
        sources: Where each number comes from, by field.
        kv_budget_tokens: Size of the KV pool.
        max_running_requests: Most requests that may run at once.
        prefill_base_s: Fixed time of a prefill batch.
        prefill_s_per_token: Time per prompt token of a prefill batch.
        chunk_tokens: Most tokens of one prefill batch.
        mixed_chunk: Whether decoding requests get a token in each prefill batch; else prefill stalls decode.
        step_base_s: Fixed time of a decode step.
        step_s_per_request: Time of a step per request in it.
        step_s_per_kv_token: Time of a step per token of context of the requests in it.
        decode_s_per_token: Time per output token that policies are told.
        load_s_per_token: Time per token to load a prefix from the host tier.
        offload_s_per_token: Time per token to release one to the host tier.
        reserve_ratio: Share of the tokens that a request may still generate that is reserved for it.
        reserve_cap_tokens: Most tokens that the ratio is applied to; None for no cap.
        rebuild: How the output of a preempted request is rebuilt: `prefill` (SGLang) or `decode` (the paper's charge).
        host_tier: Who may load prefixes from host memory: `all`, `none` or `topas-only` (an assumption about the paper).
        eviction: `lazy` (a released prefix stays until its memory is needed) or `eager`.
    """

    name: str
    description: str = ""
    sources: dict[str, str] = {}
    kv_budget_tokens: int
    max_running_requests: int
    prefill_base_s: float
    prefill_s_per_token: float
    chunk_tokens: int
    mixed_chunk: bool = False
    step_base_s: float
    step_s_per_request: float
    step_s_per_kv_token: float
    decode_s_per_token: float
    load_s_per_token: float
    offload_s_per_token: float
    reserve_ratio: float
    reserve_cap_tokens: int | None = None
    rebuild: Literal["prefill", "decode"] = "prefill"
    host_tier: Literal["all", "none", "topas-only"] = "all"
    eviction: Literal["lazy", "eager"] = "lazy"


def profile_names() -> list[str]:
    """Returns the names of the profiles that ship, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(profile: "str | Path | dict[str, Any] | EngineProfile", **overrides: Any) -> EngineProfile:
    """Returns an engine profile with some of its fields replaced.

    Args:
        profile: A name of `profile_names()`, the path of a JSON file, a dict with the fields, or a profile.
        **overrides: Fields to replace, `host_tier="none"` for example.

    Raises:
        InputError: An unknown name or field, a wrong type or a value out of range.
    """
    if isinstance(profile, EngineProfile):
        fields = msgspec.to_builtins(profile)
    elif isinstance(profile, dict):
        fields = profile
    else:
        fields = msgspec.json.decode((_FOLDER / f"{profile}.json").read_bytes())
    return msgspec.convert({**fields, **overrides}, EngineProfile)
