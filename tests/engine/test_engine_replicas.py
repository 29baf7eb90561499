"""Two replicas behind SGLang's own router: the requests of a task stay on one of them."""

import asyncio
import importlib.util
import subprocess
import sys
import time
import urllib.request

import msgspec
import pytest

from engine.engine_kit import assert_clean, bridge, server, settled
from topas_bridge._replay import ReplayOptions, replay
from topas_bridge._scale import scale_workload
from topas_bridge.client import define_workflow
from topas_bridge.testing import free_port
from topas_env import load_workload

HAS_ROUTER = importlib.util.find_spec("sglang_router") is not None
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_ROUTER, reason="the sglang-router wheel is not installed"),
]


def start_router(urls, log):
    port = free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls, "--policy", "manual"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(url + "/readiness", timeout=2.0) as answer:
                if answer.status == 200:
                    return process, url
        except OSError:
            time.sleep(0.5)
    process.kill()
    raise AssertionError("the router did not start")


def completed(state):
    return state["tags"].get("tasks_completed", 0)


def test_a_task_stays_on_one_replica(tiny_model, tmp_path):
    workload = scale_workload(load_workload("dag-4", num_tasks=16, seed=1), prompt=1 / 16, output=1 / 32, time=0.01)
    with (
        server(tiny_model, bridge("topas")) as one,
        server(tiny_model, bridge("topas")) as two,
        (tmp_path / "router.log").open("wb") as log,
    ):
        for replica in (one, two):
            define_workflow(replica.url, msgspec.to_builtins(workload.workflows[0]))
        before = [completed(settled(replica)) for replica in (one, two)]
        process, url = start_router([one.url, two.url], log)
        try:
            result = asyncio.run(replay(url, workload, ReplayOptions(stream=False)))
        finally:
            process.terminate()
            process.wait(20.0)
        assert [call.error for call in result.calls if call.error] == []
        finished = [completed(settled(replica)) - n for replica, n in zip((one, two), before, strict=True)]
        states = [assert_clean(replica) for replica in (one, two)]
    # A task whose stages were spread over both would stay unfinished on one of them.
    assert sum(finished) == 16
    assert min(finished) > 0
    assert [state["tasks"] for state in states] == [0, 0]
    assert all(state["faults"] == {} for state in states)
