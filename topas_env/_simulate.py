"""Runs of a workload under a policy on a simulated engine."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from topas_env._core.choice import Choice, empty_choice
from topas_env._core.decide import decide, score
from topas_env._core.own_pass import ORDERS
from topas_env._core.run import proceed, run
from topas_env._core.world import END, GROW, STUCK, World
from topas_env._decision import Decision, check_decision
from topas_env._errors import InputError
from topas_env._live_snapshot import LiveSnapshots
from topas_env._new_world import grow, new_world
from topas_env._profile import EngineProfile, load_profile
from topas_env._result import SimulationResult
from topas_env._score import policy_params
from topas_env._services import bound_s, known_services, profile_services
from topas_env._snapshot import Snapshot
from topas_env._utilisation import check_fits
from topas_env._workload import Workload

__all__ = ["SimulationResult", "bound_s", "profile_services", "simulate"]

_SLICE = 20_000  # decisions between two looks at the keyboard
ProfileLike = str | Path | Mapping[str, Any] | EngineProfile


class PolicyLike(Protocol):
    """What a policy must have. `manages_prefixes`, `sglang_order` and `compiled` of `Policy` are read where they exist.

    A policy with `decide_view(v, choice)` writes there what `decide` would say. Where it has
    `note_arrivals(arrivals_per_s)` too, that gets the snapshot's history before, float64 (n_workflows,).
    """

    name: str

    def reset(self, *, seed: int | None = None) -> None:
        """Forgets earlier runs."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Answers a snapshot."""


def simulate(
    workload: Workload,
    policy: PolicyLike,
    *,
    profile: ProfileLike = "qwen2.5-32b-a100-80g",
    seed: int = 0,
    believed: ProfileLike | None = None,
    decision_time_s: float | Literal["measured"] | None = None,
    record: bool = False,
    compiled: bool = True,
) -> SimulationResult:
    """Serves a workload with a policy.

    Args:
        workload: Tasks with their arrivals and true lengths.
        policy: Any object with `name`, `reset` and `decide`.
        profile: The engine: a name, a path, a dict or a profile.
        seed: What the policy is reset with; the trace has its own.
        believed: Speeds that the policy is told, where they are not the engine's own.
        decision_time_s: The engine stands still for so many seconds after each decision; "measured": for as long as the
            decision took on this machine; None: decisions are free, as SGLang's own always are.
        record: Whether to keep what plots of the run need.
        compiled: Whether to use the policy's compiled path, or its `decide_view`, where it has one.

    Raises:
        InputError: A request can never fit the KV budget, or `decision_time_s` is negative.
        InfeasibleDecision: The policy broke a constraint.
    """
    engine = _profile(profile)
    check_fits(workload, engine)
    order = getattr(policy, "sglang_order", "")
    if order not in ORDERS:
        raise InputError(f"policy {policy.name}: sglang_order: expected one of {list(ORDERS)}, got {order!r}")
    if order:
        decision_time_s = None
    measured = decision_time_s == "measured"
    charged = 0.0 if decision_time_s is None or measured else float(decision_time_s)
    if not 0.0 <= charged < np.inf:
        raise InputError(f"decision_time_s: expected seconds of at least 0 or 'measured', got {decision_time_s!r}")
    policy.reset(seed=seed)
    w = new_world(
        workload,
        engine,
        believed=None if believed is None else _profile(believed),
        manages_prefixes=bool(getattr(policy, "manages_prefixes", False)),
        sglang_order=order,
        profile_s=known_services(workload, engine),
        decision_s=charged,
        record=2 if record else 1,
    )
    kernel = getattr(policy, "compiled", lambda: None)()
    if compiled and kernel is not None and not measured:
        w = _run_compiled(w, workload, kernel)
    else:
        if compiled and kernel is not None:
            choose = _by_kernel(kernel)
        elif compiled and hasattr(policy, "decide_view"):
            choose = _by_view(workload, policy)
        else:
            choose = _by_snapshot(workload, policy, policy_params(policy) if kernel is None else kernel[1])
        w = _run_points(w, workload, choose, (lambda: policy.reset(seed=seed)) if measured else None)
    return SimulationResult(workload, engine, policy.name, seed, w)


def _profile(profile: ProfileLike) -> EngineProfile:
    return load_profile(dict(profile) if isinstance(profile, Mapping) else profile)


def _room(w: World) -> Choice:
    return empty_choice(len(w.agents), len(w.v.requests))


