"""Labelled scheduling points: what the features were and what each candidate would have cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topas_agents._config import Imitation, Scenarios
from topas_agents._policy import LearnedPolicy, Look, idle
from topas_agents._scenarios import draw_scenario, scenario_world
from topas_agents._teachers import Teacher
from topas_env._core.choice import Choice, empty_choice
from topas_env._core.codes import CODES
from topas_env._core.features import CANDIDATE_FEATURES, GLOBAL_FEATURES
from topas_env._core.run import proceed
from topas_env._core.world import END, GROW, POINT, World
from topas_env._errors import InputError
from topas_env._new_world import grow

__all__ = ["Labels", "collect", "join", "read_labels", "write_labels"]

MAX_CANDIDATES = 32
_Found = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], str]
_CROWDS = (3.5, 7.5, 15.5, 31.5)  # borders between numbers of unfinished tasks
_IN_SHORT = ("fcfs", "lpm", "parrot-fcfs", "spf", "gated-lpm", "hold-many", "hold-depth")  # good enough to visit
_CLIP = 20.0  # regrets beyond so many units teach no more


class Labels(NamedTuple):
    """n labelled points.

    Attributes:
        overall: float32 (n, global features).
        rows: float32 (n, candidates, candidate features), rows without a candidate are 0.
        n_candidates: int64 (n,), candidates of each point.
        known: bool (n, candidates), True where the candidate was labelled.
        regret: float32 (n, candidates), cost beyond the cheapest that was labelled, seconds of task time; else 0.
        origin: int64 (n, candidates), bit c set where the compiled policy of code c would choose it.
        group: int64 (n,), index into `groups`.
        groups: Text (g,), workload and host tier: regrets are compared within one.
    """

    overall: NDArray[np.float32]
    rows: NDArray[np.float32]
    n_candidates: NDArray[np.int64]
    known: NDArray[np.bool_]
    regret: NDArray[np.float32]
    origin: NDArray[np.int64]
    group: NDArray[np.int64]
    groups: NDArray[np.str_]

    def calm(self) -> "Labels":
        """Returns the labels of candidates that preempt nobody; points with nothing to tell apart are left out."""
        known = self.known & (self.rows[:, :, CANDIDATE_FEATURES.index("preempted")] == 0.0)
        best = np.where(known, self.regret, np.inf).min(axis=1, keepdims=True)
        regret = np.where(known, self.regret - best, 0.0).astype(np.float32)
        told = (known.sum(axis=1) > 1) & (regret.max(axis=1) > 0.0)
        calm = self._replace(known=known, regret=regret)._asdict()
        groups = calm.pop("groups")
        return Labels(**{name: column[told] for name, column in calm.items()}, groups=groups)

    def units(self) -> NDArray[np.float32]:
        """Returns regrets, float32 (n, candidates), in units of a random candidate's mean regret at points of the kind.

        Points are of one kind in the same group with about as many unfinished tasks: a wrong choice costs much more
        where many tasks wait, and without this a quiet engine would teach nothing. The best candidate stays the best.
        """
        each = self.regret.sum(axis=1) / self.known.sum(axis=1)
        live = np.expm1(self.overall[:, GLOBAL_FEATURES.index("unfinished_tasks")])
        kind = self.group * (len(_CROWDS) + 1) + np.searchsorted(_CROWDS, live)
        unit = np.ones(len(each), np.float32)
        for k in np.unique(kind):
            mine = each[kind == k]
            unit[kind == k] = max(float(np.minimum(mine, 10.0 * np.median(mine)).mean()), 1e-6)
        scaled: NDArray[np.float32] = np.minimum(self.regret / unit[:, None], _CLIP)
        return scaled


def collect(
    scenarios: Scenarios,
    settings: Imitation,
    teacher: Teacher,
    learner: LearnedPolicy | None,
    rng: np.random.Generator,
    progress: Callable[[int, int], None] | None = None,
    candidate_list: str = "full",
) -> Labels:
    """Visits scheduling points and has a part of them labelled.

    Args:
        scenarios: Where episodes are drawn from.
        settings: How many points, and what share of the visited ones.
        teacher: Labels them.
        learner: Decides which points are visited; None for a compiled policy drawn anew for each episode.
        rng: Of everything that is drawn.
        progress: Called with the points so far and the points wanted.
        candidate_list: Which candidates are labelled, `full` or `short`.
    """
    found: list[_Found] = []
    fruitless = 0
    codes = [code for name, code in CODES.items() if candidate_list == "full" or name in _IN_SHORT]
    while len(found) < settings.points:
        before = len(found)
        scenario = draw_scenario(scenarios, rng)
        label = f"{scenario.given} {scenario.profile.host_tier}"
        code = int(codes[rng.integers(len(codes))])
        w = scenario_world(scenario)
        look = Look(MAX_CANDIDATES, candidate_list)
        state = proceed(w, _room(w), False)
        while state != END and len(found) < settings.points:
            if state == GROW:
                w = grow(w)
                state = proceed(w, _room(w), False)
                continue
            if state != POINT:
                break  # a request outgrew the budget: the rest of the episode is lost
            n = look.at(w.v)
            action = 0
            if n > 1:
                if rng.random() * len(w.trace.calls) < settings.per_episode:
                    origin = look.candidates.info["origin"][:n].astype(np.int64)
                    allowed = (look.candidates.info["n_preempted"][:n] == 0) | settings.preempt
                    allowed &= ~idle(look.rows[:n])
                    some = _some(origin, allowed, settings.candidates, rng)
                    costs = teacher.costs(w, [look.choice(k) for k in some.tolist()])
                    if len(some) > 1 and np.isfinite(costs).all() and costs.max() - costs.min() > 1e-9:
                        regret = costs - costs.min()
                        found.append((look.overall.copy(), look.rows[:n].copy(), some, regret, origin, label))
                        if progress is not None:
                            progress(len(found), settings.points)
                action = _action(look, n, code, learner, settings.explore, rng)
            state = proceed(w, look.choice(action), True)
        fruitless = fruitless + 1 if len(found) == before else 0
        if fruitless > 200:
            raise InputError(
                f"$.scenarios: 200 episodes in a row gave no point that teacher {teacher.name} tells apart"
            )
    return _stack(found)


def _action(
    look: Look, n: int, code: int, learner: LearnedPolicy | None, explore: float, rng: np.random.Generator
) -> int:
    """Returns the candidate that is carried out."""
    if rng.random() < explore:
        return int(rng.integers(n))
    if learner is None:
        chosen = np.flatnonzero((look.candidates.info["origin"][:n] >> code) & 1)
        return int(chosen[0]) if len(chosen) else 0
    return int(learner.score(look.overall, look.rows[:n]).argmax())


def _some(
    origin: NDArray[np.int64], allowed: NDArray[np.bool_], most: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns the candidates to label: the incumbent, what compiled policies would choose, and others at random."""
    first = np.flatnonzero(allowed & ((origin != 0) | (np.arange(len(origin)) == 0)))
    rest = np.setdiff1d(np.flatnonzero(allowed), first)
    room = max(most - len(first), 0)
    return np.sort(np.concatenate([first, rng.permutation(rest)[:room]]))


