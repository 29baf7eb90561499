"""Checkpoints: weights as safetensors, and beside them what they are and how they came about, as JSON."""

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from topas_agents._architecture import Architecture
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._errors import InputError

__all__ = ["SHIPPED", "Checkpoint", "Score", "TrainingRecord", "load_checkpoint", "save_checkpoint"]

SHIPPED = Path(__file__).parent / "checkpoints" / "learned"
_LARGEST_BYTES = 64 * 2**20


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An evaluation at one operating point.

    Attributes:
        point: The point in words.
        held_out: What of it was never trained on besides the seeds, in words; empty for nothing.
        seeds: Of the traces.
        mean_jct_s: Mean JCT over all tasks of all seeds, by policy.
        best_baseline: The baseline with the lowest.
        relative: Learned over the best baseline: mean of the per-seed ratios, minus 1; negative is better.
        relative_low: Lower end of the paired 95% bootstrap interval over seeds.
        relative_high: Upper end.
    """

    point: str
    held_out: str
    seeds: tuple[int, ...]
    mean_jct_s: dict[str, float]
    best_baseline: str
    relative: float
    relative_low: float
    relative_high: float


class TrainingRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How weights came about.

    Attributes:
        method: `imitation`, `ppo`, or one after the other.
        teacher: What was imitated; empty for nothing.
        seed: Of the run.
        steps: Gradient steps.
        points: Scheduling points that were learned from.
        wall_s: Seconds it took.
        data: The configuration of the run, workloads, profiles, loads and seeds included.
        scores: Evaluations on seeds that were never trained on.
        notes: Anything else that a reader must know.
    """

    method: str
    teacher: str = ""
    seed: int = 0
    steps: int = 0
    points: int = 0
    wall_s: float = 0.0
    data: dict[str, Any] = {}
    scores: tuple[Score, ...] = ()
    notes: str = ""


class _Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    architecture: Architecture
    weights_sha256: str
    global_features: tuple[str, ...]
    candidate_features: tuple[str, ...]
    record: TrainingRecord


class Checkpoint(msgspec.Struct, frozen=True):
    """Weights and what is known of them.

    Attributes:
        architecture: The shape of the network.
        weights: Float32 arrays by name.
        record: How they came about.
    """

    architecture: Architecture
    weights: dict[str, NDArray[np.float32]]
    record: TrainingRecord


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes PATH.safetensors and PATH.json, each in one move.

    Args:
        path: With either ending or none.
        checkpoint: What to write.
    """
    weights, description = _paths(path)
    weights.parent.mkdir(parents=True, exist_ok=True)
    data = save_tensors({name: np.ascontiguousarray(value) for name, value in checkpoint.weights.items()})
    text = msgspec.json.encode(
        _Description(
            1,
            checkpoint.architecture,
            hashlib.sha256(data).hexdigest(),
            GLOBAL_FEATURES,
            CANDIDATE_FEATURES,
            checkpoint.record,
        )
    )
    _replace(weights, data)
    _replace(description, msgspec.json.format(text, indent=1) + b"\n")


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint; nothing in it is executed.

    Args:
        path: Of the .safetensors or the .json file, or what both begin with.

    Raises:
        InputError: A file is missing, damaged, or not of this network and these features; one line says what.
    """
    weights_path, description_path = _paths(path)
    raw = _read(description_path)
    try:
        description = msgspec.json.decode(raw, type=_Description)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(description_path, str(error)) from None
    if description.version != 1:
        raise _bad(description_path, f"$.version: {description.version} is not 1")
    problem = description.architecture.problem()
    if problem is not None:
        raise _bad(description_path, f"$.architecture.{problem}")
    _check_features(description_path, "global_features", description.global_features, GLOBAL_FEATURES)
    _check_features(description_path, "candidate_features", description.candidate_features, CANDIDATE_FEATURES)
    data = _read(weights_path)
    if hashlib.sha256(data).hexdigest() != description.weights_sha256:
        raise _bad(weights_path, f"damaged, or not what {description_path.name} describes (SHA-256 differs)")
    try:
        weights = load_tensors(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _bad(weights_path, f"not a safetensors file: {error}") from None
    _check_weights(weights_path, weights, description.architecture.shapes())
    return Checkpoint(description.architecture, weights, description.record)


def _paths(path: str | Path) -> tuple[Path, Path]:
    text = str(path)
    for ending in (".safetensors", ".json"):
        text = text.removesuffix(ending)
    return Path(f"{text}.safetensors"), Path(f"{text}.json")


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _LARGEST_BYTES:
            raise _bad(path, f"{size} bytes are too many for a checkpoint")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, InputError):
            raise
        raise _bad(path, f"cannot be read: {reason}") from None


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(data)
    partial.replace(path)


def _check_features(path: Path, field: str, found: tuple[str, ...], known: tuple[str, ...]) -> None:
    if found == known:
        return
    missing = [name for name in known if name not in found]
    unknown = [name for name in found if name not in known]
    parts = []
    if missing:
        parts.append(f"lacks {', '.join(missing)}")
    if unknown:
        parts.append(f"has {', '.join(map(_short, unknown[:20]))} that are not known")
    raise _bad(path, f"$.{field}: {'; '.join(parts) or 'in another order'}: trained for other features")


def _check_weights(path: Path, weights: dict[str, NDArray[Any]], shapes: dict[str, tuple[int, ...]]) -> None:
    for name in (*shapes, *weights):
        if name not in weights:
            raise _bad(path, f"weight {name} is missing")
        if name not in shapes:
            raise _bad(path, f"weight {_short(name)} is not known")
        array = weights[name]
        if array.shape != shapes[name] or array.dtype != np.float32:
            raise _bad(
                path, f"weight {name} is {array.dtype} {list(array.shape)}, expected float32 {list(shapes[name])}"
            )
        if not np.isfinite(array).all():
            raise _bad(path, f"weight {name} holds a value that is not finite")


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _bad(path: Path, what: str) -> InputError:
    return InputError(f"{ascii(str(path))[1:-1]}: {' '.join(what.split())}")
