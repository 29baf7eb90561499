"""`make bench`: speed and memory of the simulator, the environment and TOPAS, each beside a yardstick of the run."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from yardsticks import cartpole_steps_per_s, heap_events_per_s

PROFILE = "qwen2.5-32b-a100-80g"


@dataclass(frozen=True)
class Line:
    """One number of the table and its goal."""

    what: str
    value: float
    unit: str
    goal: float
    more_is_better: bool = True

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal


def median_of(times: int, run: Callable[[], float]) -> float:
    """Returns the median of some rates or times."""
    return statistics.median(run() for _ in range(times))


class Plain:
    """A policy without its compiled path."""

    def __init__(self, policy: object) -> None:
        self._policy = policy
        self.name = policy.name
        self.manages_prefixes = getattr(policy, "manages_prefixes", False)
        self.reset = policy.reset
        self.decide = policy.decide


class Recorder(Plain):
    """A plain policy that keeps the snapshots it was shown, every so many."""

    def __init__(self, policy: object, every: int) -> None:
        super().__init__(policy)
        self.snapshots: list[object] = []
        seen = 0

        def decide(snapshot: object) -> object:
            nonlocal seen
            seen += 1
            if seen % every == 0:
                self.snapshots.append(snapshot)
            return policy.decide(snapshot)

        self.decide = decide


def simulate_rate(policy_name: str, tasks: int, *, plain: bool) -> float:
    """Returns simulated requests a second of one run on chain-3."""
    from topas_env import load_workload, simulate
    from topas_policies import make_policy

    workload = load_workload("chain-3", num_tasks=tasks, seed=0)
    policy = make_policy(policy_name)
    start = time.perf_counter()
    simulate(workload, Plain(policy) if plain else policy, profile=PROFILE, seed=0)
    return workload.num_requests / (time.perf_counter() - start)


def _allowed(observation: dict[str, np.ndarray], draw: np.ndarray) -> np.ndarray:
    """Returns a random allowed action for each row of the observation."""
    return (draw * observation["action_mask"].sum(axis=-1)).astype(np.int64)


def _spf(observation: dict[str, np.ndarray], draw: np.ndarray) -> np.ndarray:  # noqa: ARG001
    """Returns the candidate that spf would choose for each row of the observation."""
    from topas_env._core.features import CANDIDATE_FEATURES

    rows = observation["candidates"]
    table = rows.reshape(*rows.shape[:-1], -1, len(CANDIDATE_FEATURES))
    return table[..., CANDIDATE_FEATURES.index("by_spf")].argmax(axis=-1)


Choose = Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]


def env_rate(decisions: int, choose: Choose = _allowed) -> float:
    """Returns decisions a second of one environment, dag-4 at 0.10. At random its queue grows to forty requests."""
    import gymnasium as gym

    import topas_env  # noqa: F401

    env = gym.make("TopasPrefixState-v0", workload="dag-4", arrival_rate=0.10, num_tasks=100, profile=PROFILE)
    observation, _ = env.reset(seed=0)
    draws = np.random.default_rng(0).random(decisions)
    start = time.perf_counter()
    for draw in draws:
        observation, _, terminated, truncated, _ = env.step(int(choose(observation, draw)))
        if terminated or truncated:
            observation, _ = env.reset()
    rate = decisions / (time.perf_counter() - start)
    env.close()
    return rate


def batch_rate(steps: int, envs: int = 256, choose: Choose = _allowed) -> float:
    """Returns decisions a second of the batched environment."""
    import gymnasium as gym

    import topas_env  # noqa: F401

    batch = gym.make_vec(
        "TopasPrefixState-v0", num_envs=envs, workload="dag-4", arrival_rate=0.10, num_tasks=100, profile=PROFILE
    )
    observation, _ = batch.reset(seed=0)
    draws = np.random.default_rng(0).random((steps, envs))
    start = time.perf_counter()
    for draw in draws:
        observation, *_ = batch.step(choose(observation, draw))
    rate = steps * envs / (time.perf_counter() - start)
    batch.close()
    return rate


def decision_times(workload_name: str, tasks: int = 300) -> tuple[float, float]:
    """Returns mean milliseconds of one TOPAS decision: in the compiled kernel, and through `decide`."""
    from topas_env import load_workload, simulate
    from topas_env._core.choice import empty_choice
    from topas_env._core.decide import decide
    from topas_env._pack import pack
    from topas_policies import make_policy

    workload = load_workload(workload_name, num_tasks=tasks, seed=1)
    policy = make_policy("topas")
    recorder = Recorder(policy, every=3)
    simulate(workload, recorder, profile=PROFILE, seed=0)
    compiled = policy.compiled()
    assert compiled is not None
    code, params = compiled
    kernel_s = plain_s = 0.0
    for snapshot in recorder.snapshots:
        start = time.perf_counter()
        policy.decide(snapshot)
        plain_s += time.perf_counter() - start
        view = pack(snapshot).v
        choice = empty_choice(len(view.agents), len(view.requests))
        kernel_s += _kernel_time(decide, view, code, params, choice)
    count = len(recorder.snapshots)
    return kernel_s / count * 1e3, plain_s / count * 1e3


def _kernel_time(decide: Callable[..., object], view: object, code: int, params: object, choice: object) -> float:
    start = time.perf_counter()
    decide(view, code, params, choice)
    return time.perf_counter() - start


def synthetic_decision_ms(agents: int, requests: int, scenarios: int = 64) -> float:
    """Returns milliseconds of one TOPAS decision in the kernel on a snapshot of the given size."""
    from snapshots import big_snapshot

    from topas_env import Snapshot
    from topas_env._core.choice import empty_choice
    from topas_env._core.decide import decide
    from topas_env._pack import pack
    from topas_policies import make_policy

    view = pack(Snapshot.from_dict(big_snapshot(agents, requests))).v
    compiled = make_policy("topas", scenarios=scenarios).compiled()
    assert compiled is not None
    code, params = compiled
    choice = empty_choice(len(view.agents), len(view.requests))
    _kernel_time(decide, view, code, params, choice)
    return median_of(5, lambda: _kernel_time(decide, view, code, params, choice)) * 1e3


def child(task: str) -> tuple[float, float]:
    """Returns seconds and peak MiB of a task in a process of its own."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TOPAS_CACHE_DIR": folder} if task == "first-use" else dict(os.environ)
        done = subprocess.run(
            [sys.executable, __file__, "--child", task], check=True, env=env, capture_output=True, text=True
        )
    return time.perf_counter() - start, float(done.stdout.split()[-1])


