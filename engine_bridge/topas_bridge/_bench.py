"""`topas bench`: a workload replayed against an endpoint, or against one server for each policy."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_bridge._config import BridgeConfig
from topas_bridge._lengths import VARIABLE as LENGTHS
from topas_bridge._replay import Replay, ReplayOptions, replay
from topas_bridge._serve import ENGINE_POLICIES, serve_environment
from topas_bridge._steps import VARIABLE as STEPS
from topas_bridge.testing import Server, start_server
from topas_env import Workflow, Workload
from topas_env._errors import InputError

__all__ = ["BenchPlan", "bench_endpoint", "bench_policies", "summary"]


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of policies on real servers.

    Attributes:
        policies: Names from the registry; those of `ENGINE_POLICIES` are SGLang alone.
        traces: The traces, replayed one after the other on each policy's server; each policy gets all of them.
        warm_up: Traces that are replayed first and not counted, so that statistics have been learned.
        flags: SGLang's flags, the same for all.
        environment: Variables for SGLang, the same for all.
        config: The bridge's settings but for the policy.
        options: How the traces are replayed.
        python: Interpreter with SGLang.
        engine_core: Core that each server's scheduler gets for itself; None to leave that to the machine.
        interleave: Whether each trace is replayed on all servers before the next, so that all policies meet the same
            machine where its speed changes; servers whose turn it is not are stopped. Else one server after the other.
    """

    policies: tuple[str, ...]
    traces: tuple[Workload, ...]
    warm_up: tuple[Workload, ...]
    flags: tuple[str, ...]
    environment: dict[str, str]
    config: BridgeConfig
    options: ReplayOptions
    python: str
    engine_core: int | None = None
    interleave: bool = False


def summary(result: Replay, **labels: Any) -> dict[str, Any]:
    """Returns one line of results, with SGLang's benchmark names where there are any; times in ms where they say so.

    Args:
        result: A replay.
        **labels: What else belongs on the line, such as policy and seed.
    """
    good = [call for call in result.calls if not call.error]
    jct = np.array([value for value in result.jct_s if not math.isnan(value)])
    line: dict[str, Any] = dict(labels)
    line |= {
        "num_tasks": len(result.jct_s),
        "failed_tasks": len(result.jct_s) - len(jct),
        "completed": len(good),
        "failed": len(result.calls) - len(good),
        "duration": result.duration_s,
        "late_ms": result.late_s * 1e3,
        "total_input_tokens": sum(call.prompt_tokens for call in good),
        "total_output_tokens": sum(call.output_tokens for call in good),
        "total_cached_tokens": sum(call.cached_tokens for call in good),
        "request_throughput": len(good) / result.duration_s,
        "output_throughput": sum(call.output_tokens for call in good) / result.duration_s,
        "mean_jct_s": _of(np.mean, jct),
        "p99_jct_s": _of(lambda values: np.percentile(values, 99), jct),
    }
    for name, values in (
        ("ttft", [call.first_s - call.sent_s for call in good if call.itl_s]),
        ("itl", [gap for call in good for gap in call.itl_s]),
        ("e2e_latency", [call.done_s - call.sent_s for call in good]),
    ):
        array = np.array(values) * 1e3
        line[f"mean_{name}_ms"] = _of(np.mean, array)
        line[f"median_{name}_ms"] = _of(np.median, array)
        line[f"p99_{name}_ms"] = _of(lambda found: np.percentile(found, 99), array)
    return line


def bench_endpoint(
    url: str, workload: Workload, options: ReplayOptions, notice: Callable[[int], None] = lambda _: None
) -> tuple[dict[str, Any], Replay]:
    """Replays a workload against a server that runs already and returns its line of results.

    Args:
        url: Address of the server, without a path.
        workload: The workload.
        options: How it is replayed.
        notice: Called with the number of finished tasks.

    Raises:
        InputError: No request was answered; the message has the first error.
    """
    result = asyncio.run(replay(url, workload, options, notice))
    if all(call.error for call in result.calls):
        raise InputError(f"{url}: no request was answered; the first error is {result.calls[0].error}")
    return summary(result, workload=workload.name, backend=options.api), result


