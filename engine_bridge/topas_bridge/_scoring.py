"""A decision together with the score's summands of what it admits (the credits of SCHEDULER.md section 4)."""

from typing import Any, NamedTuple

from topas_env import Decision, Snapshot, check_decision

__all__ = ["Answer", "decide_compiled", "decide_on_arrays", "with_credits"]


class Answer(NamedTuple):
    """What a policy decided.

    Attributes:
        decision: The decision.
        credits_s: For each admitted request its own summand of the score.
    """

    decision: Decision
    credits_s: dict[str, float]


def decide_compiled(compiled: tuple[int, Any], snapshot: Snapshot) -> Answer:
    """Decides with a policy's kernel: the snapshot is packed once for decision and credits."""
    from topas_env._core.decide import decide, score
    from topas_env._pack import pack

    code, params = compiled
    packed = pack(snapshot)
    choice = packed.room()
    decide(packed.v, code, params, choice)
    score(packed.v, params, choice)
    return _checked(snapshot, packed, choice)


def decide_on_arrays(policy: Any, snapshot: Snapshot) -> Answer:
    """Decides with a policy's `decide_view`, which writes the credits too; packed once, as in the simulator."""
    from topas_env._pack import arrival_rates, pack

    packed = pack(snapshot)
    choice = packed.room()
    note = getattr(policy, "note_arrivals", None)
    if note is not None:
        note(arrival_rates(snapshot))
    policy.decide_view(packed.v, choice)
    return _checked(snapshot, packed, choice)


def _checked(snapshot: Snapshot, packed: Any, choice: Any) -> Answer:
    """Returns a kernel's choice if it is feasible."""
    decision = packed.decision(choice)
    check_decision(snapshot, decision)
    return Answer(decision, _credits(packed, choice))


def with_credits(snapshot: Snapshot, decision: Decision) -> Answer:
    """Adds the credits to a policy's decision, with the default parameters of the score."""
    running = {request.id for request in snapshot.requests if request.status == "running"}
    if running.issuperset(decision.requests):
        return Answer(decision, {})
    from topas_env._core.choice import default_params
    from topas_env._core.decide import score
    from topas_env._pack import pack

    packed = pack(snapshot)
    choice = packed.choice(decision)
    score(packed.v, default_params(), choice)
    return Answer(decision, _credits(packed, choice))


def _credits(packed: Any, choice: Any) -> dict[str, float]:
    kept, admitted = int(choice.info[0]["n_kept"]), int(choice.info[0]["n_admitted"])
    rows = choice.rows[kept : kept + admitted].tolist()
    values = choice.credits[kept : kept + admitted].tolist()
    return {packed.request_ids[row]: value for row, value in zip(rows, values, strict=True)}
