"""The search for the parameters of the policy `tuned`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from topas_agents._scenarios import rate_for_load
from topas_env import EngineProfile, load_profile, simulate
from topas_env._errors import InputError
from topas_env._workload import Workload, workload_spec
from topas_policies import make_policy
from topas_policies._tuned import Tuned, TunedParameters, Tuning

__all__ = ["TuneSettings", "tune"]

_BASELINES = ("fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm")


class TuneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is tuned on.

    Attributes:
        workloads: Names or paths.
        profile: Name or path.
        host_tiers: `all`, `none`.
        loads: Utilisation.
        num_tasks: Tasks of a run.
        seeds: Of the traces; report results on others.
        trials: Parameter sets that are tried; the first is TOPAS's own.
        seed: Of the sampler.
    """

    workloads: tuple[str, ...] = ("chain-3", "dag-4", "metagpt-sop", "metagpt-tl")
    profile: str = "qwen2.5-32b-a100-80g"
    host_tiers: tuple[str, ...] = ("all", "none")
    loads: tuple[float, ...] = (0.6, 0.9)
    num_tasks: int = 40
    seeds: tuple[int, ...] = (1_000_000,)
    trials: int = 100
    seed: int = 0


def tune(
    settings: TuneSettings, storage: str | Path | None = None, progress: Callable[[int, int, float], None] | None = None
) -> Tuning:
    """Searches with Optuna's TPE sampler.

    The objective is the geometric mean over all runs of mean JCT over that of the point's best baseline.

    Args:
        settings: What to tune on.
        storage: Journal of the study; the search goes on from it. None keeps it in memory.
        progress: Called with the trials so far, the trials wanted and the best objective so far.

    Raises:
        InputError: A workload or profile is unknown, or a list is empty.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    runs = _runs(settings)

    def objective(trial: Any) -> float:
        parameters = TunedParameters(
            move=trial.suggest_float("move", 0.02, 10.0, log=True),
            redo=trial.suggest_float("redo", 0.02, 10.0, log=True),
            revoke=trial.suggest_float("revoke", 0.02, 10.0, log=True),
            reuse=trial.suggest_float("reuse", 0.01, 10.0, log=True),
            rho=trial.suggest_float("rho", 0.0, 3.0),
            min_gain=trial.suggest_float("min_gain", 0.0, 2.0),
            max_changes=trial.suggest_categorical("max_changes", (0, 2, 4, 8)),
            max_enumerated=trial.suggest_int("max_enumerated", 4, 8),
        )
        logs = []
        for i, (workload, profile, best) in enumerate(runs):
            logs.append(math.log(simulate(workload, Tuned(parameters), profile=profile).mean_jct_s / best))
            # A median over what earlier trials had after as many runs ends hopeless ones early.
            if i % 4 == 3:
                trial.report(float(np.mean(logs)), i)
                if trial.should_prune():
                    raise optuna.TrialPruned
        return math.exp(float(np.mean(logs)))

    backend = None
    if storage is not None:
        Path(storage).parent.mkdir(parents=True, exist_ok=True)
        from optuna.storages.journal import JournalFileBackend

        backend = optuna.storages.JournalStorage(JournalFileBackend(str(storage)))
    study = optuna.create_study(
        study_name="tuned",
        storage=backend,
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=settings.seed, multivariate=False),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=8),
    )
    own = msgspec.structs.asdict(TunedParameters())
    if not study.trials:
        study.enqueue_trial(own)
        study.enqueue_trial(own | {"min_gain": 0.3})
    while (done := _ended(study)) < settings.trials or not _finished(study):
        study.optimize(objective, n_trials=1)
        if progress is not None:
            progress(done + 1, settings.trials, study.best_value if _finished(study) else math.inf)
    first = _finished(study)[0]
    record = {
        "method": "Optuna TPE, median pruning",
        "settings": msgspec.json.decode(msgspec.json.encode(settings)),
        "objective": "geometric mean over runs of mean JCT over the best baseline's at the same trace",
        "trials": _ended(study),
        "objective_of_topas_parameters": first.value if first.number == 0 else None,
        "objective_found": study.best_value,
        "runs_per_trial": len(runs),
    }
    return Tuning(1, TunedParameters(**study.best_params), record)


def _ended(study: Any) -> int:
    """Returns the number of trials that came to an end, pruned ones included."""
    return sum(trial.state.is_finished() for trial in study.trials)


def _finished(study: Any) -> list[Any]:
    return [trial for trial in study.trials if trial.value is not None and trial.state.name == "COMPLETE"]


def _runs(settings: TuneSettings) -> list[tuple[Workload, EngineProfile, float]]:
    """Returns each trace with its engine and the mean JCT of the best baseline on it, in a fixed shuffled order."""
    runs = []
    for name in settings.workloads:
        source = workload_spec(name)
        for tier in settings.host_tiers:
            profile = load_profile(settings.profile, host_tier=tier)
            for load in settings.loads:
                rate = rate_for_load(source, profile, load)
                for seed in settings.seeds:
                    workload = source.draw(seed=seed, num_tasks=settings.num_tasks, arrival_rate=rate)
                    best = min(simulate(workload, make_policy(name), profile=profile).mean_jct_s for name in _BASELINES)
                    runs.append((workload, profile, best))
    if not runs:
        raise InputError("topas tune: workloads, host tiers, loads or seeds are empty")
    order = np.random.default_rng(settings.seed).permutation(len(runs))
    return [runs[i] for i in order]
