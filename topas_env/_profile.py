"""Engine profiles: the physical parameters of one serving engine, shipped as JSON files with their sources."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from topas_env._convert import convert, decode_json, fail, in_source, show, suggest
from topas_env._errors import InputError
from topas_env._snapshot import EngineCosts
from topas_env._snapshot_rules import check_count, check_seconds

__all__ = ["EngineProfile", "load_profile", "profile_names"]

_FOLDER = Path(__file__).resolve().parent / "profiles"
_DEEPEST_BASE = 8
_COUNTS = {  # with the least value
    "kv_budget_tokens": 1,
    "max_running_requests": 1,
    "chunk_tokens": 1,
    "reserve_decay_steps": 0,
}
_SECONDS = {  # and whether it must be above 0
    "prefill_base_s": False,
    "prefill_s_per_token": True,
    "prefill_s_per_kv_token": False,
    "call_latency_s": False,
    "step_base_s": False,
    "step_s_per_request": False,
    "step_s_per_kv_token": False,
    "decode_s_per_token": True,
    "load_s_per_token": True,
    "offload_s_per_token": False,
    "reserve_ratio": False,
    "reserve_min_ratio": False,
}
_LATER = {  # left out where they do nothing
    "prefill_s_per_kv_token": 0.0,
    "call_latency_s": 0.0,
    "overlap": False,
    "admission": "chosen",
    "reserve_min_ratio": 0.0,
    "reserve_decay_steps": 0,
}


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
        prefill_s_per_kv_token: Time of a prefill batch per token of context of its requests, cached ones included.
        chunk_tokens: Most tokens of one prefill batch.
        mixed_chunk: Whether decoding requests get a token in each prefill batch; else prefill stalls decode.
        step_base_s: Fixed time of a decode step.
        step_s_per_request: Time of a step per request in it.
        step_s_per_kv_token: Time of a step per token of context of the requests in it.
        decode_s_per_token: Time per output token that policies are told.
        load_s_per_token: Time per token to load a prefix from the host tier.
        offload_s_per_token: Time per token to release one to the host tier.
        call_latency_s: Time from the end of a call in the engine until what follows it can be there, tool waits apart:
            the answer's way to the client and the next request's way to the scheduler.
        overlap: Whether the engine runs a step ahead of the results (SGLang's default), so that a call which a stop
            token ends takes part in one more decode step.
        admission: How the requests that a policy admits get in: `chosen`, all at once; `sglang`, through SGLang's
            checks: a new one reserves all that it asked for, and of those that need a missing prefix one goes first.
        reserve_ratio: Share of the tokens that a request may still generate that is reserved for it.
        reserve_cap_tokens: Most tokens that the ratio is applied to; None for no cap.
        reserve_min_ratio: What the ratio falls to, where it falls.
        reserve_decay_steps: Decode steps in which it does so; 0 for a constant ratio. SGLang's falls from 0.7 to 0.098
            in 600, is at 0.7 again after an idle moment, and becomes what the requests have used when one is retracted.
        rebuild: How the output of a preempted request is rebuilt: `prefill` (SGLang) or `decode` (the paper's charge).
        host_tier: Who may load prefixes from host memory: `all`, `none` or `topas-only` (our assumption of the paper).
        eviction: `lazy` (a released prefix stays until its memory is needed) or `eager`.
    """

    name: str
    description: str = ""
    sources: dict[str, str] = {}
    kv_budget_tokens: int
    max_running_requests: int
    prefill_base_s: float
    prefill_s_per_token: float
    prefill_s_per_kv_token: float = 0.0
    chunk_tokens: int
    mixed_chunk: bool = False
    step_base_s: float
    step_s_per_request: float
    step_s_per_kv_token: float
    decode_s_per_token: float
    call_latency_s: float = 0.0
    overlap: bool = False
    load_s_per_token: float
    offload_s_per_token: float
    reserve_ratio: float
    reserve_cap_tokens: int | None = None
    admission: Literal["chosen", "sglang"] = "chosen"
    reserve_min_ratio: float = 0.0
    reserve_decay_steps: int = 0
    rebuild: Literal["prefill", "decode"] = "prefill"
    host_tier: Literal["all", "none", "topas-only"] = "all"
    eviction: Literal["lazy", "eager"] = "lazy"

    def validate(self) -> None:
        """Checks that every number is in its range.

        Raises:
            InputError: One line with the path of the first fault and its value.
        """
        for name, least in _COUNTS.items():
            check_count(getattr(self, name), f"$.{name}", least)
        if self.reserve_cap_tokens is not None:
            check_count(self.reserve_cap_tokens, "$.reserve_cap_tokens")
        for name, positive in _SECONDS.items():
            check_seconds(getattr(self, name), f"$.{name}", positive=positive)
        if self.reserve_min_ratio > 0 and self.reserve_decay_steps == 0:
            fail("$.reserve_min_ratio", "needs reserve_decay_steps above 0", self.reserve_min_ratio)
        if self.reserve_min_ratio > self.reserve_ratio:
            fail("$.reserve_min_ratio", f"must be at most reserve_ratio = {self.reserve_ratio}", self.reserve_min_ratio)
        if self.step_base_s + self.step_s_per_request + self.step_s_per_kv_token == 0:
            fail("$.step_base_s", "a decode step must take time", self.step_base_s)

    def costs(self, *, host_tier: bool) -> EngineCosts:
        """Returns what a policy is told of this engine (SNAPSHOT.md, `engine`).

        Args:
            host_tier: Whether the policy may load prefixes from host memory. Without, a prefix is prefilled and
                nothing is written back.
        """
        return EngineCosts(
            prefill_base_s=self.prefill_base_s,
            prefill_s_per_token=self.prefill_s_per_token,
            decode_s_per_token=self.decode_s_per_token,
            load_s_per_token=self.load_s_per_token if host_tier else self.prefill_s_per_token,
            offload_s_per_token=self.offload_s_per_token if host_tier else 0.0,
            rebuild_s_per_token=self.prefill_s_per_token if self.rebuild == "prefill" else self.decode_s_per_token,
            reserve_ratio=self.reserve_ratio,
            reserve_cap_tokens=self.reserve_cap_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that `load_profile` takes back unchanged."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if name not in _LATER or value != _LATER[name]}


def profile_names() -> list[str]:
    """Returns the names of the profiles that ship, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(profile: "str | Path | dict[str, Any] | EngineProfile", **overrides: Any) -> EngineProfile:
    """Returns an engine profile with some of its fields replaced.

    A file or dict may give `base`, the name or path of another profile, and only the fields that differ from it.

    Args:
        profile: A name of `profile_names()`, the path of a JSON file, a dict with the fields, or a profile.
        **overrides: Fields to replace, `host_tier="none"` for example.

    Raises:
        InputError: An unknown name or field, a wrong type or a value out of range.
    """
    source = ""
    if isinstance(profile, EngineProfile):
        fields = profile.to_dict()
    elif isinstance(profile, dict):
        fields = _with_base(profile, source, 0)
    elif isinstance(profile, str | Path):
        fields, source = _read(profile, 0)
    else:
        raise InputError(f"profile: expected a name, a path, a dict or an EngineProfile, got {show(profile)}")
    try:
        made = convert({**fields, **overrides}, EngineProfile)
        made.validate()
    except InputError as error:
        raise in_source(source, error) from None
    return made


def _read(name: str | Path, depth: int) -> tuple[dict[str, Any], str]:
    """Returns the fields of a shipped profile or of a file, and what to call it in messages."""
    path = _FOLDER / f"{name}.json" if str(name) in profile_names() else Path(name)
    source = str(name)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) or not path.suffix:
            hint = suggest(str(name), profile_names())
            raise InputError(f"profile: no profile and no file of this name, got {show(source)}{hint}") from None
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    fields = decode_json(data, source)
    if not isinstance(fields, dict):
        raise InputError(f"{source}: $: expected object, got {show(fields)}")
    return _with_base(fields, source, depth), source


def _with_base(fields: dict[str, Any], source: str, depth: int) -> dict[str, Any]:
    """Puts the fields of the profile that `base` names under the given ones."""
    if "base" not in fields:
        return fields
    base = fields["base"]
    if not isinstance(base, str):
        raise in_source(source, InputError(f"$.base: expected the name or path of a profile, got {show(base)}"))
    if depth >= _DEEPEST_BASE:
        raise in_source(source, InputError(f"$.base: more than {_DEEPEST_BASE} bases in a row, got {show(base)}"))
    below, _ = _read(base if base in profile_names() else Path(source).parent / base, depth + 1)
    return {**below, **{name: value for name, value in fields.items() if name != "base"}}
