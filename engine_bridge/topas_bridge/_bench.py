"""`topas bench`: a workload replayed against an endpoint, or against one server for each policy."""

import asyncio
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_bridge._config import BridgeConfig
from topas_bridge._lengths import VARIABLE as LENGTHS
from topas_bridge._replay import Replay, ReplayOptions, replay
from topas_bridge._serve import serve_environment
from topas_bridge.testing import Server, start_server
from topas_env import Workload
from topas_env._errors import InputError

__all__ = ["ENGINE_POLICIES", "BenchPlan", "bench_endpoint", "bench_policies", "mean_over_traces", "summary"]

ENGINE_POLICIES = ("sglang-fcfs", "sglang-lpm")
"""SGLang alone with its own schedule policies."""


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of policies on real servers.

    Attributes:
        policies: Names from the registry, and from `ENGINE_POLICIES`.
        traces: The traces, replayed one after the other on each policy's server; each policy gets all of them.
        warm_up: A trace that is replayed first and not counted, so that statistics have been learned; None for none.
        flags: SGLang's flags, the same for all.
        environment: Variables for SGLang, the same for all.
        config: The bridge's settings but for the policy.
        options: How the traces are replayed.
        python: Interpreter with SGLang.
    """

    policies: tuple[str, ...]
    traces: tuple[Workload, ...]
    warm_up: Workload | None
    flags: tuple[str, ...]
    environment: dict[str, str]
    config: BridgeConfig
    options: ReplayOptions
    python: str


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
    """Replays a workload against a server that runs already and returns its line of results."""
    result = asyncio.run(replay(url, workload, options, notice))
    return summary(result, workload=workload.name, backend=options.api), result


def bench_policies(
    plan: BenchPlan, folder: Path, notice: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Starts a server for each policy, replays all traces on it, and writes everything to `folder`.

    Written are `settings.json` before the first run, `results.jsonl` (a line for each policy and trace) and the
    requests of each run beside it.

    Raises:
        InputError: Before anything starts, if a policy is unknown or SGLang is missing.
    """
    for policy in plan.policies:
        if policy not in ENGINE_POLICIES:
            serve_environment(msgspec.structs.replace(plan.config, policy=policy))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(_settings(plan), indent=1))
    lines = []
    with (folder / "results.jsonl").open("w") as file:
        for policy in plan.policies:
            for line in _bench_one(plan, policy, folder, notice):
                lines.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
    return lines


def _bench_one(plan: BenchPlan, policy: str, folder: Path, notice: Callable[[str], None]) -> list[dict[str, Any]]:
    environment = {**plan.environment, LENGTHS: "1"}
    flags = [*plan.flags]
    config = None
    if policy in ENGINE_POLICIES:
        flags += ["--schedule-policy", policy.removeprefix("sglang-")]
    else:
        workflows = folder / "workflows.json"
        workflows.write_bytes(msgspec.json.encode(plan.traces[0].workflows))
        config = msgspec.structs.replace(plan.config, policy=policy, workflows=str(workflows.resolve()))
    lines = []
    with start_server(flags, config, environment=environment, python=plan.python) as server:
        for i, trace in enumerate(([plan.warm_up] if plan.warm_up is not None else []) + list(plan.traces)):
            counted = i - (plan.warm_up is not None)
            server.post("/flush_cache", None)
            before = server.state()
            options = msgspec.structs.replace(plan.options, suffix=f"#{i}")
            result = asyncio.run(replay(server.url, trace, options))
            if counted < 0:
                continue
            line = summary(result, policy=policy, workload=trace.name, trace=counted)
            line |= _bridge_columns(before, server.state())
            lines.append(line)
            path = folder / f"calls-{policy}-{counted}.jsonl"
            path.write_bytes(b"\n".join(msgspec.json.encode(call) for call in result.calls))
            (folder / f"jct-{policy}-{counted}.json").write_text(json.dumps(result.jct_s))
            notice(f"{policy} trace {counted}: mean JCT {line['mean_jct_s']:.3f} s")
        _check_alive(server, policy)
    return lines


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
        "warm_up": plan.warm_up is not None,
        "flags": list(plan.flags),
        "environment": plan.environment,
        "bridge": msgspec.to_builtins(plan.config),
        "replay": msgspec.to_builtins(plan.options),
    }


def _of(statistic: Callable[[Any], Any], values: Sequence[float] | np.ndarray[Any, Any]) -> float | None:
    return float(statistic(values)) if len(values) else None


def mean_over_traces(lines: list[dict[str, Any]], field: str) -> dict[str, float]:
    """Returns the mean of a field over the traces, by policy."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line[field] is not None:
            found.setdefault(line["policy"], []).append(line[field])
    return {policy: statistics.fmean(values) for policy, values in found.items()}
