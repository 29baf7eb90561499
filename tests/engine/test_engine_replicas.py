"""Two replicas behind SGLang's own router: the requests of a task stay on one of them."""

import asyncio
import importlib.util
import subprocess
import sys
import time
import urllib.request

import pytest

from engine.engine_kit import assert_clean, bridge, server, settled
from topas_bridge.client import define_workflow, stage, tagged
from topas_bridge.testing import free_port

HAS_ROUTER = importlib.util.find_spec("sglang_router") is not None
WORKFLOW = {
    "name": "feature",
    "agents": [{"name": name, "prefix_tokens": 0} for name in ("planner", "coder", "tester")],
    "stages": [
        {"name": "plan", "agent": "planner", "after": []},
        {"name": "code", "agent": "coder", "after": ["plan"]},
        {"name": "test", "agent": "tester", "after": ["plan"]},
    ],
}
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


async def feature(client, model, name):
    """A task of three stages, two of them in parallel, as text completions: what this router hands on with its tags."""

    async def ask(agent):
        prompt = f"You are the {agent}. " + "Follow the rules of the house. " * 4 + name
        with stage("feature", task=name, stage=agent):
            answer = await client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=0)
        return answer.usage.completion_tokens

    return [await ask("plan"), *await asyncio.gather(ask("code"), ask("test"))]


async def features(url, model, count):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        tagged(client)
        return await asyncio.gather(*(feature(client, model, f"task-{i}") for i in range(count)))


def test_a_task_stays_on_one_replica(tiny_model, tmp_path):
    with (
        server(tiny_model, bridge("topas")) as one,
        server(tiny_model, bridge("topas")) as two,
        (tmp_path / "router.log").open("wb") as log,
    ):
        for replica in (one, two):
            define_workflow(replica.url, WORKFLOW)
        process, url = start_router([one.url, two.url], log)
        try:
            found = asyncio.run(features(url, str(tiny_model), 16))
        finally:
            process.terminate()
            process.wait(20.0)
        assert all(0 < tokens <= 16 for task in found for tokens in task)
        finished = [settled(replica)["tags"].get("workflow_tasks_completed", 0) for replica in (one, two)]
        states = [assert_clean(replica) for replica in (one, two)]
    # A task that was spread over both would stay unfinished on them.
    assert sum(finished) == 16
    assert min(finished) > 0
    assert [state["tasks"] for state in states] == [0, 0]
    assert all(state["faults"] == {} for state in states)
