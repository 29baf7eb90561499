"""A decision: which prefixes stay and which requests run, and when that is feasible (SNAPSHOT.md)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from topas_env._convert import convert
from topas_env._errors import InfeasibleDecision
from topas_env._snapshot import Snapshot

__all__ = ["Decision", "check_decision"]


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A post-decision state, (R', Q').

    Attributes:
        prefixes: Agents resident after the decision.
        requests: Ids running after it: those that go on in snapshot order, then the admitted in order of admission.
    """

    prefixes: tuple[str, ...]
    requests: tuple[str, ...]

    @classmethod
    def from_dict(cls, obj: Any) -> "Decision":
        """Makes a decision from plain dicts and lists.

        Raises:
            InputError: A missing or unknown field or a wrong type.
        """
        return convert(obj, cls)

    def to_dict(self) -> dict[str, list[str]]:
        """Returns plain dicts and lists."""
        return {"prefixes": list(self.prefixes), "requests": list(self.requests)}


def check_decision(snapshot: Snapshot, decision: Decision) -> None:
    """Refuses an infeasible decision; it is never repaired.

    Feasible means: every id is in the snapshot, once, and so is every prefix; every request's agent is among the
    prefixes; at most `max_running_requests` requests; prefixes and d_r fit the budget (paper, equation 2). To keep
    exactly the running requests, on prefixes that are resident, is legal also over the budget and over the slots.
    The order of `requests` is the order of admission and not a matter of feasibility.

    Raises:
        InfeasibleDecision: With the violated constraint and both its sides.
    """
    prefixes = {agent.name: agent.prefix_tokens for workflow in snapshot.workflows for agent in workflow.agents}
    requests = {request.id: request for request in snapshot.requests}
    chosen = set(decision.prefixes)
    _check_list(decision.prefixes, prefixes, "prefixes", "agent")
    _check_list(decision.requests, requests, "requests", "request")
    stages = {(w.name, stage.name): stage.agent for w in snapshot.workflows for stage in w.stages}
    workflow_of = {task.id: task.workflow for task in snapshot.tasks}
    for name in decision.requests:
        request = requests[name]
        agent = stages[workflow_of[request.task], request.stage]
        if agent not in chosen:
            constraint = f"the agent of request {name!a} must be among the prefixes"
            raise InfeasibleDecision(constraint, f"agent {agent!a}", list(decision.prefixes))
    if _keeps_on(snapshot, decision):
        return
    if len(decision.requests) > snapshot.max_running_requests:
        constraint = "at most max_running_requests requests may run"
        raise InfeasibleDecision(constraint, len(decision.requests), snapshot.max_running_requests)
    fixed = sum(prefixes[name] for name in decision.prefixes)
    need = sum(snapshot.reserved_tokens(requests[name]) for name in decision.requests)
    if fixed + need > snapshot.kv_budget_tokens:
        constraint = f"prefixes {fixed} and requests {need} must fit kv_budget_tokens"
        raise InfeasibleDecision(constraint, fixed + need, snapshot.kv_budget_tokens)


def _check_list(names: Sequence[str], known: Mapping[str, object], field: str, what: str) -> None:
    """Refuses unknown names and names that occur twice."""
    seen: set[str] = set()
    for name in names:
        if name not in known:
            raise InfeasibleDecision(f"each of {field} must be in the snapshot", f"{what} {name!a}", sorted(known))
        if name in seen:
            raise InfeasibleDecision(f"each of {field} must occur once", f"{what} {name!a}", list(names))
        seen.add(name)


def _keeps_on(snapshot: Snapshot, decision: Decision) -> bool:
    """Tells whether a decision keeps all running requests, admits nothing, and makes no prefix resident."""
    running = {request.id for request in snapshot.requests if request.status == "running"}
    return running == set(decision.requests) and set(decision.prefixes) <= set(snapshot.resident)
