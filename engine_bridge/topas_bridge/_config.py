"""Settings of the bridge, and how they travel from `topas serve` to SGLang's processes."""

import os
from pathlib import Path
from typing import Any

import msgspec

from topas_env._errors import InputError

__all__ = ["VARIABLE", "BridgeConfig", "config_from_environment", "config_to_environment"]

VARIABLE = "TOPAS_BRIDGE"
"""Environment variable with the settings as JSON; without it the plugin does nothing."""


class BridgeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one engine's bridge.

    Attributes:
        policy: Name of the policy in the registry.
        options: Keyword arguments of the policy.
        imports: Modules to import first, which register policies of their own.
        profile: Name or path of the engine profile whose costs the policy is told; None for the built-in costs.
        workflows: Path of a JSON file with workflows (a workload file, or a list of workflows), None for none.
        reserve_ratio: Share of the tokens that a request may still generate that is reserved; None for what SGLang
            itself reserves for running requests at the moment.
        reserve_cap_tokens: Most tokens that the ratio applies to; None for no cap.
        budget_ms: Most time that one decision may take; a later answer is thrown away.
        isolation: `auto` runs policies without a compiled path in a thread, so that one that hangs cannot stop the
            engine; `inline` and `thread` force one or the other.
        faults: After so many faults in a row the policy is switched off until it is switched on again.
        hold_s: No request is held longer than this, seconds.
        task_ttl_s: A task without requests is forgotten after this, seconds.
        age_scale_s: H_age before any task has finished, seconds.
        freeze_after: An agent's prefix is fixed after so many of its requests.
        evict: `lazy` lets SGLang reclaim a released prefix when it needs the memory; `forced` evicts it at once, where
            the Python radix core runs.
        preempt: Whether the policy may preempt.
        shadow: Decide and count, but change nothing.
        validate: Check every snapshot against all rules (slow; for tests).
        dump_dir: Folder for dumped snapshots and the decision log; None for none.
        log_decisions: Whether each decision is written to `dump_dir`.
    """

    policy: str
    options: dict[str, Any] = {}
    imports: tuple[str, ...] = ()
    profile: str | None = None
    workflows: str | None = None
    reserve_ratio: float | None = None
    reserve_cap_tokens: int | None = None
    budget_ms: float = 100.0
    isolation: str = "auto"
    faults: int = 5
    hold_s: float = 120.0
    task_ttl_s: float = 600.0
    age_scale_s: float = 60.0
    freeze_after: int = 8
    evict: str = "lazy"
    preempt: bool = True
    shadow: bool = False
    validate: bool = False
    dump_dir: str | None = None
    log_decisions: bool = False

    def check(self) -> None:
        """Checks the ranges.

        Raises:
            InputError: With the setting and its value.
        """
        for name in ("budget_ms", "hold_s", "task_ttl_s", "age_scale_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"bridge setting {name}: must be above 0: {getattr(self, name)!r}")
        for name in ("faults", "freeze_after"):
            if getattr(self, name) < 1:
                raise InputError(f"bridge setting {name}: must be at least 1: {getattr(self, name)!r}")
        if self.reserve_ratio is not None and not 0 <= self.reserve_ratio <= 1:
            raise InputError(f"bridge setting reserve_ratio: must be between 0 and 1: {self.reserve_ratio!r}")
        if self.reserve_cap_tokens is not None and self.reserve_cap_tokens < 0:
            raise InputError(f"bridge setting reserve_cap_tokens: must be at least 0: {self.reserve_cap_tokens!r}")
        for name, allowed in (("isolation", ("auto", "inline", "thread")), ("evict", ("lazy", "forced"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"bridge setting {name}: must be one of {', '.join(allowed)}: {getattr(self, name)!r}")
        if self.workflows is not None and not Path(self.workflows).is_file():
            raise InputError(f"bridge setting workflows: no such file: {self.workflows}")


def config_to_environment(config: BridgeConfig) -> dict[str, str]:
    """Returns the variables that make the plugin active with these settings."""
    return {VARIABLE: msgspec.json.encode(config).decode()}


def config_from_environment() -> BridgeConfig | None:
    """Returns the settings of this process, None if the plugin is to do nothing.

    Raises:
        InputError: If the variable does not hold valid settings.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=BridgeConfig)
    except msgspec.DecodeError as error:
        raise InputError(f"environment variable {VARIABLE}: {error}") from None
    config.check()
    return config
