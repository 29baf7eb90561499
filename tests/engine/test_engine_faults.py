"""What breaks around the engine: clients that are killed, servers that are restarted, queues that are full."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from engine.engine_kit import KV_TOKENS, SLOTS, assert_clean, bridge, outcomes, server, settled
from topas_bridge.testing import free_port, make_prompts, start_server, tiny_environment, tiny_flags

pytestmark = pytest.mark.engine
CLIENT = """
import asyncio, sys
from topas_bridge.testing import make_prompts, run_prompts
prompts = [p._replace(output_tokens=2000, delay_s=0.0) for p in make_prompts(12, seed=21)]
print("sending", flush=True)
asyncio.run(run_prompts(sys.argv[1], prompts))
"""


def is_idle(running):
    """SGLang empties its cache only while it has no request."""
    try:
        running.post("/flush_cache", None)
    except OSError:
        return False
    return True


def wait_until_busy(running):
    deadline = time.monotonic() + 120.0
    while is_idle(running):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kill_a_client(running):
    """Kills a client with twelve long requests under way; returns whether the engine is rid of them within a minute."""
    with subprocess.Popen([sys.executable, "-c", CLIENT, running.url], stdout=subprocess.PIPE) as client:
        client.stdout.readline()
        wait_until_busy(running)
        client.send_signal(signal.SIGKILL)
    started = time.monotonic()
    while time.monotonic() - started < 60.0:
        if is_idle(running):
            return True
        time.sleep(0.2)
    return False


@pytest.mark.slow
def test_a_killed_client_leaves_nothing_behind(tiny_model):
    others = make_prompts(20, seed=22)
    with server(tiny_model, None) as plain:
        assert kill_a_client(plain)
        expected = outcomes(plain, others)
    with server(tiny_model, bridge("chaos-preempt")) as running:
        assert kill_a_client(running)
        assert settled(running)["requests"] == 0
        assert [outcome.tokens for outcome in outcomes(running, others)] == [outcome.tokens for outcome in expected]
        assert_clean(running)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "chaos-preempt"])
def test_a_restarted_server_answers_again(tiny_model, policy):
    """Every request of the first life ends, with its output or an error; the second life knows nothing of it."""
    prompts = make_prompts(40, seed=23)
    long = [prompt._replace(output_tokens=2000, delay_s=0.0) for prompt in prompts[:12]]
    port = free_port()
    flags = tiny_flags(tiny_model, kv_tokens=KV_TOKENS, max_running=SLOTS)
    config = None if policy is None else bridge(policy)

    def start():
        return start_server(flags, config, environment=tiny_environment(), port=port)

    def kill(running):
        wait_until_busy(running)
        os.killpg(running.pid, signal.SIGKILL)

    with start() as first:
        expected = outcomes(first, prompts)
        assert {outcome.reason for outcome in expected} == {"length"}
        killer = threading.Thread(target=kill, args=(first,))
        killer.start()
        found = outcomes(first, long)
        killer.join()
    assert {outcome.reason for outcome in found} == {"error"}
    with start() as second:
        assert [outcome.tokens for outcome in outcomes(second, prompts)] == [outcome.tokens for outcome in expected]
        if policy is not None:
            assert_clean(second)


@pytest.mark.slow
def test_full_queue_refuses_as_sglang_does_and_loses_nothing(tiny_model):
    prompts = make_prompts(80, seed=5, rate=500.0)
    refusals = []
    for config in (None, bridge("chaos-preempt")):
        with server(tiny_model, config, "--max-queued-requests", "8") as running:
            found = outcomes(running, prompts)
            refused = [outcome for outcome in found if outcome.reason != "length"]
            assert refused
            refusals.append({(outcome.reason, outcome.detail) for outcome in refused})
            for prompt, outcome in zip(prompts, found, strict=True):
                assert outcome.reason != "length" or len(outcome.tokens) == prompt.output_tokens
            if config is not None:
                assert running.state()["counts"]["preemptions"] > 0
                assert_clean(running)
    assert refusals[0] == refusals[1]
    assert all("queue is full" in detail for _, detail in refusals[0])
