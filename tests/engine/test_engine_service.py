"""What people see of the bridge: state, metrics, commands, shadow mode, refusal to start, and older and newer cores."""

import importlib.metadata
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from engine.engine_kit import assert_clean, bridge, outcomes, server, settled
from topas_bridge.testing import make_prompts, tiny_environment

pytestmark = pytest.mark.engine
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
FRAMEWORKS = {"langgraph": "langgraph_agents.py", "openai-agents": "agents_sdk.py"}  # distribution, example


def run_example(name, url):
    """Runs a documented example against a server; it drives five tasks of three stages."""
    command = [sys.executable, str(EXAMPLES / name), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("5 tasks done"), done.stderr[-1000:]


def test_shadow_changes_nothing_and_logs(tiny_model, tmp_path):
    from topas_bridge.client import define_workflow, end_task
    from topas_env import Snapshot
    from topas_policies import make_policy

    prompts = make_prompts(60, seed=3)
    config = bridge("chaos-preempt", shadow=True, dump_dir=str(tmp_path), log_decisions=True, faults=3)
    with server(tiny_model, config, "--enable-metrics") as running:
        found = outcomes(running, prompts)
        assert all(outcome.reason == "length" for outcome in found)
        assert sum(outcome.retractions for outcome in found) == 0
        state = settled(running)
        assert state["counts"]["preemptions"] == 0
        assert state["decisions"] > 10
        snapshots = (tmp_path / "snapshots.jsonl").read_bytes().splitlines()
        assert len(snapshots) == len((tmp_path / "decisions.jsonl").read_bytes().splitlines()) >= state["decisions"]
        for line in snapshots:  # every one is a valid snapshot that any policy answers
            make_policy("topas").decide(Snapshot.from_json(line))

        # commands go through SGLang's own endpoint
        assert running.post("/set_internal_state", {"server_args": {"topas_enable": 0}})
        assert running.state()["off"]
        running.post("/set_internal_state", {"server_args": {"topas_enable": 1, "topas_dump": 1}})
        assert not running.state()["off"]
        dumped = list(tmp_path.glob("snapshot-*.json"))
        assert len(dumped) == 1
        Snapshot.from_json(dumped[0].read_bytes())

        # workflows registered while running, tasks that end by word
        workflow = {
            "name": "late",
            "agents": [{"name": "A", "prefix_tokens": 0}],
            "stages": [{"name": "x", "agent": "A", "after": []}, {"name": "y", "agent": "A", "after": ["x"]}],
        }
        define_workflow(running.url, workflow)
        assert "late" in running.state()["workflows"]
        tags = {"workflow": "late", "task": "t", "stage": "x", "last_call": True}
        body = {
            "model": "x",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 3,
            "custom_params": tags,
        }
        assert running.post("/v1/chat/completions", body)["choices"]
        assert settled(running)["tasks"] == 1
        end_task(running.url, "t")
        assert settled(running)["tasks"] == 0

        # the documented example: three agents, tasks of three stages
        run_example("three_agents.py", running.url)
        state = settled(running)
        assert state["tasks"] == 0  # every task was seen through to its end
        assert state["agents"]["coder"]["prefix_tokens"] > 100  # learned from the common system prompt

        # the same with agent frameworks, where they are installed
        installed = {found.metadata["Name"] for found in importlib.metadata.distributions()}
        for framework in installed.intersection(FRAMEWORKS):
            before = state["tags"]["workflow_tasks_completed"]
            run_example(FRAMEWORKS[framework], running.url)
            state = settled(running)
            assert state["tasks"] == 0
            assert state["tags"]["workflow_tasks_completed"] == before + 5

        with urllib.request.urlopen(running.url + "/metrics") as answer:
            metrics = answer.read().decode()
        for name in ("topas:decision_seconds_bucket", "topas:events_total", "topas:task_jct_seconds_count"):
            assert name in metrics
        assert_clean(running)


REFUSE = """
import os, sys
os.environ["TOPAS_BRIDGE"] = '{"policy": "fcfs"}'
import sglang.srt.managers.scheduler as scheduler
%s
from sglang.srt.plugins import load_plugins
load_plugins()
print("started")
"""


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("del scheduler.Scheduler.update_running_batch", "Scheduler.update_running_batch"),
        ("scheduler.Scheduler.get_new_batch_prefill = lambda self: None", "get_new_batch_prefill(self, running_batch)"),
        (
            "from sglang.srt.plugins.hook_registry import HookRegistry as h; h._apply_target = lambda *a: 0",
            "Scheduler.__init__",
        ),
    ],
)
def test_refuses_to_start_without_a_hook(damage, named):
    import os

    done = subprocess.run(
        [sys.executable, "-c", REFUSE % damage],
        env={**os.environ, **tiny_environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "started" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("topas: SGLang 0.5.")
    assert named in last


def test_starts_with_all_hooks():
    import os

    done = subprocess.run(
        [sys.executable, "-c", REFUSE % ""],
        env={**os.environ, **tiny_environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip().endswith("started"), done.stderr[-2000:]


def test_unsupported_mode_is_refused(tiny_model):
    started = server(tiny_model, bridge("fcfs"), "--enable-priority-scheduling")
    with pytest.raises(RuntimeError, match="--enable-priority-scheduling"), started:
        pass
