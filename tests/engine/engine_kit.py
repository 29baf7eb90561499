"""Servers of the tiny model for the engine tests."""

import asyncio
import os
import time

from topas_bridge._config import BridgeConfig
from topas_bridge.testing import run_prompts, start_server, tiny_environment, tiny_flags

FULL = os.environ.get("TOPAS_ENGINE") == "full"
CHAOS = ("topas_bridge.testing._chaos",)
KV_TOKENS = 2600  # four prefixes of 200 tokens and about ten requests of 150: there is contention
SLOTS = 16


def bridge(policy, **settings):
    """Settings of a test: every snapshot is checked against all rules, and a slow machine is no fault."""
    return BridgeConfig(**{"policy": policy, "imports": CHAOS, "budget_ms": 3000.0, "validate": True, **settings})


def server(model, config, *flags, kv_tokens=KV_TOKENS, python_core=False, **variables):
    environment = {**tiny_environment(), **variables}
    if python_core:
        environment["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
    return start_server(
        [*tiny_flags(model, kv_tokens=kv_tokens, max_running=SLOTS), *flags], config, environment=environment
    )


def outcomes(running, prompts, **how):
    return asyncio.run(run_prompts(running.url, prompts, **how))


def settled(running, seconds=30.0):
    """Waits until the bridge knows of no request, and returns its state."""
    deadline = time.monotonic() + seconds
    while True:
        state = running.state()
        if state["requests"] == 0 or time.monotonic() > deadline:
            return state
        time.sleep(0.2)


def assert_clean(running):
    """Allocator and locks are back where they began, and the server answers."""
    state = settled(running)
    pool = state["pool"]
    assert state["requests"] == 0
    assert state["locked_tokens"] == {}
    assert pool["protected"] == 0
    assert pool["available"] + pool["evictable"] == pool["total"]
    running.post("/flush_cache", None)
    assert running.state()["pool"]["available"] == pool["total"]
    answer = running.post(
        "/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    )
    assert len(answer["output_ids"]) == 3
    return state
