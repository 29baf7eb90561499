"""What a simulated run leaves: completion times, a table of requests, a table of decisions, counters."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.world import (
    ITL_BINS,
    ITL_LEAST_S,
    ITL_RATIO,
    LOG_ADMIT,
    LOG_FINISH,
    LOG_PREEMPT,
    LOG_RETRACT,
    World,
)
from topas_env._profile import EngineProfile
from topas_env._topology import topology
from topas_env._utilisation import call_prefixes
from topas_env._workload import Workload

__all__ = ["REQUEST_TABLE", "SPAN", "SimulationResult"]

REQUEST_TABLE = np.dtype(
    [
        ("task", "i4"),
        ("stage", "i4"),  # position in the task's workflow
        ("call", "i4"),  # of the stage, from 0
        ("agent", "i4"),  # index into `agent_names`
        ("ready_s", "f8"),
        ("admitted_s", "f8"),  # first admission
        ("readmitted_s", "f8"),  # last admission
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("input_tokens", "i8"),  # prefix and suffix
        ("output_tokens", "i8"),
        ("cached_tokens", "i8"),  # of the suffix, at the last admission
        ("preemptions", "i4"),  # by the policy
        ("retractions", "i4"),  # by memory
    ],
    align=True,
)
SPAN = np.dtype([("start", "f8"), ("end", "f8"), ("agent", "i4"), ("call", "i8"), ("lost", "i4")], align=True)
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The outcome of one run. All times are simulated seconds, but for `decision_wall_s`.

    Attributes:
        workload: What was served.
        profile: The engine that served it.
        policy: Name of the policy.
        seed: Seed that the policy was reset with.
        world: The final state of the simulator.
    """

    workload: Workload
    profile: EngineProfile
    policy: str
    seed: int
    world: World

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """Completion time minus arrival of each task, float64 (num_tasks,)."""
        return self.world.jct

    @property
    def mean_jct_s(self) -> float:
        """Mean of `jct_s`."""
        return float(self.jct_s.mean())

    @property
    def p99_jct_s(self) -> float:
        """99th percentile of `jct_s`, linearly interpolated."""
        return float(np.percentile(self.jct_s, 99))

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Names of the agents, sorted: the order of agent indices."""
        return topology(self.workload.workflows).agent_names

    @property
    def decisions(self) -> NDArray[Any]:
        """One row for each decision: see `DECISION` in `_core/world.py` for the columns."""
        return self.world.decisions[: self._count("n_decision_rows")]

    @property
    def decision_wall_s(self) -> NDArray[np.float64]:
        """Measured seconds of each decision: the only numbers here that depend on the machine."""
        return self.world.wall[: self._count("n_decision_rows")]

    @cached_property
    def requests(self) -> NDArray[Any]:
        """One row for each call, REQUEST_TABLE (num_requests,), in the order of the trace."""
        trace, done = self.workload.trace, self.world.results
        counts = np.diff(trace.first_call)
        stage_counts = np.diff(np.append(trace.stage0, len(counts)))
        task = np.repeat(np.arange(len(trace.arrival)), stage_counts)
        stage = np.arange(len(counts)) - np.repeat(trace.stage0, stage_counts)
        t = topology(self.workload.workflows)
        agent = t.stages["agent"][t.workflows["stage0"][trace.workflow[task]] + stage]
        table = np.zeros(len(trace.calls), REQUEST_TABLE)
        table["task"] = np.repeat(task, counts)
        table["stage"] = np.repeat(stage, counts)
        table["call"] = np.arange(len(trace.calls)) - np.repeat(trace.first_call[:-1], counts)
        table["agent"] = np.repeat(agent, counts)
        for name in ("ready", "admitted", "readmitted", "first_token", "finish"):
            table[f"{name}_s"] = done[name]
        table["input_tokens"] = call_prefixes(self.workload) + trace.calls["suffix"]
        table["output_tokens"] = np.maximum(trace.calls["output"], 1)
        table["cached_tokens"] = done["cached"]
        table["preemptions"] = done["preemptions"]
        table["retractions"] = done["retractions"]
        return table

    @property
    def makespan_s(self) -> float:
        """Time from the first arrival to the last completion."""
        trace = self.workload.trace
        return float((trace.arrival + self.jct_s).max() - trace.arrival[0])

    @property
    def mean_batch(self) -> float:
        """Mean number of running requests over the time in which there was one."""
        busy = float(self.world.clock[0]["busy"])
        return float(self.world.clock[0]["batch_area"]) / busy if busy > 0 else 0.0

    @property
    def prefix_moves(self) -> int:
        """How often a prefix that lay in memory nowhere was made resident: loads and (re)computations."""
        return self.loads + self.computes

    @property
    def loads(self) -> int:
        """Prefixes loaded from host memory."""
        return self._count("loads")

    @property
    def computes(self) -> int:
        """Prefixes that were made resident to be computed, the first time included."""
        return self._count("computes")

    @property
    def evictions(self) -> int:
        """Whole prefixes that left GPU memory."""
        return self._count("evictions")

    @property
    def preemptions(self) -> int:
        """Requests that the policy preempted."""
        return self._count("preemptions")

    @property
    def retractions(self) -> int:
        """Requests that lost their place because memory ran out."""
        return self._count("retractions")

    @property
    def forced_admissions(self) -> int:
        """Requests admitted because the policy left the engine with nothing to do or wait for."""
        return self._count("forced")

    @cached_property
    def spans(self) -> NDArray[Any]:
        """Each attempt of a request, from admission to completion or loss, SPAN (n,); empty without `record=True`."""
        lines = self.world.log[: self._count("n_log")]
        ends = lines[np.isin(lines["kind"], (LOG_FINISH, LOG_PREEMPT, LOG_RETRACT))]
        starts = lines[lines["kind"] == LOG_ADMIT]
        # An attempt ends before the next one of its call starts: the k-th start of a call belongs to its k-th end.
        order = np.argsort(starts["call"], kind="stable")
        last = np.argsort(ends["call"], kind="stable")
        spans = np.zeros(len(ends), SPAN)
        spans["start"][last] = starts["time"][order][: len(ends)]
        spans["end"] = ends["time"]
        spans["agent"] = ends["agent"]
        spans["call"] = ends["call"]
        spans["lost"] = ends["kind"] != LOG_FINISH
        return spans

    @property
    def samples(self) -> NDArray[Any]:
        """Memory over time, SAMPLE (m,) with `time`, `used` and `leaves`; empty without `record=True`."""
        return self.world.samples[: self._count("n_samples")]

    @property
    def sample_tokens(self) -> NDArray[np.int64]:
        """Memory of each agent at these times, int64 (m, n_agents, 2): its prefix, its running requests."""
        return self.world.sample_tokens[: self._count("n_samples")]

    def summary(self) -> dict[str, float]:
        """Returns the figures of the run under SGLang's benchmark names where there are some, and ours.

        Latencies are milliseconds of one call: `ttft` from ready to the first token, `e2e_latency` from ready to the
        end, `tpot` = (e2e - ttft) / (output - 1) of calls with more than one token. `itl`: gaps between the tokens of a
        call, stalls and preemptions included, from a histogram whose bins are 2% wide.
        """
        r = self.requests
        span = self.makespan_s
        inputs, outputs = int(r["input_tokens"].sum()), int(r["output_tokens"].sum())
        ttft = r["first_token_s"] - r["ready_s"]
        latency = r["finish_s"] - r["ready_s"]
        many = r["output_tokens"] > 1
        tpot = (latency - ttft)[many] / (r["output_tokens"][many] - 1)
        clock = self.world.clock[0]
        wall = self.decision_wall_s
        charged = self.decisions["decision_s"]
        figures: dict[str, float] = {
            "duration": span,
            "completed": len(r),
            "num_tasks": len(self.jct_s),
            "total_input_tokens": inputs,
            "total_output_tokens": outputs,
            "request_throughput": _over(len(r), span),
            "task_throughput": _over(len(self.jct_s), span),
            "input_throughput": _over(inputs, span),
            "output_throughput": _over(outputs, span),
            "total_throughput": _over(inputs + outputs, span),
            "concurrency": _over(float(latency.sum()), span),
            "cache_hit_rate_pct": 100.0 * max(0.0, 1.0 - _over(int(clock["prefilled"]), inputs)),
        }
        figures |= _latencies("ttft_ms", ttft) | _latencies("tpot_ms", tpot) | self._itl()
        figures |= _latencies("e2e_latency_ms", latency)
        figures |= {
            "mean_jct_s": self.mean_jct_s,
            "p99_jct_s": self.p99_jct_s,
            "makespan_s": span,
            "mean_batch": self.mean_batch,
            "prefix_moves": self.prefix_moves,
            "loads": self.loads,
            "computes": self.computes,
            "evictions": self.evictions,
            "preemptions": self.preemptions,
            "retractions": self.retractions,
            "forced_admissions": self.forced_admissions,
            "decisions": self._count("n_decisions"),
            # The first one loads kernels and weights, or compiles them.
            "decision_ms": 1e3 * float(wall[min(1, len(wall) - 1) :].mean()) if len(wall) else 0.0,
            "charged_decision_s": float(charged.sum()),
        }
        return figures

    def _count(self, name: str) -> int:
        return int(self.world.clock[0][name])

    def _itl(self) -> dict[str, float]:
        """Returns the statistics of the gaps between tokens, milliseconds, from their histogram."""
        counts = self.world.itl
        total = int(counts.sum())
        if total == 0:
            return {f"{name}_itl_ms": 0.0 for name in _STATISTICS}
        middle = 1e3 * ITL_LEAST_S * ITL_RATIO ** (np.arange(ITL_BINS) + 0.5)
        upto = np.cumsum(counts)
        mean = float((middle * counts).sum() / total)
        std = float(np.sqrt(((middle - mean) ** 2 * counts).sum() / total))
        ranks = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
        found = {name: float(middle[np.searchsorted(upto, rank * total)]) for name, rank in ranks.items()}
        return {f"{name}_itl_ms": value for name, value in ({"mean": mean, "std": std} | found).items()}


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


def _latencies(name: str, seconds: NDArray[np.float64]) -> dict[str, float]:
    if len(seconds) == 0:
        return {f"{statistic}_{name}": 0.0 for statistic in _STATISTICS}
    median, p90, p95, p99 = np.percentile(1e3 * seconds, (50, 90, 95, 99))
    values = (1e3 * float(seconds.mean()), median, 1e3 * float(seconds.std()), p90, p95, p99)
    return {f"{statistic}_{name}": float(value) for statistic, value in zip(_STATISTICS, values, strict=True)}