def _stack(found: "list[_Found]") -> Labels:
    n = len(found)
    groups = sorted({item[5] for item in found})
    rows = np.zeros((n, MAX_CANDIDATES, found[0][1].shape[1]), np.float32)
    regret = np.zeros((n, MAX_CANDIDATES), np.float32)
    origin = np.zeros((n, MAX_CANDIDATES), np.int64)
    known = np.zeros((n, MAX_CANDIDATES), np.bool_)
    for i, (_, features, some, over, bits, _) in enumerate(found):
        k = len(features)
        rows[i, :k], origin[i, :k] = features, bits
        known[i, some], regret[i, some] = True, over
    return Labels(
        np.stack([item[0] for item in found]),
        rows,
        np.array([len(item[1]) for item in found], np.int64),
        known,
        regret,
        origin,
        np.array([groups.index(item[5]) for item in found], np.int64),
        np.array(groups),
    )


def join(parts: list[Labels]) -> Labels:
    """Returns all points of several sets."""
    groups = sorted({str(name) for part in parts for name in part.groups})
    group = [np.array([groups.index(str(name)) for name in part.groups], np.int64)[part.group] for part in parts]
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in Labels._fields[:6]
    }
    return Labels(**columns, group=np.concatenate(group), groups=np.array(groups))


def write_labels(path: Path, labels: Labels) -> None:
    """Writes labels as a compressed .npz file, in one move."""
    partial = path.with_name(f".{path.name}")
    np.savez_compressed(partial, **labels._asdict())
    partial.replace(path)


def read_labels(path: Path) -> Labels:
    """Reads what `write_labels` wrote.

    Raises:
        InputError: The file is damaged.
    """
    import io
    import zipfile
    import zlib

    try:
        # From memory: numpy leaves the file open where it is damaged.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as content:
            return Labels(**{name: content[name] for name in Labels._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a file of labels: {error}") from None


def _room(w: World) -> Choice:
    return empty_choice(len(w.agents), len(w.v.requests))