def _run_compiled(w: World, workload: Workload, kernel: tuple[int, NDArray[Any]]) -> World:
    """Runs a policy without leaving the kernels between decisions."""
    code, params = kernel
    choice = _room(w)
    while (state := run(w, code, params, choice, _SLICE)) != END:
        if state == STUCK:
            raise _stuck(w, workload)
        if state == GROW:
            w = grow(w)
            choice = _room(w)
    return w


def _run_points(
    w: World, workload: Workload, choose: Callable[[World, Choice], float], reset: Callable[[], None] | None
) -> World:
    """Runs from point to point: `choose` writes a feasible choice with its credits and returns the seconds it took.

    Where decisions are charged what they take, `reset` is given, and the first one is made twice: loading kernels and
    weights is no part of it.
    """
    choice = _room(w)
    warm = reset is None
    state = proceed(w, choice, False)
    while state != END:
        if state == STUCK:
            raise _stuck(w, workload)
        if state == GROW:
            w = grow(w)
            choice = _room(w)
            state = proceed(w, choice, False)
            continue
        seconds = choose(w, choice)
        if not warm and reset is not None:
            warm = True
            reset()
            seconds = choose(w, choice)
        w.wall[w.clock["n_decision_rows"]] = seconds
        if reset is not None:
            w.physics["decision"] = seconds
        state = proceed(w, choice, True)
    return w


def _by_kernel(kernel: tuple[int, NDArray[Any]]) -> Callable[[World, Choice], float]:
    """Chooses by a compiled policy, timed from outside."""
    code, params = kernel

    def choose(w: World, choice: Choice) -> float:
        start = time.perf_counter()
        decide(w.v, code, params, choice)
        return time.perf_counter() - start

    return choose


def _by_view(workload: Workload, policy: Any) -> Callable[[World, Choice], float]:
    """Chooses by a policy that takes the kernels' arrays, and observed arrivals where it wants them."""
    note = getattr(policy, "note_arrivals", None)
    counts = np.zeros(len(workload.workflows))
    arrived = 0

    def choose(w: World, choice: Choice) -> float:
        nonlocal arrived
        now, upto = float(w.v.head["time"][0]), int(w.clock["next_arrival"][0])
        np.add.at(counts, w.trace.workflow[arrived:upto], 1.0)
        arrived = upto
        start = time.perf_counter()
        if note is not None:
            note(counts / now if now > 0.0 else np.zeros(len(counts)))
        policy.decide_view(w.v, choice)
        return time.perf_counter() - start

    return choose


def _by_snapshot(workload: Workload, policy: PolicyLike, params: NDArray[Any]) -> Callable[[World, Choice], float]:
    """Chooses by `decide` on a snapshot; `params` is what the decision's credits are scored by."""
    snapshots = LiveSnapshots(workload)

    def choose(w: World, choice: Choice) -> float:
        snapshot = snapshots.make(w)
        start = time.perf_counter()
        decision = policy.decide(snapshot)
        seconds = time.perf_counter() - start
        check_decision(snapshot, decision)
        _fill(w, snapshot, decision, choice)
        if choice.info["n_admitted"][0]:
            score(w.v, params, choice)
        return seconds

    return choose


def _fill(w: World, snapshot: Snapshot, decision: Decision, choice: Choice) -> None:
    """Writes a feasible decision as a choice."""
    v = w.v
    n_running, n_ready = int(v.head["n_running"][0]), int(v.head["n_ready"][0])
    rows = v.running[:n_running].tolist() + v.ready[:n_ready].tolist()
    place = {request.id: i for i, request in enumerate(snapshot.requests)}
    chosen = [place[name] for name in decision.requests]
    kept = sorted(i for i in chosen if i < n_running)
    order = kept + [i for i in chosen if i >= n_running]
    choice.rows[: len(order)] = [rows[i] for i in order]
    choice.credits[:] = 0.0
    wanted = set(decision.prefixes)
    names = _agent_names(snapshot)
    choice.prefixes[:] = [name in wanted for name in names]
    choice.info["n_kept"] = len(kept)
    choice.info["n_admitted"] = len(order) - len(kept)
    choice.info["n_preempted"] = n_running - len(kept)


def _agent_names(snapshot: Snapshot) -> tuple[str, ...]:
    from topas_env._topology import topology

    return topology(snapshot.workflows).agent_names


def _stuck(w: World, workload: Workload) -> InputError:
    call = int(w.clock["stuck_call"][0])
    budget = int(w.physics["budget"][0])
    return InputError(f"workload {workload.name}: call {call} alone grew over kv_budget_tokens {budget}")
