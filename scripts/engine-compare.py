#!/usr/bin/env python3
"""The comparison of docs/bridge.md: policies on the tiny engine with a small KV pool, and the simulator beside it.

Run it in the engine environment (`scripts/engine-env.sh`): first `--calibrate`, then without, then `--report` with the
same `--workloads` and `--traces`. All settings are here and are written to `settings.json` before the first request.
`--rates` prints what `LOADS` should be on the calibrated profile.
"""

import argparse
import sys
from pathlib import Path

import msgspec
import numpy as np

from topas_bridge._bench import BenchPlan, bench_policies
from topas_bridge._bench_table import fidelity_table
from topas_bridge._calibrate_log import calibrate_logged
from topas_bridge._config import BridgeConfig
from topas_bridge._fidelity import fidelity
from topas_bridge._replay import ReplayOptions
from topas_bridge._scale import scale_workload
from topas_bridge.testing import make_tiny_checkpoint, tiny_environment, tiny_flags
from topas_env import Workload, load_profile, load_workload, simulate
from topas_env.compare import mean_interval, paired_percent
from topas_policies import make_policy

SCALE = 1 / 8  # of prompts and outputs
CLOCK = 1 / 20  # of tool waits
# Tasks a second (what the simulator serves at most with fcfs on the calibrated profile: `--rates`), tasks of a trace.
LOADS = {"chain-3": (7.6, 80), "dag-4": (4.9, 60), "metagpt-tl": (1.2, 16)}
WARM_UP_SEED = 900
BUSY_SEED, BUSY_RATE, BUSY_TRACES = 901, 1e3, 3  # all tasks at once, three traces' worth of them
KV_TOKENS, SLOTS = 2320, 32  # the pool of the paper's profile, scaled as prompts are
POLICIES = "sglang-fcfs,sglang-lpm,lpm,gated-lpm,hold-many,topas,topas-keep,rollout,learned"


def draw(name: str, seed: int, tasks: int, rate: float | None = None) -> Workload:
    """Returns one trace, at the rate of `LOADS` or another one (tasks a second)."""
    rate = LOADS[name][0] if rate is None else rate
    workload = load_workload(name, arrival_rate=rate * CLOCK, num_tasks=tasks, seed=seed)
    return scale_workload(workload, prompt=SCALE, output=SCALE, time=CLOCK)


def flags(model: str, kv_tokens: int) -> tuple[str, ...]:
    """Returns SGLang's flags."""
    return tuple(tiny_flags(make_tiny_checkpoint(model), kv_tokens=kv_tokens, max_running=SLOTS))


def draw_all(workloads: list[str], traces: int) -> tuple[Workload, ...]:
    """Returns all traces that count, in the order of their numbers: what is cut short has as many of each workload."""
    return tuple(draw(name, seed, LOADS[name][1]) for seed in range(traces) for name in workloads)


def rates(profile: Path, workloads: list[str]) -> None:
    """Prints how many tasks a second of each workload the simulator serves at most with fcfs."""
    engine = load_profile(profile, kv_budget_tokens=KV_TOKENS)
    for name in workloads:
        busy = draw(name, BUSY_SEED, BUSY_TRACES * LOADS[name][1], BUSY_RATE)
        jct = simulate(busy, make_policy("fcfs"), profile=engine, seed=0).jct_s
        sys.stdout.write(f"{name} {len(jct) / float((busy.trace.arrival + jct).max()):.2f}\n")


def report(out: Path, profile: Path, workloads: list[str], traces: tuple[Workload, ...]) -> None:
    """Prints, for each workload, the comparison and the fidelity."""
    lines = [msgspec.json.decode(line) for line in (out / "results.jsonl").read_bytes().splitlines()]
    engine = load_profile(profile, kv_budget_tokens=KV_TOKENS)
    for name in workloads:
        own = [line for line in lines if line["workload"] == name]
        policies = list(dict.fromkeys(line["policy"] for line in own))
        traced = sorted({line["trace"] for line in own})
        whole = [t for t in traced if len({line["policy"] for line in own if line["trace"] == t}) == len(policies)]
        own = [line for line in own if line["trace"] in whole]
        table = {
            p: sorted((line for line in own if line["policy"] == p), key=lambda line: line["trace"]) for p in policies
        }
        means = {p: np.array([line["mean_jct_s"] for line in rows]) for p, rows in table.items()}
        sys.stdout.write(f"\n{name}, {len(whole)} traces\n")
        for policy, rows in table.items():
            mean = mean_interval(means[policy])
            cells = [f"{policy:12} mean JCT {mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}] s"]
            for other in ("sglang-fcfs", "sglang-lpm"):
                if other in means and policy != other:
                    change = paired_percent(means[policy], means[other])
                    cells.append(f"against {other} {change.value:+.0f}% [{change.low:+.0f}, {change.high:+.0f}]")
            cells.append(f"p99 {np.mean([line['p99_jct_s'] for line in rows]):.2f} s")
            for field, form in (("overhead_percent", "ours {:.1f}%"), ("decision_ms", "{:.2f} ms a decision")):
                if rows[0].get(field) is not None:
                    cells.append(form.format(np.mean([line[field] for line in rows])))
            counted = ("preemptions", "fallbacks", "faults", "failed")
            cells += [f"{field} {sum(line.get(field, 0) for line in rows)}" for field in counted]
            sys.stdout.write("; ".join(cells) + "\n")
        sys.stdout.write(fidelity_table(fidelity(own, traces, engine, out)) + "\n")


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/engine-compare"))
    parser.add_argument("--model", default="runs/tiny")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--workloads", default=",".join(LOADS))
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--engine-core", type=int)
    parser.add_argument("--python-core", action="store_true", help="the radix cache in Python, with forced eviction")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    profile = asked.out / "profile.json"
    workloads = asked.workloads.split(",")
    traces = draw_all(workloads, asked.traces)
    environment = tiny_environment()
    if asked.python_core:
        environment["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
    if asked.rates:
        rates(profile, workloads)
        return
    if asked.report:
        report(asked.out, profile, workloads, traces)
        return
    if asked.calibrate:
        fit = calibrate_logged(
            flags(asked.model, 4875),
            name="tiny",
            environment=environment,
            engine_core=asked.engine_core,
            context=1200,
            output=40,
        )
        profile.write_bytes(msgspec.json.format(msgspec.json.encode(fit.profile)))
        return
    plan = BenchPlan(
        policies=tuple(asked.policies.split(",")),
        traces=traces,
        warm_up=tuple(draw(name, WARM_UP_SEED, max(LOADS[name][1] // 2, 6)) for name in workloads),
        flags=flags(asked.model, KV_TOKENS),
        environment=environment,
        config=BridgeConfig(
            policy="fcfs", profile=str(profile.resolve()), evict="forced" if asked.python_core else "lazy"
        ),
        options=ReplayOptions(stream=False, lengths="stop_after"),
        python=sys.executable,
        engine_core=asked.engine_core,
        interleave=True,
    )
    bench_policies(plan, asked.out, lambda text: sys.stdout.write(f"{text}\n"))


if __name__ == "__main__":
    main()
