"""The tools around the bridge, without an engine: client, scaling, calibration's fit, summaries, versions, settings."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from engine.fake_engine import FakeReq
from topas_bridge import client as tagging
from topas_bridge._calibrate import Measurements, fit_profile
from topas_bridge._config import VARIABLE, BridgeConfig, config_from_environment, config_to_environment
from topas_bridge._lengths import _end_in_time
from topas_bridge._replay import CallRecord, Replay
from topas_bridge._scale import scale_workload
from topas_bridge._serve import serve
from topas_bridge._workflows import read_workflows
from topas_bridge.engine.version import version_tuple
from topas_env import load_workload
from topas_env._errors import InputError


def fake_openai(seen):
    def create(*args, **kwargs):
        seen.append(kwargs)

    return SimpleNamespace(
        chat=SimpleNamespace(completions=SimpleNamespace(create=create)), completions=SimpleNamespace(create=create)
    )


def test_tagged_client_merges_tags_of_client_block_and_call():
    seen = []
    client = tagging.tagged(fake_openai(seen), "w", task="t")
    with tagging.stage(stage="a"), tagging.stage(last_call=False):
        client.chat.completions.create(model="m", extra_body={"top_k": 1})
    client.completions.create(model="m", extra_body=tagging.tags(stage="b", task="u"))
    assert seen[0]["extra_body"] == {
        "top_k": 1,
        "custom_params": {"workflow": "w", "task": "t", "stage": "a", "last_call": False},
    }
    assert seen[1]["extra_body"] == {"custom_params": {"workflow": "w", "task": "u", "stage": "b"}}
    assert tagging.current_tags() == {}


def test_stage_blocks_of_concurrent_tasks_do_not_mix():
    seen = []
    client = tagging.tagged(fake_openai(seen), "w")

    async def one(name):
        with tagging.stage(stage=name):
            await asyncio.sleep(0)
            client.completions.create(model=name)

    async def both():
        await asyncio.gather(one("a"), one("b"))

    asyncio.run(both())
    assert {call["model"]: call["extra_body"]["custom_params"]["stage"] for call in seen} == {"a": "a", "b": "b"}


def test_scaling_keeps_the_shape_of_a_workload():
    workload = load_workload("dag-4", num_tasks=5, seed=0)
    small = scale_workload(workload, prompt=1 / 16, output=1 / 8, time=1 / 100)
    assert small.trace.calls["suffix"].min() >= 1
    assert (small.trace.calls["history"] < small.trace.calls["suffix"]).all()
    assert (small.trace.calls["max_new"] >= small.trace.calls["output"]).all()
    np.testing.assert_allclose(small.trace.arrival, workload.trace.arrival / 100)
    before, after = workload.workflows[0].agents[0], small.workflows[0].agents[0]
    assert after.prefix_tokens == round(before.prefix_tokens / 16)
    with pytest.raises(InputError, match="scale output"):
        scale_workload(workload, output=0.0)


def test_fit_finds_the_lines_that_made_the_points():
    engine = {"version": "x", "model": "m", "device": "cpu", "kv": 4096, "slots": 16, "chunk": 512, "mixed": False}
    engine |= {"conservativeness": 2.0}
    prefill = [(n, 0.004 + 2e-5 * n) for n in (32, 128, 512, 1024)]
    steps = [(n, n * c, 0.002 + 3e-4 * n + 1e-6 * n * c) for n in (1, 4, 16) for c in (50, 250)]
    profile = fit_profile("p", Measurements(prefill, steps, engine))
    assert profile.prefill_base_s == pytest.approx(0.004, rel=1e-6)
    assert profile.prefill_s_per_token == pytest.approx(2e-5, rel=1e-6)
    assert profile.step_base_s == pytest.approx(0.002, rel=1e-6)
    assert profile.step_s_per_request == pytest.approx(3e-4, rel=1e-6)
    assert profile.step_s_per_kv_token == pytest.approx(1e-6, rel=1e-6)
    assert (profile.kv_budget_tokens, profile.max_running_requests, profile.chunk_tokens) == (4096, 16, 512)
    assert (profile.reserve_ratio, profile.reserve_min_ratio) == (1.0, pytest.approx(0.14))


@pytest.mark.engine
def test_sglang_alone_is_started_with_its_own_schedule_policy(monkeypatch):
    started = []
    monkeypatch.setattr("os.execve", lambda _, command, environment: started.append((command[3:], environment)))
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in ("sglang-lpm", "spf"):
        serve(BridgeConfig(policy=name), ["--model-path", "m"])
    (alone, without), (plugged, with_plugin) = started
    assert alone == ["--model-path", "m", "--schedule-policy", "lpm"]
    assert plugged == ["--model-path", "m"]
    assert VARIABLE in with_plugin
    assert VARIABLE not in without
    with pytest.raises(InputError, match="--shadow: sglang-lpm"):
        serve(BridgeConfig(policy="sglang-lpm", shadow=True), ["--model-path", "m"])


def test_summary_counts_failures_and_uses_sglangs_names():
    from topas_bridge._bench import summary

    good = CallRecord(0, 0, 0, "A", 1.0, 1.5, 3.0, 100, 3, 3, 20, (0.5, 1.0))
    bad = CallRecord(1, 0, 0, "A", 2.0, 4.0, 4.0, 100, 0, 3, 0, (), "status 500")
    line = summary(Replay([2.0, float("nan")], [good, bad], 4.0, 0.0), policy="p")
    assert (line["completed"], line["failed"], line["failed_tasks"], line["mean_jct_s"]) == (1, 1, 1, 2.0)
    assert (line["mean_ttft_ms"], line["mean_itl_ms"], line["mean_e2e_latency_ms"]) == (500.0, 750.0, 2000.0)
    assert line["request_throughput"] == 0.25
    json.dumps(line)


def test_a_trace_of_which_nothing_was_finished_is_said_to_be_so():
    from topas_bridge._bench import _progress_line, summary
    from topas_bridge._fidelity import fidelity
    from topas_env import load_profile

    bad = CallRecord(0, 0, 0, "A", 2.0, 4.0, 4.0, 100, 0, 3, 0, (), "status 500")
    line = summary(Replay([float("nan")], [bad], 4.0, 0.0), policy="p", trace=3)
    assert _progress_line(line) == "p trace 3: no task was finished"
    assert _progress_line(line | {"mean_jct_s": 2.0}) == "p trace 3: mean JCT 2.000 s"
    with pytest.raises(InputError, match="p trace 3: no task was finished"):
        fidelity([line], (), load_profile("toy"))


def test_lengths_end_a_request_in_time_and_leave_others_alone(monkeypatch):
    import sys

    made = SimpleNamespace(FINISH_MATCHED_TOKEN=lambda matched: ("stop", matched))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.schedule_batch", made)
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    req = FakeReq("r", [1], 10, {"stop_after": 3})
    req.output_ids = [7, 8]
    _end_in_time(lambda req: None, req)
    assert req.to_finish is None
    req.output_ids.append(9)
    seen = []
    _end_in_time(lambda req: seen.append(req.sampling_params.ignore_eos), req)
    assert req.to_finish == ("stop", 9)
    assert seen == [True]  # a stop token that the model draws does not end it
    assert req.sampling_params.ignore_eos is False  # and the scheduler does not learn of it
    for odd in (None, {}, {"stop_after": "3"}, {"stop_after": None}):
        other = FakeReq("r", [1], 10, odd)
        other.output_ids = [1] * 5
        _end_in_time(lambda req: None, other)
        assert other.to_finish is None


def test_workflows_are_read_from_a_workload_file(tmp_path):
    workload = load_workload("chain-3", num_tasks=2, seed=0)
    for name in ("w.json", "w.jsonl"):
        workload.to_file(tmp_path / name)
        assert [w.name for w in read_workflows(tmp_path / name)] == ["chain-3"]
    bad = tmp_path / "bad.json"
    bad.write_text('[{"name": "w", "agents": [], "stages": [{"name": "s", "agent": "A", "after": []}]}]')
    with pytest.raises(InputError, match=r"bad.json.*\[0\].stages\[0\].agent"):
        read_workflows(bad)


def test_settings_survive_the_environment(monkeypatch):
    config = BridgeConfig(policy="topas", options={"beta": 2.0}, imports=("m",), reserve_ratio=0.4, shadow=True)
    for name, value in config_to_environment(config).items():
        monkeypatch.setenv(name, value)
    assert config_from_environment() == config
    monkeypatch.setenv("TOPAS_BRIDGE", '{"policy": "x", "colour": 1}')
    with pytest.raises(InputError, match="colour"):
        config_from_environment()
    monkeypatch.delenv("TOPAS_BRIDGE")
    assert config_from_environment() is None


def test_versions():
    assert version_tuple("0.5.23.post1") == (0, 5, 23)
    assert version_tuple("0.5.4rc1") == (0, 5, 4)
    assert version_tuple("none") == ()
