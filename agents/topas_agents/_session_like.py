"""Generated workloads that are like recorded coding-agent sessions, to train on; the recorded ones stay held out.

Sessions of one conversation each: many calls with a growing history, long waits for tools, a system prompt of its own
for nearly every session, and now and then subagents beside the main one. Medians are near those of the recorded
sessions, spreads are drawn anew for each population.
"""

import functools

import numpy as np

from topas_env._core.trace import CALL
from topas_env._trace_build import build_trace
from topas_env._workflow import Agent, Stage, Workflow
from topas_env._workload import Workload

__all__ = ["POPULATIONS", "SESSION_LIKE", "session_like"]

SESSION_LIKE = "session-like"
"""Its name in a configuration."""

POPULATIONS = 64
_TASKS = 80
_MAX_NEW = 32_000
_LONGEST = 150_000  # tokens after the prefix; a stage ends before its prompt would be longer
_RATE = 0.0125


@functools.lru_cache(maxsize=POPULATIONS)
def session_like(number: int) -> Workload:
    """Returns population `number`, from 0 to `POPULATIONS` - 1: 80 sessions, arrivals at 0.0125 a second."""
    rng = np.random.default_rng([7_100_001, number])
    workflows = [_workflow(k, rng) for k in range(int(rng.integers(25, 45)))]
    more_calls = float(rng.uniform(6.0, 18.0))
    output = float(rng.uniform(150.0, 400.0))
    wait_s = float(rng.uniform(4.0, 16.0))
    growth = float(rng.uniform(600.0, 1500.0))
    flow = rng.integers(len(workflows), size=_TASKS)
    counts, rows = [], []
    for task in flow.tolist():
        for stage in workflows[task].stages:
            mean = more_calls if stage.name.startswith("main") else more_calls / 2.0
            number_of_calls = min(1 + int(rng.exponential(mean)), 64)
            suffix = float(np.clip(3300.0 * np.exp(1.5 * rng.standard_normal()), 300.0, _LONGEST / 2))
            before, made = 0.0, 0
            while made < number_of_calls and suffix <= _LONGEST:
                answer = float(np.clip(output * np.exp(1.1 * rng.standard_normal()), 8.0, 12_000.0))
                wait = float(min(wait_s * np.exp(1.2 * rng.standard_normal()), 2_000.0))
                kept = 0.99 * before if rng.random() < 0.9 else 0.6 * before
                rows.append((int(suffix), int(min(kept, suffix)), int(answer), _MAX_NEW, wait))
                before = suffix + answer
                suffix = before + growth * float(np.exp(1.3 * rng.standard_normal()))
                made += 1
            rows[-1] = (*rows[-1][:4], 0.0)  # the last call's answer ends the stage
            counts.append(made)
    calls = np.zeros(len(rows), CALL)
    for name, column in zip(("suffix", "history", "output", "max_new", "tool"), zip(*rows, strict=True), strict=True):
        calls[name] = column
    ids = [f"s{k:03d}" for k in range(_TASKS)]
    arrival = np.cumsum(rng.exponential(1.0 / _RATE, _TASKS))
    stages = [len(w.stages) for w in workflows]
    trace, ids = build_trace(ids, arrival, flow.astype(np.int64), stages, np.array(counts, np.int64), calls)
    return Workload(f"{SESSION_LIKE}-{number}", tuple(workflows), trace, ids, arrival_rate=_RATE)


def _workflow(number: int, rng: np.random.Generator) -> Workflow:
    """Returns one session's workflow: mostly one stage, one in ten with two subagents between two main stages."""
    main = Agent(f"main-{number:02d}", int(np.clip(rng.normal(15_000.0, 2_500.0), 8_000.0, 23_000.0)))
    if rng.random() >= 0.1:
        return Workflow(f"session-{number:02d}", (main,), (Stage("main", main.name, ()),))
    helper = Agent(f"helper-{number:02d}", int(rng.uniform(3_000.0, 12_000.0)))
    stages = (
        Stage("main-1", main.name, ()),
        Stage("help-1", helper.name, ("main-1",)),
        Stage("help-2", helper.name, ("main-1",)),
        Stage("main-2", main.name, ("help-1", "help-2")),
    )
    return Workflow(f"session-{number:02d}", (main, helper), stages)
