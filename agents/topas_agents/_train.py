"""A training run from its configuration to a checkpoint: imitation, fine-tuning, evaluation; each part resumes."""

import time
from pathlib import Path
from typing import Any

import msgspec

from topas_agents._checkpoint import Checkpoint, Score, TrainingRecord, load_checkpoint, save_checkpoint
from topas_agents._config import TrainConfig, config_to_dict
from topas_agents._evaluate import evaluate
from topas_agents._policy import LearnedPolicy
from topas_env._errors import InputError

__all__ = ["Reporter", "train"]

_NOT_PART_OF_TRAINING = ("evaluation", "notes", "out")


class Reporter:
    """Where a run says how far it is; this one keeps numbers in tensorboard's files and nothing else.

    Args:
        folder: Of the files; None for no files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def add(self, name: str, value: float, step: int) -> None:
        """Notes a number."""
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)

    def progress(self, what: str, done: int, total: int) -> None:
        """Tells how far a part of the work is."""

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._writer is not None:
            self._writer.close()


def train(config: TrainConfig, reporter: Reporter | None = None) -> Checkpoint:
    """Trains, or goes on where the folder of the run was left, and writes `learned.safetensors` and `learned.json`.

    Args:
        config: What to do; `out` is the folder.
        reporter: Is told how far it is.

    Raises:
        InputError: The folder holds a run with another configuration, or something in the configuration is unknown.
    """
    import torch

    torch.set_num_threads(1)  # ten times as fast as two for so small a network (docs: Stable-Baselines3)
    start = time.perf_counter()
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(config, folder / "config.json")
    log = Reporter(folder / "log") if reporter is None else reporter
    checkpoint: Checkpoint | None = load_checkpoint(config.start) if config.start else None
    if config.imitation is not None and config.imitation.rounds > 0:
        from topas_agents._imitate import imitate

        checkpoint = imitate(config, folder, log)
    if config.fine_tuning is not None and config.fine_tuning.steps > 0:
        from topas_agents._finetune import fine_tune

        checkpoint = fine_tune(config, checkpoint, folder, lambda done, total: log.progress("ppo", done, total))
    if checkpoint is None:
        raise InputError("training: neither imitation nor fine_tuning nor start is given")
    scores: tuple[Score, ...] = ()
    if config.evaluation is not None:
        scores = evaluate(
            LearnedPolicy(checkpoint),
            config.evaluation,
            config.scenarios,
            lambda done, total: log.progress("evaluation", done, total),
        )
    earlier = _wall(folder / "wall_s")
    wall_s = earlier + time.perf_counter() - start
    (folder / "wall_s").write_text(f"{wall_s:.1f}\n")
    old = checkpoint.record
    record = TrainingRecord(
        old.method,
        old.teacher,
        config.seed,
        old.steps,
        old.points,
        round(wall_s, 1),
        {**old.data, "config": config_to_dict(config)},
        scores,
        config.notes,
    )
    checkpoint = Checkpoint(checkpoint.architecture, checkpoint.weights, record)
    save_checkpoint(folder / "learned", checkpoint)
    log.close()
    return checkpoint


def _wall(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0


def _check_same(config: TrainConfig, path: Path) -> None:
    """Checks that a folder was made with the same configuration, and notes it in a fresh one."""
    own = config_to_dict(config)
    if path.exists():
        try:
            known = config_to_dict(msgspec.json.decode(path.read_bytes(), type=TrainConfig))
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: {error}") from None
        for name, value in own.items():
            if name not in _NOT_PART_OF_TRAINING and known[name] != value:
                raise InputError(f"{path}: $.{name} is another one than the configuration's; choose another out")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(own), indent=1) + b"\n")
