"""The planner: every candidate state is played forward in the simulator, and the cheapest is taken."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env import Decision, EngineProfile, Snapshot
from topas_env._core.choice import default_params
from topas_env._core.codes import CODES
from topas_env._core.layout import HISTORY_LIMIT
from topas_env._errors import InputError
from topas_policies._parameters import count, flag, one_of, weight
from topas_policies._policy import Policy

if TYPE_CHECKING:
    from topas_env._core.choice import Choice
    from topas_env._core.layout import View
    from topas_env._core.plan_state import Planner

__all__ = ["BASE_POLICIES", "Rollout", "RolloutReport", "base_code"]

_OWN = re.compile(r"(?P<hold>hold-)?(?P<key>[a-z]+)(-g(?P<gate>[1-9]))?(?P<skip>-skip)?")
BASE_POLICIES = f"{', '.join(CODES)}, or [hold-]KEY[-gN][-skip]"
LIVE_BUDGET_S = 0.010
PREEMPT = ("none", "topas", "all")
MOST_ROLLOUTS = 1_000_000


def base_code(name: str) -> int | None:
    """Returns the code of a base policy by its name, None where there is none of that name; see `BASE_POLICIES`."""
    from topas_env._core.orders import KEYS, own_code

    found = _OWN.fullmatch(name)
    if found is None or found["key"] not in KEYS:
        return CODES.get(name)
    gate = int(found["gate"] or 1)
    return own_code(found["key"], hold=bool(found["hold"]), gate=gate, skip=bool(found["skip"]))


class RolloutReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last decision was based on.

    Attributes:
        rollouts: Plays that were begun, those that were stopped early included; 0 where there was nothing to choose.
        candidates: Candidate states.
        chosen: Index of the chosen one in the list of candidates.
        base_policy: Base policy behind the best play.
        cost_s: Expected cost of the chosen state: seconds that the counted tasks stay unfinished, summed, and the tail.
        base_cost_s: Cost of the best base policy's own choice in the scenario of means.
    """

    rollouts: int
    candidates: int
    chosen: int
    base_policy: str
    cost_s: float
    base_cost_s: float


