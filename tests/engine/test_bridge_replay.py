"""Open-loop replay against a stand-in of a server: what is sent, when, and in which order."""

import asyncio
import json

import pytest

from topas_bridge._replay import ReplayOptions, replay
from topas_env import load_workload

web = pytest.importorskip("aiohttp.web", reason="comes with SGLang's environment: make engine-slice")


def call(suffix, history, output, tool=0.0):
    return {
        "suffix_tokens": suffix,
        "history_tokens": history,
        "output_tokens": output,
        "max_new_tokens": 9,
        "tool_s": tool,
    }


FILE = {
    "version": 1,
    "name": "w",
    "workflows": [
        {
            "name": "w",
            "agents": [{"name": "A", "prefix_tokens": 20}, {"name": "B", "prefix_tokens": 10}],
            "stages": [
                {"name": "a", "agent": "A", "after": []},
                {"name": "b", "agent": "B", "after": ["a"]},
                {"name": "c", "agent": "B", "after": ["a"]},
            ],
        }
    ],
    "tasks": [
        {
            "id": f"t{i}",
            "workflow": "w",
            "arrival_s": 0.1 * i,
            "stages": [
                {"name": "a", "calls": [call(5, 0, 3, tool=0.05), call(12, 8, 2)]},
                {"name": "b", "calls": [call(4, 0, 2)]},
                {"name": "c", "calls": [call(4, 0, 2)]},
            ],
        }
        for i in range(2)
    ],
}


async def serve(handler):
    app = web.Application()
    app.router.add_post("/generate", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, site._server.sockets[0].getsockname()[1]


def run(tmp_path, options, fails=lambda body: False):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(FILE))
    workload = load_workload(str(path))
    seen = []

    async def handler(request):
        body = await request.json()
        params = body["sampling_params"]["custom_params"]
        seen.append(("start", body))
        await asyncio.sleep(0.02)
        seen.append(("end", body))
        if fails(body):
            return web.json_response({"error": "no"}, status=500)
        count = params.get("stop_after") or body["sampling_params"]["max_new_tokens"]
        tokens = [1000 + i for i in range(count)]
        meta = {"finish_reason": {"type": "length"}, "completion_tokens": count, "cached_tokens": 4}
        return web.json_response({"output_ids": tokens, "meta_info": meta})

    async def both():
        runner, port = await serve(handler)
        try:
            return await replay(f"http://127.0.0.1:{port}", workload, options)
        finally:
            await runner.cleanup()

    return asyncio.run(both()), seen


def test_stages_follow_the_graph_and_calls_repeat_their_history(tmp_path):
    result, seen = run(tmp_path, ReplayOptions(stream=False, lengths="stop_after"))
    assert all(jct > 0.1 for jct in result.jct_s)  # three steps of 0.02 s and a tool of 0.05 s
    assert len(result.calls) == 8
    assert all(not record.error for record in result.calls)
    mine = [(what, body) for what, body in seen if body["sampling_params"]["custom_params"]["task"] == "t0"]
    stages = [(what, body["sampling_params"]["custom_params"]["stage"]) for what, body in mine]
    assert stages[:4] == [("start", "a"), ("end", "a"), ("start", "a"), ("end", "a")]
    assert sorted(stages[4:]) == [("end", "b"), ("end", "c"), ("start", "b"), ("start", "c")]
    first, second = mine[0][1], mine[2][1]
    assert first["sampling_params"]["custom_params"]["last_call"] is False
    assert second["sampling_params"]["custom_params"]["last_call"] is True
    assert first["sampling_params"]["max_new_tokens"] == 9  # not the recorded output
    assert first["sampling_params"]["custom_params"]["stop_after"] == 3
    assert second["input_ids"][:20] == first["input_ids"][:20]  # the agent's prefix
    # 8 tokens of history: the first call's 5 suffix tokens and its 3 output tokens
    assert second["input_ids"][20:28] == [*first["input_ids"][20:25], 1000, 1001, 1002]
    assert len(second["input_ids"]) == 20 + 12


def test_a_failed_call_fails_its_task_alone(tmp_path):
    def fails(body):
        params = body["sampling_params"]["custom_params"]
        return params["task"] == "t1" and params["stage"] == "b"

    result, _ = run(tmp_path, ReplayOptions(stream=False), fails)
    assert result.jct_s[0] > 0
    assert result.jct_s[1] != result.jct_s[1]  # NaN
    failed = [record for record in result.calls if record.error]
    assert len(failed) == 1
    assert failed[0].error.startswith("RuntimeError: status 500")
