"""How well the simulator foretells a real engine: the same traces, policy by policy."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_bridge._engine_time import at_speed, iterations, profile_of_stretch
from topas_bridge._steps import read_log
from topas_env import EngineProfile, InputError, Workload, simulate
from topas_policies import make_policy

__all__ = ["Fidelity", "PolicyFidelity", "fidelity"]

_RUNS = 10  # of each trace
_SPEED_SPREAD, _LATENCY_SPREAD = 0.01, 0.1  # standard deviations of the logarithms


class PolicyFidelity(msgspec.Struct, frozen=True):
    """One policy.

    Attributes:
        policy: Its name in the engine's results.
        engine_mean_s: Mean JCT over traces, measured.
        simulated_mean_s: Mean JCT over traces, simulated.
        mean_error_percent: By how much the simulator is above the engine.
        engine_p99_s: Mean over traces of the p99 JCT, measured.
        simulated_p99_s: The same, simulated.
        p99_error_percent: By how much the simulator is above the engine.
        spread_percent: Standard deviation between simulated runs of one trace, mean over traces.
        slowness: Mean factor between the engine's batch times in the traces and those of the profile.
    """

    policy: str
    engine_mean_s: float
    simulated_mean_s: float
    mean_error_percent: float
    engine_p99_s: float
    simulated_p99_s: float
    p99_error_percent: float
    spread_percent: float
    slowness: float = 1.0


class Fidelity(msgspec.Struct, frozen=True):
    """All policies.

    Attributes:
        policies: One entry a policy, in the order of the results.
        rank_correlation: Spearman's, of the mean JCTs; None with fewer than three policies.
    """

    policies: list[PolicyFidelity]
    rank_correlation: float | None


def fidelity(
    lines: list[dict[str, Any]], traces: tuple[Workload, ...], profile: EngineProfile, folder: Path | None = None
) -> Fidelity:
    """Simulates the traces of an engine comparison and compares.

    The engine stands still for a policy's decisions in the simulator as long as they took on the engine, on average.

    A busy engine is chaotic: where steps take a little longer, other requests meet, and the mean JCT of a trace changes
    by up to a tenth. What can be foretold is an average, so each trace is simulated ten times, at speeds that differ by
    1% and call latencies that differ by 10% (standard deviations; the same draws for all policies).

    Args:
        lines: Results of `bench_policies`, a line for each policy and trace.
        traces: The same traces.
        profile: A profile that was measured on the same engine, with its KV pool and slots.
        folder: Folder of the comparison. With it each trace is simulated at the speed that the engine had in it by its
            own log: the machine under an engine is not always equally fast. One factor a trace, for all its times, and
            the reservation where the profile has a constant one.

    Raises:
        InputError: No task of a policy's trace was finished, so there is nothing to compare.
    """
    for line in lines:
        if line["mean_jct_s"] is None:
            raise InputError(f"fidelity: {line['policy']} trace {line['trace']}: no task was finished")
    entries = []
    for policy in dict.fromkeys(line["policy"] for line in lines):
        own = sorted((line for line in lines if line["policy"] == policy), key=lambda line: line["trace"])
        ran = None if folder is None else iterations(read_log(folder / f"steps-{policy}.jsonl"))
        charged = float(np.mean([line.get("decision_ms", 0.0) for line in own])) / 1e3
        runs, speeds = [], []
        for line in own:
            now = profile if ran is None else profile_of_stretch(profile, ran, line["began_s"], line["ended_s"])
            speeds.append(now.step_base_s / profile.step_base_s)
            runs.append(_simulated(traces[line["trace"]], policy, now, charged))
        engine_mean = float(np.mean([line["mean_jct_s"] for line in own]))
        engine_p99 = float(np.mean([line["p99_jct_s"] for line in own]))
        means = np.array([[jct.mean() for jct in trace] for trace in runs])
        mean = float(means.mean())
        p99 = float(np.mean([np.percentile(jct, 99) for trace in runs for jct in trace]))
        entries.append(
            PolicyFidelity(
                policy,
                engine_mean,
                mean,
                100.0 * (mean / engine_mean - 1.0),
                engine_p99,
                p99,
                100.0 * (p99 / engine_p99 - 1.0),
                float(100.0 * (means.std(axis=1, ddof=1) / means.mean(axis=1)).mean()),
                float(np.mean(speeds)),
            )
        )
    return Fidelity(entries, _spearman(entries))


def _simulated(trace: Workload, policy: str, profile: EngineProfile, charged_s: float) -> list[NDArray[np.float64]]:
    """Returns the JCTs of a trace, seconds, float64 (num_tasks,), once for each simulated run."""
    draws = np.random.default_rng(0)
    found = []
    for _ in range(_RUNS):
        now = at_speed(profile, float(np.exp(draws.normal(0.0, _SPEED_SPREAD))))
        late = profile.call_latency_s * float(np.exp(draws.normal(0.0, _LATENCY_SPREAD)))
        now = msgspec.structs.replace(now, call_latency_s=late)
        ran = simulate(trace, make_policy(policy), profile=now, seed=0, decision_time_s=charged_s or None)
        found.append(ran.jct_s)
    return found


def _spearman(entries: list[PolicyFidelity]) -> float | None:
    if len(entries) < 3:
        return None
    from scipy.stats import spearmanr

    found = spearmanr([entry.engine_mean_s for entry in entries], [entry.simulated_mean_s for entry in entries])
    return float(found.statistic)