class Rollout(Policy):
    """Planner: plays each candidate state forward in the simulator under base policies and takes the cheapest.

    It sees the snapshot alone. Output lengths, numbers of calls and arrivals are drawn from its service statistics and
    its history, the same draws for all candidates; SGLang's chunk of 8,192 tokens, a step of `decode_s_per_token` and
    waits of `tool_s` stand for what a snapshot does not say. This is one step of policy improvement (a rollout in the
    sense of Bertsekas) over the best of the base policies.

    Args:
        rollouts: Plays of one decision, at most.
        base_policies: Names of policies that play on after the candidate; the best of them counts. Any compiled policy,
            or one of the planner's own, `[hold-]KEY[-gN][-skip]`. KEY says what goes first: `ready`, `arrival`, `depth`
            (deepest stage), `path` (shortest expected path), `left` (least work left in the task), `few` (fewest stages
            left in the task, then the longest match), `many` (the agent with most ready requests), `match` (longest
            match in the cache). `hold` puts requests of prefixes in use before all others, N requests at least must be
            able to run before a further prefix is fetched, and `skip` passes over what does not fit.
        scenarios: Draws of what is hidden; the first has every length at its conditional mean.
        finalists: So many pairs of candidate and base policy go on to the further scenarios.
        max_candidates: States of the environment's list that are candidates, from its start, where what the baselines
            would choose stands; 0 for none. Beside them the planner makes its own, which preempt nobody: the choice of
            each base policy, and what the best of them would do for half of the ready requests, for one, for one agent
            alone, and for all agents but one.
        idle: Whether states of the list that keep idle prefixes are tried; the planner's own keep none.
        continuations: So many base policies, the best first, play the other candidates on.
        give_up: A play stops once it is behind the best one by this share of that one's cost.
        horizon_s: Plays stop after so many simulated seconds; None: when the counted tasks are done.
        arrivals: Future tasks in a scenario; they compete, and the first `counted_arrivals` of them count in the cost.
        counted_arrivals: See `arrivals`.
        preempt: Which states that preempt are tried: `none`, those that a `topas` variant chose, or `all`.
        least_seen: A stage is known by its profile, or once so many of it are finished. Where most ready requests are
            of unknown stages there is nothing to play with, and `fallback` is followed; 0: always plan.
        fallback: A policy, named as the base policies are.
        margin: Share by which a state has to beat the best base policy's own choice.
        tail_weight: 0 for mean JCT; w adds w * JCT^2 / age scale to every task's cost, which shortens the tail.
        tool_s: Guess of a wait for a tool, seconds.
        time_budget_s: Wall time of one decision; no play is begun after it. None: no limit, 10 ms where `live` is set.
        profile: How the engine behaves, where the user knows more than a snapshot says: a name, path, dict or profile.

    Attributes:
        live: Set by the bridge: bounds the time of a decision where `time_budget_s` is None.
        report: The last decision's report, None before the first.

    Raises:
        InputError: A value out of its bounds.
    """

    name = "rollout"
    manages_prefixes = True
    plans_ahead = True

    def __init__(
        self,
        rollouts: int = 32,
        base_policies: Sequence[str] = ("hold-many", "hold-depth", "gated-lpm"),
        scenarios: int = 4,
        finalists: int = 4,
        max_candidates: int = 8,
        horizon_s: float | None = None,
        arrivals: int = 0,
        counted_arrivals: int = 0,
        preempt: str = "topas",
        idle: bool = True,
        continuations: int = 2,
        give_up: float = 0.02,
        least_seen: int = 4,
        fallback: str = "few",
        margin: float = 0.03,
        tail_weight: float = 0.0,
        tool_s: float = 1.0,
        time_budget_s: float | None = None,
        profile: "str | Path | Mapping[str, Any] | EngineProfile | None" = None,
    ) -> None:
        self.rollouts = count("rollouts", rollouts, least=1, most=MOST_ROLLOUTS)
        names = base_policies.split(",") if isinstance(base_policies, str) else list(base_policies)
        codes = [base_code(name) for name in names]
        if not names or len(set(names)) < len(names) or None in codes:
            raise InputError(f"parameter base_policies: {base_policies!r} is not a list of {BASE_POLICIES}")
        self.base_policies = tuple(names)
        self.scenarios = count("scenarios", scenarios, least=1, most=64)
        self.finalists = count("finalists", finalists, least=2, most=64)
        self.max_candidates = count("max_candidates", max_candidates, least=0, most=1024)
        self.horizon_s = None if horizon_s is None else weight("horizon_s", horizon_s)
        self.arrivals = count("arrivals", arrivals, least=0, most=1000)
        self.counted_arrivals = count("counted_arrivals", counted_arrivals, least=0, most=1000)
        self.tail_weight = weight("tail_weight", tail_weight)
        self.margin = weight("margin", margin)
        self.tool_s = weight("tool_s", tool_s)
        self.time_budget_s = None if time_budget_s is None else weight("time_budget_s", time_budget_s)
        self.live = False
        self.report: RolloutReport | None = None
        self.idle = flag("idle", idle)
        self.preempt = one_of("preempt", preempt, PREEMPT)
        self.continuations = count("continuations", continuations, least=1, most=64)
        self.give_up = weight("give_up", give_up)
        self.least_seen = count("least_seen", least_seen, least=0, most=HISTORY_LIMIT)
        self.fallback = fallback
        other = base_code(fallback)
        if other is None:
            raise InputError(f"parameter fallback: {fallback!r} is none of {BASE_POLICIES}")
        self._fallback = other
        self._profile = profile
        self._params = default_params()
        self._bases = np.array(codes, np.int64)
        self._names = {other: fallback, **dict(zip(self._bases.tolist(), names, strict=True))}
        self._options: NDArray[Any] | None = None
        self._planner: Planner | None = None
        self._rates: NDArray[np.float64] | None = None
        self._seed = 0
        self._counter = 0

    def reset(self, *, seed: int | None = None) -> None:
        """Starts the numbers that are drawn anew."""
        self._seed = 0 if seed is None else int(seed)
        self._counter = 0
        self._rates = None
        self.report = None

    def decide(self, snapshot: Snapshot) -> Decision:
        """Returns the candidate with the least expected cost; of equals the first in the list."""
        from topas_env._pack import arrival_rates, pack

        packed = pack(snapshot)
        choice = packed.room()
        self._plan(packed.v, arrival_rates(snapshot), choice)
        return packed.decision(choice)

    def decide_view(self, v: "View", choice: "Choice") -> None:
        """Writes the same decision for a state given as arrays.

        Args:
            v: What a snapshot would say, without its history, which `note_arrivals` gives.
            choice: Room for the decision, written with its terms and credits.
        """
        rates = self._rates
        self._plan(v, np.zeros(len(v.workflows)) if rates is None else rates, choice)

    def note_arrivals(self, arrivals_per_s: NDArray[np.float64]) -> None:
        """Takes in a snapshot's `history` for the calls of `decide_view` to come, float64 (n_workflows,)."""
        self._rates = arrivals_per_s

    def _plan(self, v: "View", rates: NDArray[np.float64], choice: "Choice") -> None:
        from topas_env._core.plan import plan

        planner = self._room(v)
        assert self._options is not None
        self._options["seed"] = self._seed
        self._options["counter"] = self._counter
        budget = self.time_budget_s if self.time_budget_s is not None or not self.live else LIVE_BUDGET_S
        self._options["budget"] = math.inf if budget is None else budget
        self._counter += 1
        plan(v, rates, self._options, self._bases, self._params, planner, choice)
        r = planner.report[0]
        self.report = RolloutReport(
            int(r["plays"]),
            int(r["candidates"]),
            int(r["chosen"]),
            self._names[int(r["base"])],
            float(r["cost"]),
            float(r["first"]),
        )

    def _room(self, v: "View") -> "Planner":
        """Returns room for a view of this size; what was made for an earlier one is used again where it fits."""
        from topas_env._core.plan_state import PLAN, empty_planner, fits

        q = self._planner
        if q is None or not fits(q, v, arrivals=self.arrivals):
            q = empty_planner(
                v,
                scenarios=self.scenarios,
                candidates=self.max_candidates + len(self._bases) + 2 * len(v.agents) + 6,
                bases=len(self._bases),
                arrivals=self.arrivals,
            )
            self._planner = q
            options = np.zeros(1, PLAN)
            options["rollouts"] = self.rollouts
            options["scenarios"] = self.scenarios
            options["finalists"] = self.finalists
            options["listed"] = self.max_candidates
            options["second"] = self.continuations
            options["lose"] = self.give_up
            options["parts"] = base_code("hold-depth-skip")
            options["horizon"] = math.inf if self.horizon_s is None else self.horizon_s
            options["arrivals"] = self.arrivals
            options["counted"] = min(self.counted_arrivals, self.arrivals)
            options["preempt"] = PREEMPT.index(self.preempt)
            options["idle"] = self.idle
            options["least"] = self.least_seen
            options["fallback"] = self._fallback
            options["margin"] = self.margin
            options["tail"] = self.tail_weight
            options["tool"] = self.tool_s
            if self._profile is not None:
                from topas_env._new_world import physics_row
                from topas_env._profile import load_profile

                profile = load_profile(dict(self._profile) if isinstance(self._profile, Mapping) else self._profile)
                q.physics[:] = physics_row(profile, profile.host_tier != "none", 0.0)
                options["physics"] = 1
            self._options = options
        return q