def run_child(task: str) -> None:
    """Does a task and prints this process's peak memory, MiB."""
    from topas_env import load_workload, simulate
    from topas_policies import make_policy

    tasks = 100_000 if task == "memory" else 20
    simulate(load_workload("chain-3", num_tasks=tasks, seed=0), make_policy("spf"), profile=PROFILE, seed=0)
    if task == "first-use":
        simulate(load_workload("dag-4", num_tasks=20, seed=0), make_policy("topas"), profile=PROFILE, seed=0)
        env_rate(20)
        batch_rate(2, 4)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Measures and prints the tables; a goal that is missed is said so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child)
        return
    out = Console(width=None if sys.stdout.isatty() else 110)
    with out.status("first use after installation"):
        compile_s, _ = child("first-use")
    with out.status("100,000 tasks"):
        _, peak = child("memory")
    with out.status("yardsticks"):
        cartpole = median_of(3, cartpole_steps_per_s)
        heap = median_of(3, heap_events_per_s)
    with out.status("simulate"):
        simulate_rate("spf", 200, plain=False)
        compiled = median_of(5, lambda: simulate_rate("spf", 20_000, plain=False))
        plain = median_of(3, lambda: simulate_rate("spf", 1_000, plain=True))
    with out.status("environment"):
        env_rate(500)
        single = median_of(3, lambda: env_rate(10_000))
        single_spf = median_of(3, lambda: env_rate(10_000, _spf))
        batch_rate(5)
        batched = median_of(3, lambda: batch_rate(100))
        batched_spf = median_of(3, lambda: batch_rate(100, choose=_spf))
    with out.status("TOPAS"):
        decision_times("metagpt-sop", 20)
        sop = decision_times("metagpt-sop")
        wide = decision_times("dag-10-wide")
        large = synthetic_decision_ms(64, 1000)
    lines = [
        Line("simulate, spf, chain-3, compiled", compiled, "requests/s", 50_000),
        Line("the same, requests a CartPole step", compiled / cartpole, "", 0.3),
        Line("the same through plain decide", plain, "requests/s", 2_000),
        Line("env, dag-4, candidates, at random", single, "decisions/s", 10_000),
        Line("the same, spf's actions", single_spf, "decisions/s", 10_000),
        Line("batched env of 256, at random", batched, "decisions/s", 30_000),
        Line("the same, spf's actions", batched_spf, "decisions/s", 30_000),
        Line("TOPAS decision, metagpt-sop, kernel", sop[0], "ms", 0.1, more_is_better=False),
        Line("TOPAS decision, metagpt-sop, decide", sop[1], "ms", 0.5, more_is_better=False),
        Line("TOPAS decision, dag-10-wide, kernel", wide[0], "ms", 0.1, more_is_better=False),
        Line("TOPAS decision, dag-10-wide, decide", wide[1], "ms", 0.5, more_is_better=False),
        Line("TOPAS decision, 64 agents, 1,000 ready", large, "ms", 10, more_is_better=False),
        Line("100,000 tasks, peak memory", peak, "MiB", 1024, more_is_better=False),
        Line("first use, compilation included", compile_s, "s", 30, more_is_better=False),
    ]
    out.print(f"CartPole-v1 through gym.make: {cartpole:,.0f} steps/s; heapq: {heap:,.0f} events/s")
    print_lines(out, lines, cartpole, heap)
    print_growth(out)


