"""What `topas train` is told: a TOML or JSON file."""

import math
from pathlib import Path
from typing import Any

import msgspec

from topas_agents._architecture import Architecture
from topas_env._errors import InputError

__all__ = ["Evaluation", "FineTuning", "Imitation", "Scenarios", "TrainConfig", "config_from_file", "config_to_dict"]

Range = tuple[float, float]


class Scenarios(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distribution that episodes are drawn from: one item of each list, one number of each range, all uniform.

    Attributes:
        workloads: Names or paths, or `random-dag`, generated workflows of any shape, or `session-like`, generated
            coding-agent sessions on an engine of their own. One that stands twice is drawn twice as often.
        profiles: Names or paths.
        host_tiers: `all`, `none`.
        loads: Utilisation of the engine; sets the arrival rate.
        num_tasks: Tasks of an episode.
        kv_budget_scale: Factor of the profile's KV budget; where a request would not fit, the least that it needs.
        speed_scale: Factor of the costs of prefill, of decode and of loading, each drawn on its own.
        other_engines: Share of the episodes whose engine is of another kind: prefill from 1/32 to 4 times the
            profile's cost, loading from 1/8 to 8, KV tokens in a decode step from 1/4 to 4; each request of a step
            costs up to a fifth of its base; 16 to 2,048 slots.
        rebuilds: `prefill`, `decode`; empty for the profile's own.
        seeds: First and last seed of the traces, both included.
    """

    workloads: tuple[str, ...] = ("chain-3", "dag-4", "metagpt-sop", "metagpt-tl")
    profiles: tuple[str, ...] = ("qwen2.5-32b-a100-80g",)
    host_tiers: tuple[str, ...] = ("all", "none")
    loads: Range = (0.4, 1.0)
    num_tasks: tuple[int, int] = (20, 60)
    kv_budget_scale: Range = (0.9, 1.6)
    speed_scale: Range = (0.8, 1.25)
    other_engines: float = 0.0
    rebuilds: tuple[str, ...] = ("prefill",)
    seeds: tuple[int, int] = (1_000_000, 1_999_999)


class Imitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DAgger: label what the learner visits, learn from all labels so far, again.

    Attributes:
        teacher: `hindsight` or the name of a policy.
        teacher_options: Its parameters.
        rounds: Of collecting and learning; 0 leaves this part out, as a file in TOML has no null.
        points: Labelled scheduling points of each round.
        per_episode: Labelled points of an episode: each point is one with this over its number of requests as chance.
        candidates: Labelled candidates of a point: those that a compiled policy would choose, others at random.
        preempt: Whether states that preempt are labelled and taken while labels are collected; `learned` takes none.
        explore: Share of a learner's choices that are random candidates.
        epochs: Passes over all labels in each round.
        batch_size: Points of a gradient step.
        learning_rate: Of Adam, at the start of each round; it falls to a tenth along a cosine.
        temperature: Of the soft targets, in units of the typical difference between candidates at a point.
        holdout: Share of the labelled points that is kept for validation.
    """

    teacher: str = "hindsight"
    teacher_options: dict[str, Any] = {}
    rounds: int = 5
    points: int = 2400
    per_episode: int = 24
    candidates: int = 14
    preempt: bool = True
    explore: float = 0.05
    epochs: int = 8
    batch_size: int = 128
    learning_rate: float = 1e-3
    temperature: float = 0.05
    holdout: float = 0.1


class FineTuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MaskablePPO on the batched environment.

    Attributes:
        steps: Environment steps in all; 0 leaves this part out.
        environments: Operating points at a time, drawn from the scenarios.
        copies: Copies of each.
        redraw: Steps after which new operating points are drawn.
        n_steps: Steps of each copy between updates.
        batch_size: Of an update.
        epochs: Passes over each rollout.
        learning_rate: Of Adam.
        clip_range: Of the probability ratio.
        gae_lambda: Of the advantage estimate; the discount is 1.
        entropy: Weight of the entropy bonus.
    """

    steps: int = 0
    environments: int = 8
    copies: int = 4
    redraw: int = 65_536
    n_steps: int = 128
    batch_size: int = 512
    epochs: int = 4
    learning_rate: float = 1e-4
    clip_range: float = 0.1
    gae_lambda: float = 0.95
    entropy: float = 0.003


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the trained policy is measured on, next to the others.

    Attributes:
        workloads: Those of training and those held out.
        profiles: Likewise.
        host_tiers: Likewise.
        loads: Utilisation.
        num_tasks: Tasks of a run.
        seeds: First and last seed, both included; none of the training seeds.
        policies: What it is compared with; the best of them counts.
    """

    workloads: tuple[str, ...] = ("chain-3", "dag-4", "metagpt-sop", "metagpt-tl", "dag-10-wide")
    profiles: tuple[str, ...] = ("qwen2.5-32b-a100-80g", "qwen2.5-32b-a100-80g-mem0.90")
    host_tiers: tuple[str, ...] = ("all", "none")
    loads: tuple[float, ...] = (0.5, 0.75, 0.95)
    num_tasks: int = 100
    seeds: tuple[int, int] = (0, 4)
    policies: tuple[str, ...] = ("fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm", "topas")


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training run.

    Attributes:
        out: Folder of checkpoints, labels and logs; the run goes on from what is there.
        seed: Of everything that is drawn.
        start: Checkpoint to begin with; empty for random weights.
        architecture: Shape of the network.
        scenarios: What is trained on.
        imitation: None leaves this part out.
        fine_tuning: Likewise.
        evaluation: Likewise.
        notes: Goes into the training record.
    """

    out: str = "out/train"
    seed: int = 0
    start: str = ""
    architecture: Architecture = Architecture()
    scenarios: Scenarios = Scenarios()
    imitation: Imitation | None = Imitation()
    fine_tuning: FineTuning | None = None
    evaluation: Evaluation | None = Evaluation()
    notes: str = ""


def config_from_file(path: str | Path) -> TrainConfig:
    """Reads a configuration, TOML, or JSON where the name ends in `.json`.

    Raises:
        InputError: The file cannot be read, or a value in it is wrong; one line names file, path and value.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = msgspec.json.decode(text) if path.suffix == ".json" else msgspec.toml.decode(text)
        config = msgspec.convert(content, TrainConfig)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    except ImportError:  # Python 3.10 has no reader of TOML
        raise InputError(f"{path}: TOML needs Python 3.11 or the package tomli; JSON works everywhere") from None
    problem = _problem(config)
    if problem is not None:
        raise InputError(f"{path}: {problem}")
    return config


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Returns the configuration as what JSON can hold."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return content


def _problem(config: TrainConfig) -> str | None:
    """Returns the first value that makes no sense, with its path."""
    wrong = config.architecture.problem()
    if wrong is not None:
        return f"$.architecture.{wrong}"
    s = config.scenarios
    for name in ("workloads", "profiles", "host_tiers"):
        if not getattr(s, name):
            return f"$.scenarios.{name}: is empty"
    for name in ("loads", "num_tasks", "kv_budget_scale", "speed_scale"):
        low, high = getattr(s, name)
        if not (0 < low <= high and math.isfinite(high)):
            return f"$.scenarios.{name}: {[low, high]} is no range of positive numbers"
    if not 0.0 <= s.other_engines <= 1.0:
        return f"$.scenarios.other_engines: {s.other_engines} is not from 0 to 1"
    if not 0 <= s.seeds[0] <= s.seeds[1]:
        return f"$.scenarios.seeds: {list(s.seeds)} is no range of seeds"
    for part in ("imitation", "fine_tuning"):
        wrong = _wrong_number(getattr(config, part), f"$.{part}")
        if wrong is not None:
            return wrong
    e = config.evaluation
    if e is not None:
        if not 0 <= e.seeds[0] <= e.seeds[1]:
            return f"$.evaluation.seeds: {list(e.seeds)} is no range of seeds"
        if e.seeds[0] <= s.seeds[1] and s.seeds[0] <= e.seeds[1]:
            return f"$.evaluation.seeds: {list(e.seeds)} share seeds with $.scenarios.seeds {list(s.seeds)}"
        if not e.policies:
            return "$.evaluation.policies: is empty"
    return None


_MAY_BE_ZERO = {"rounds", "explore", "holdout", "steps", "entropy"}
_SHARES = {"explore", "holdout", "gae_lambda"}


def _wrong_number(part: Imitation | FineTuning | None, where: str) -> str | None:
    if part is None:
        return None
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            least = "at least 0" if name in _MAY_BE_ZERO else "positive"
            if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                return f"{where}.{name}: {value} is not {least} and finite"
            if name in _SHARES and value > 1:
                return f"{where}.{name}: {value} is more than 1"
    return None