def bench_policies(
    plan: BenchPlan, folder: Path, notice: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Starts a server for each policy, replays all traces on each, and writes everything to `folder`.

    Written are `settings.json` before the first run, `results.jsonl` (a line for each policy and trace), the requests
    of each run beside it, and a log of what each engine ran (`steps-POLICY.jsonl`).

    Raises:
        InputError: Before anything starts, if a policy is unknown or SGLang is missing.
    """
    for policy in plan.policies:
        serve_environment(msgspec.structs.replace(plan.config, policy=policy))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(_settings(plan), indent=1))
    lines = []
    with (folder / "results.jsonl").open("w") as file:
        for line in _in_turn(plan, folder) if plan.interleave else _one_by_one(plan, folder):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            notice(_progress_line(line))
    return lines


def _progress_line(line: dict[str, Any]) -> str:
    mean = line["mean_jct_s"]
    found = "no task was finished" if mean is None else f"mean JCT {mean:.3f} s"
    return f"{line['policy']} trace {line['trace']}: {found}"


def _one_by_one(plan: BenchPlan, folder: Path) -> Iterator[dict[str, Any]]:
    """Replays all traces on one server after the other."""
    for policy in plan.policies:
        with _server(plan, policy, folder) as server:
            for i in range(-len(plan.warm_up), len(plan.traces)):
                yield from _replay_on(server, plan, policy, i, folder)


def _in_turn(plan: BenchPlan, folder: Path) -> Iterator[dict[str, Any]]:
    """Replays each trace on all servers before the next one; those whose turn it is not stand still."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for policy in plan.policies:
            servers[policy] = stack.enter_context(_server(plan, policy, folder))
            servers[policy].pause()
        for i in range(-len(plan.warm_up), len(plan.traces)):
            first = i % len(plan.policies)
            for policy in plan.policies[first:] + plan.policies[:first]:
                servers[policy].resume()
                yield from _replay_on(servers[policy], plan, policy, i, folder)
                servers[policy].pause()


def _server(plan: BenchPlan, policy: str, folder: Path) -> contextlib.AbstractContextManager[Server]:
    steps = (folder / f"steps-{policy}.jsonl").resolve()
    steps.unlink(missing_ok=True)
    flags = [*plan.flags]
    config = None
    if policy in ENGINE_POLICIES:
        flags += ENGINE_POLICIES[policy]
    else:
        workflows = folder / "workflows.json"
        workflows.write_bytes(msgspec.json.encode(_workflows(plan.traces)))
        config = msgspec.structs.replace(plan.config, policy=policy, workflows=str(workflows.resolve()))
    environment = {**plan.environment, LENGTHS: "1", STEPS: str(steps)}
    return start_server(flags, config, environment=environment, python=plan.python, engine_core=plan.engine_core)


def _replay_on(server: Server, plan: BenchPlan, policy: str, i: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Replays trace `i`, or one to warm up where it is negative, and yields its line of results if it counts."""
    trace = plan.traces[i] if i >= 0 else plan.warm_up[i]
    server.post("/flush_cache", None)
    before = server.state()
    options = msgspec.structs.replace(plan.options, suffix=f"#{i}")
    began = time.monotonic()
    result = asyncio.run(replay(server.url, trace, options))
    ended = time.monotonic()
    if i >= 0:
        line = summary(result, policy=policy, workload=trace.name, trace=i)
        line |= _bridge_columns(before, server.state()) | {"began_s": began, "ended_s": ended}
        path = folder / f"calls-{policy}-{i}.jsonl"
        path.write_bytes(b"\n".join(msgspec.json.encode(call) for call in result.calls))
        (folder / f"jct-{policy}-{i}.json").write_text(json.dumps(result.jct_s))
        yield line
    _check_alive(server, policy)


def _workflows(traces: Sequence[Workload]) -> list[Workflow]:
    """Returns the workflows of all traces, each once."""
    found = {workflow.name: workflow for trace in traces for workflow in trace.workflows}
    return list(found.values())


def _bridge_columns(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Returns our own cost and deeds in a run."""
    if not after:
        return {}
    decisions = after["decisions"] - before["decisions"]
    busy = after["busy_s"] - before["busy_s"]
    return {
        "decisions": decisions,
        "decision_ms": 1e3 * (after["decision_s"] - before["decision_s"]) / max(decisions, 1),
        "overhead_percent": 100.0 * (after["overhead_s"] - before["overhead_s"]) / busy if busy > 0 else 0.0,
        "preemptions": after["counts"]["preemptions"] - before["counts"]["preemptions"],
        "fallbacks": after["counts"]["fallbacks"] - before["counts"]["fallbacks"],
        "faults": sum(after["faults"].values()) - sum(before["faults"].values()),
    }


def _check_alive(server: Server, policy: str) -> None:
    if not server.alive:
        raise InputError(f"topas bench: the server of policy {policy} has ended:\n{server.tail()}")


def _settings(plan: BenchPlan) -> dict[str, Any]:
    from topas_bridge.engine.version import sglang_version

    return {
        "sglang": sglang_version(),
        "policies": list(plan.policies),
        "traces": [{"workload": t.name, "num_tasks": t.num_tasks, "num_requests": t.num_requests} for t in plan.traces],
        "warm_up": len(plan.warm_up),
        "interleave": plan.interleave,
        "flags": list(plan.flags),
        "environment": plan.environment,
        "bridge": msgspec.to_builtins(plan.config),
        "replay": msgspec.to_builtins(plan.options),
    }


def _of(statistic: Callable[[Any], Any], values: Sequence[float] | np.ndarray[Any, Any]) -> float | None:
    return float(statistic(values)) if len(values) else None