def print_lines(out: Console, lines: list[Line], cartpole: float, heap: float) -> None:
    """Prints the table; a time counts as its inverse, decisions a second."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("what")
    for heading in ("measured", "goal", "per CartPole step", "per heapq event"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for line in lines:
        rate = {"ms": 1e3 / line.value}.get(line.unit, line.value if line.unit.endswith("/s") else None)
        sign = "≥" if line.more_is_better else "≤"
        table.add_row(
            line.what,
            f"{line.value:,.3g} {line.unit}" if line.value < 1000 else f"{line.value:,.0f} {line.unit}",
            f"{sign} {line.goal:,g}",
            "" if rate is None else f"{rate / cartpole:.3f}",
            "" if rate is None else f"{rate / heap:.4f}",
            "met" if line.met else "missed",
        )
    out.print(table)


def print_growth(out: Console) -> None:
    """Prints how a TOPAS decision grows with agents, ready requests and scenarios."""
    table = Table(box=box.SIMPLE_HEAD, title="One TOPAS decision in the kernel, ms", title_justify="left")
    table.add_column("ready requests", justify="right")
    sizes = (4, 16, 64)
    for agents in sizes:
        table.add_column(f"{agents} agents", justify="right")
    for requests in (64, 250, 1000):
        table.add_row(str(requests), *(f"{synthetic_decision_ms(agents, requests):.3f}" for agents in sizes))
    out.print(table)
    cells = [f"{scenarios}: {synthetic_decision_ms(16, 250, scenarios):.3f}" for scenarios in (16, 64, 256)]
    out.print("16 agents, 250 ready requests, by scenarios: " + ", ".join(cells))


if __name__ == "__main__":
    main()
