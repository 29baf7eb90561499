"""Imitation (DAgger, arXiv:1011.0686): label what the learner itself visits, learn from all labels so far, again."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topas_agents._checkpoint import Checkpoint, TrainingRecord, load_checkpoint, save_checkpoint
from topas_agents._config import Imitation, TrainConfig
from topas_agents._labels import Labels, collect, join, read_labels, write_labels
from topas_agents._network import Scorer
from topas_agents._policy import LearnedPolicy
from topas_agents._teachers import make_teacher
from topas_env._core.codes import CODES

__all__ = ["Log", "fit", "imitate", "soft_target_loss"]


class Log(Protocol):
    """Where numbers go while training."""

    def add(self, name: str, value: float, step: int) -> None:
        """Notes a number."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Tells how far a part of the work is."""


def soft_target_loss(scores: Tensor, regret: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Returns the mean Kullback-Leibler divergence of the policy from the soft targets, times the temperature.

    The policy is the softmax of the scores, the targets that of -regret / temperature. Written out it is the expected
    regret of the policy minus temperature * entropy: linear in the regrets, so noise in them averages out.

    Args:
        scores: float32 (n, k).
        regret: float32 (n, k), in units.
        known: bool (n, k), True where a candidate was labelled; the others are left out.
        temperature: In the same units.
    """
    log = torch.log_softmax(scores.masked_fill(~known, torch.finfo(scores.dtype).min), dim=1)
    policy = log.exp() * known
    return (policy * (regret + temperature * log.masked_fill(~known, 0.0))).sum(dim=1).mean()


def fit(scorer: Scorer, labels: Labels, settings: Imitation, rng: np.random.Generator, log: Log, step: int) -> int:
    """Trains on labels with Adam.

    Args:
        scorer: Trained in place.
        labels: All of them; a share is kept for validation.
        settings: How.
        rng: Of the split and of the order.
        log: Gets the loss, and regrets on the points that were kept.
        step: Gradient steps before.

    Returns:
        Gradient steps so far.
    """
    n = len(labels.n_candidates)
    order = rng.permutation(n)
    kept = order[: int(n * settings.holdout)]
    used = order[len(kept) :]
    regret = labels.units()
    data = _tensors(labels, regret)
    optimizer = torch.optim.Adam(scorer.parameters(), settings.learning_rate)
    batches = -(-len(used) // settings.batch_size)
    total = settings.epochs * batches
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: 0.55 + 0.45 * math.cos(math.pi * min(t / total, 1.0))
    )
    for epoch in range(settings.epochs):
        for batch in _batches(used, settings.batch_size, rng):
            overall, rows, mask, known, over = (column[batch] for column in data)
            scores, _ = scorer(overall, rows, mask)
            loss = soft_target_loss(scores, over, known, settings.temperature)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            log.add("imitation/loss", loss.item(), step)
        log.progress("learning", epoch + 1, settings.epochs)
    for part, index in (("train", used), ("validation", kept)):
        if len(index):
            log.add(f"imitation/{part}_regret", _chosen_regret(scorer, data, index), step)
    for name, value in _baseline_regrets(labels, regret, kept if len(kept) else used).items():
        log.add(f"imitation/regret_of_{name}", value, step)
    return step


def imitate(config: TrainConfig, folder: Path, log: Log) -> Checkpoint:
    """Runs all rounds, and goes on after the last one that is finished in the folder.

    Args:
        config: With `imitation`.
        folder: Gets `labels-N.npz` and `round-N.safetensors` with its .json for each round.
        log: Gets numbers.

    Returns:
        The last round's checkpoint.
    """
    settings = config.imitation
    assert settings is not None
    teacher = make_teacher(settings.teacher, settings.teacher_options)
    scorer = Scorer(config.architecture, config.seed)
    current: Checkpoint | None = None
    if config.start:
        current = load_checkpoint(config.start)
        scorer = Scorer(current.architecture)
        scorer.put(current.weights)
    parts: list[Labels] = []
    step = 0
    for turn in range(settings.rounds):
        rng = np.random.default_rng([config.seed, turn])
        path = folder / f"labels-{turn}.npz"
        if path.exists():
            parts.append(read_labels(path))
        else:
            margin = 0.0 if settings.preempt else None
            learner = None if current is None else LearnedPolicy(current, preempt_margin=margin)
            listed = scorer.architecture.candidate_list
            parts.append(collect(config.scenarios, settings, teacher, learner, rng, _telling(log, turn), listed))
            write_labels(path, parts[-1])
        made = folder / f"round-{turn}.safetensors"
        if made.exists():
            current = load_checkpoint(made)
            scorer.put(current.weights)
            step = current.record.steps
            continue
        labels = join(parts) if settings.preempt else join(parts).calm()
        if turn == 0 and not config.start:
            mask = np.arange(labels.rows.shape[1]) < labels.n_candidates[:, None]
            scorer.standardise(labels.overall, labels.rows[mask])
        step = fit(scorer, labels, settings, np.random.default_rng([config.seed, turn, 1]), log, step)
        record = TrainingRecord("imitation", teacher.name, config.seed, step, len(labels.n_candidates))
        current = Checkpoint(scorer.architecture, scorer.weights(), record)
        save_checkpoint(made, current)
    assert current is not None
    return current


def _telling(log: Log, turn: int) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        log.progress(f"labels of round {turn}", done, total)

    return tell


def _tensors(labels: Labels, regret: NDArray[np.float32]) -> tuple[Tensor, ...]:
    mask = np.arange(labels.rows.shape[1]) < labels.n_candidates[:, None]
    return tuple(torch.from_numpy(x) for x in (labels.overall, labels.rows, mask, labels.known, regret))


def _batches(index: NDArray[np.int64], size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    shuffled = rng.permutation(index)
    for start in range(0, len(shuffled), size):
        yield torch.from_numpy(shuffled[start : start + size])


def _chosen_regret(scorer: Scorer, data: tuple[Tensor, ...], index: NDArray[np.int64]) -> float:
    """Returns the mean regret of the best-scored of the labelled candidates, in units."""
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(index), 1024):
            batch = torch.from_numpy(index[start : start + 1024])
            overall, rows, mask, known, over = (column[batch] for column in data)
            scores, _ = scorer(overall, rows, mask)
            scores = scores.masked_fill(~known, torch.finfo(scores.dtype).min)
            total += float(over.gather(1, scores.argmax(dim=1, keepdim=True)).sum())
    return total / len(index)


def _baseline_regrets(labels: Labels, regret: NDArray[np.float32], index: NDArray[np.int64]) -> dict[str, float]:
    """Returns the mean regret, in units, of what each compiled policy would have chosen at the points."""
    result: dict[str, Any] = {}
    for name, code in CODES.items():
        chosen = (labels.origin[index] >> code) & 1
        has = chosen.any(axis=1)
        if has.any():
            result[name] = float(regret[index][has, chosen[has].argmax(axis=1)].mean())
    return result
