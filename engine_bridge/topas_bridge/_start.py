"""Makes the bridge of a scheduler that has just started."""

import importlib
import logging
from typing import Any

from topas_bridge._bridge import Bridge
from topas_bridge._config import BridgeConfig
from topas_bridge._guard import Guard
from topas_bridge._ledger import Ledger
from topas_bridge._metrics import Metrics
from topas_bridge._residency import Residency
from topas_bridge._snapshot import SnapshotBuilder, believed_costs
from topas_bridge._workflows import WorkflowBook, read_workflows
from topas_bridge.engine.batches import may_preempt
from topas_bridge.engine.radix import Radix
from topas_bridge.engine.targets import unsupported_modes
from topas_bridge.engine.version import sglang_version
from topas_env import Snapshot, load_profile
from topas_env._snapshot import EngineCosts

__all__ = ["DEFAULT_PROFILE", "example_snapshot", "make_bridge", "make_bridge_policy"]

logger = logging.getLogger(__name__)
DEFAULT_PROFILE = "qwen2.5-32b-a100-80g"


def make_bridge_policy(config: BridgeConfig) -> Any:
    """Returns the policy that the settings name; modules that register policies of their own are imported first.

    Raises:
        InputError: An unknown policy or option.
    """
    from topas_policies import make_policy

    for module in config.imports:
        importlib.import_module(module)
    return make_policy(config.policy, **config.options)


def make_bridge(scheduler: Any, config: BridgeConfig) -> Bridge:
    """Returns the bridge of a scheduler.

    Raises:
        SystemExit: If the engine runs in a mode that a policy cannot drive.
    """
    modes = unsupported_modes(scheduler)
    if modes:
        raise SystemExit(f"topas: a policy cannot drive SGLang {sglang_version()} with {'; '.join(modes)}")
    policy = make_bridge_policy(config)
    policy.reset(seed=0)
    if hasattr(policy, "live"):
        policy.live = True
    guard = Guard(policy, config)
    args = scheduler.server_args
    profile = load_profile(config.profile or DEFAULT_PROFILE)
    costs = believed_costs(profile, config, host_tier=bool(getattr(args, "enable_hierarchical_cache", False)))
    workflows = read_workflows(config.workflows) if config.workflows else []
    page = int(getattr(scheduler, "page_size", None) or getattr(args, "page_size", None) or 1)
    ledger = Ledger(WorkflowBook(workflows), page_size=page, freeze_after=config.freeze_after, ttl_s=config.task_ttl_s)
    radix = Radix(scheduler.tree_cache)
    if config.evict == "forced" and not radix.can_evict:
        logger.warning(
            "topas: this radix cache cannot evict by force (it is the Rust core): prefixes are released lazily"
        )
    if config.preempt and not may_preempt(scheduler):
        logger.warning("topas: no request is preempted: speculative decoding with overlap scheduling")
    guard.warm_up(example_snapshot(costs))
    bridge = Bridge(
        scheduler,
        config,
        guard=guard,
        ledger=ledger,
        builder=SnapshotBuilder(ledger, costs, config.age_scale_s),
        residency=Residency(radix, forced=config.evict == "forced"),
        metrics=Metrics(enabled=bool(getattr(args, "enable_metrics", False)), policy=config.policy),
    )
    logger.info(
        "topas: policy %s drives SGLang %s%s", config.policy, sglang_version(), " (shadow)" if config.shadow else ""
    )
    return bridge


def example_snapshot(costs: EngineCosts) -> Snapshot:
    """A small valid snapshot with a running and a ready request, to compile the policy's kernels on."""
    import msgspec

    plain = {
        "version": 1,
        "time_s": 2.0,
        "kv_budget_tokens": 1000,
        "max_running_requests": 4,
        "engine": msgspec.to_builtins(costs),
        "age_scale_s": 1.0,
        "workflows": [
            {
                "name": "w",
                "agents": [{"name": "A", "prefix_tokens": 10}, {"name": "B", "prefix_tokens": 10}],
                "stages": [
                    {"name": "a", "agent": "A", "after": []},
                    {"name": "b", "agent": "B", "after": ["a"]},
                ],
            }
        ],
        "service": [
            {"workflow": "w", "stage": "a", "stage_totals_s": [1.0], "call_s": [1.0], "call_output_tokens": [5]}
        ],
        "resident": ["A"],
        "cached": [],
        "tasks": [
            {
                "id": name,
                "workflow": "w",
                "arrival_s": 0.0,
                "stages": [
                    {"name": "a", "status": status, "service_s": 0.0},
                    {"name": "b", "status": "waiting", "service_s": 0.0},
                ],
            }
            for name, status in (("t0", "running"), ("t1", "ready"))
        ],
        "requests": [
            _example_request("r0", "t0", "running", 1.0),
            _example_request("r1", "t1", "ready", None),
        ],
    }
    return Snapshot.from_dict(plain)


def _example_request(name: str, task: str, status: str, admitted_s: float | None) -> dict[str, Any]:
    return {
        "id": name,
        "task": task,
        "stage": "a",
        "status": status,
        "ready_s": 0.5,
        "admitted_s": admitted_s,
        "suffix_tokens": 10,
        "cached_tokens": 0,
        "generated_tokens": 2,
        "max_new_tokens": 10,
        "admission_credit_s": 0.0,
    }
