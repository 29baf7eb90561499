"""Teachers: what says how good the candidates of a scheduling point are."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice, default_params, empty_candidates, empty_choice
from topas_env._core.plan_costs import plan_costs
from topas_env._core.plan_run import run_base
from topas_env._core.plan_state import PLAN, Planner, empty_planner, fits
from topas_env._core.run import proceed
from topas_env._core.world import END, GROW, POINT, World
from topas_env._errors import InputError
from topas_env._new_world import clone, grow
from topas_policies._parameters import count, weight
from topas_policies._rollout import BASE_POLICIES, base_code

__all__ = ["Hindsight", "Imitated", "Planned", "Teacher", "make_teacher"]


class Teacher(Protocol):
    """Something that puts a cost on each candidate."""

    name: str

    def costs(self, w: World, choices: list[Choice]) -> NDArray[np.float64]:
        """Returns the cost of each candidate, seconds of task time, float64 (n,); only differences count.

        Args:
            w: The world at a scheduling point; it is not changed.
            choices: Its candidates.
        """


class Hindsight:
    """Plays each candidate to the end of the true trace under simple policies; those that do best at the point count.

    All candidates are played on by the same policies, so what happens by chance is mostly the same for all of them. A
    policy counts at a point where its mean cost over the candidates is within `tolerance` of the best one's; the cost
    of a candidate is the mean over those that count.

    It looks at what no policy may see (lengths, arrivals to come), so it is a teacher and never a policy. A network
    that learns the *expected* cost from it, given what is in the features, is not harmed by that: over many points the
    luck of one trace averages out. It is one step of policy improvement over its base policies.

    Args:
        bases: Base policies as `rollout` names them, that play on after the candidate.
        tolerance: See above.
    """

    name = "hindsight"

    def __init__(
        self,
        bases: tuple[str, ...] | list[str] = ("hold-many", "hold-depth", "gated-lpm"),
        tolerance: float = 0.05,
    ) -> None:
        self._codes = _base_codes(self.name, bases)
        self._tolerance = weight("tolerance", tolerance)
        self._params = default_params()

    def costs(self, w: World, choices: list[Choice]) -> NDArray[np.float64]:
        """Returns the sum of all JCTs of the trace after each candidate, seconds, float64 (n,)."""
        played = np.stack([self._played(w, choice) for choice in choices])
        means = played.mean(axis=0)
        costs: NDArray[np.float64] = played[:, means <= means.min() * (1.0 + self._tolerance)].mean(axis=1)
        return costs

    def _played(self, w: World, choice: Choice) -> NDArray[np.float64]:
        after = clone(w)
        state = proceed(after, choice, True)
        return np.array([self._play(clone(after), state, code) for code in self._codes])

    def _play(self, w: World, state: int, code: int) -> float:
        room = empty_choice(len(w.agents), len(w.v.requests))
        while state != END:
            if state not in (POINT, GROW):
                return np.inf
            if state == GROW:
                w = grow(w)
                room = empty_choice(len(w.agents), len(w.v.requests))
            state = int(run_base(w, code, self._params, room))
        return float(w.clock["area"][0])


class Planned:
    """The planner's plays as a teacher: each candidate's mean cost over scenarios, under the best base policy for it.

    It sees what a policy may see, and beside it the true engine and the mean wait for tools, so its costs have none of
    the luck of one trace in them: many draws of lengths for each point, and nothing but the tasks that are there.

    Args:
        bases: Base policies as `rollout` names them.
        scenarios: Draws of lengths.
        seed: Of the draws.
    """

    name = "planned"

    def __init__(
        self,
        bases: tuple[str, ...] | list[str] = ("hold-many", "hold-depth", "gated-lpm"),
        scenarios: int = 6,
        seed: int = 0,
    ) -> None:
        self._codes = np.array(_base_codes(self.name, bases), np.int64)
        self._scenarios = count("scenarios", scenarios, least=1, most=64)
        self._seed = count("seed", seed, least=0)
        self._params = default_params()
        self._planner: Planner | None = None
        self._counter = 0

    def costs(self, w: World, choices: list[Choice]) -> NDArray[np.float64]:
        """Returns the time that the present tasks stay unfinished after each candidate, seconds, float64 (n,)."""
        v = w.v
        q = self._planner
        if q is None or not fits(q, v, candidates=len(choices)):
            q = self._planner = empty_planner(
                v, scenarios=self._scenarios, candidates=max(len(choices), 32), bases=len(self._codes), arrivals=0
            )
        options = np.zeros(1, PLAN)
        self._counter += 1
        waits = w.trace.calls["tool"][w.trace.calls["tool"] > 0.0]
        settings = {
            "scenarios": self._scenarios, "seed": self._seed, "counter": self._counter, "horizon": np.inf,
            "physics": 1, "tool": float(waits.mean()) if len(waits) else 1.0,
        }  # fmt: skip
        for name, value in settings.items():
            options[name] = value
        q.physics[:] = w.physics
        given = empty_candidates(len(choices), len(w.agents), len(v.requests))
        for k, choice in enumerate(choices):
            n = int(choice.info[0]["n_kept"] + choice.info[0]["n_admitted"])
            given.info[k] = choice.info[0]
            given.prefixes[k] = choice.prefixes
            given.rows[k, :n] = choice.rows[:n]
        out = np.empty((len(choices), len(self._codes), self._scenarios))
        some = np.arange(len(choices))
        plan_costs(v, np.zeros(len(v.workflows)), options, self._codes, self._params, q, given, some, out)
        costs: NDArray[np.float64] = out.mean(axis=2).min(axis=1)
        return costs


def _base_codes(teacher: str, bases: tuple[str, ...] | list[str]) -> list[int]:
    """Returns the codes of base policies.

    Raises:
        InputError: There is none, or one is no base policy.
    """
    codes = []
    for base in bases:
        code = base_code(base)
        if code is None:
            raise InputError(f"teacher {teacher}: {base!r} is no base policy; they are {BASE_POLICIES}")
        codes.append(code)
    if not codes:
        raise InputError(f"teacher {teacher}: bases is empty")
    return codes


class Imitated:
    """A policy as a teacher: cost 0 for its own choice, 1 for the others; none where its choice is no candidate.

    Args:
        policy: With a compiled path or a `decide_view`.
    """

    def __init__(self, policy: Any) -> None:
        self.name = str(policy.name)
        self._policy = policy
        compiled = getattr(policy, "compiled", lambda: None)()
        self._compiled = compiled
        if compiled is None and not hasattr(policy, "decide_view"):
            raise InputError(f"teacher {self.name}: has neither a compiled path nor decide_view")

    def costs(self, w: World, choices: list[Choice]) -> NDArray[np.float64]:
        """Returns 0 for the candidate that the policy would choose and 1 for the others, float64 (n,)."""
        wanted = empty_choice(len(w.agents), len(w.v.requests))
        if self._compiled is not None:
            from topas_env._core.decide import decide

            code, params = self._compiled
            decide(w.v, code, params, wanted)
        else:
            self._policy.decide_view(w.v, wanted)
        return np.array([0.0 if _same(choice, wanted) else 1.0 for choice in choices])


def make_teacher(name: str, options: dict[str, Any]) -> Teacher:
    """Returns a teacher.

    Args:
        name: `hindsight`, `planned`, or the name of a policy; one with a method `costs(w, choices)` is asked for costs.
        options: Its parameters.

    Raises:
        InputError: There is none of that name, or a parameter is wrong.
    """
    made: dict[str, type[Hindsight] | type[Planned]] = {"hindsight": Hindsight, "planned": Planned}
    if name in made:
        try:
            return made[name](**options)
        except TypeError as error:
            raise InputError(f"teacher {name}: {error}") from None
    from topas_policies import make_policy

    policy = make_policy(name, **options)
    policy.reset(seed=0)
    return policy if hasattr(policy, "costs") else Imitated(policy)


def _same(one: Choice, other: Choice) -> bool:
    a, b = one.info[0], other.info[0]
    n = int(a["n_kept"] + a["n_admitted"])
    if a["n_kept"] != b["n_kept"] or a["n_admitted"] != b["n_admitted"]:
        return False
    return np.array_equal(one.prefixes, other.prefixes) and np.array_equal(one.rows[:n], other.rows[:n])
