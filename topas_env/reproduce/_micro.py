"""Table I and figure 2: workloads of a few requests that show what the order of requests does to the batch."""

from typing import Any, NamedTuple

from topas_env._profile import EngineProfile, load_profile
from topas_env._result import SimulationResult
from topas_env._workload import Workload, load_workload

__all__ = ["GANTT", "TABLE_1_REQUESTS", "Gantt", "Order", "gantt", "table_1"]

TABLE_1_REQUESTS = (16, 32, 64)
_QUERY, _OUTPUT, _PREFIX, _ASKED = 480, 320, 6400, 420  # as in chain-3


class Order(NamedTuple):
    """One row of table I.

    Attributes:
        requests: Requests of each of the two agents.
        batch: Mean running batch, grouped and alternating.
        makespan_s: Time to serve all, grouped and alternating.
    """

    requests: int
    batch: tuple[float, float]
    makespan_s: tuple[float, float]


def table_1(requests: int, profile: EngineProfile | str = "qwen2.5-32b-a100-80g") -> Order:
    """Serves n requests for each of two agents, all there at once, under fcfs in grouped and in alternating order."""
    runs = [_serve(_pairs(requests, grouped=grouped), "fcfs", load_profile(profile)) for grouped in (True, False)]
    return Order(requests, (runs[0].mean_batch, runs[1].mean_batch), (runs[0].makespan_s, runs[1].makespan_s))


def _pairs(requests: int, *, grouped: bool) -> Workload:
    """Returns tasks of one request each; equal arrivals are served in the order of their ids."""
    tasks = []
    for agent in range(2):
        for number in range(requests):
            place = agent * requests + number if grouped else 2 * number + agent
            tasks.append((f"{place:04d}", "AB"[agent]))
    flows = [_flow(name, {name: _PREFIX}, (name,)) for name in "AB"]
    listed = [_task(name, agent, (agent,), _QUERY, _OUTPUT, _ASKED) for name, agent in sorted(tasks)]
    return load_workload({"version": 1, "name": "pairs", "workflows": flows, "tasks": listed})


def _flow(name: str, agents: dict[str, int], chain: tuple[str, ...]) -> dict[str, Any]:
    """Returns a chain of stages named after their agents."""
    listed = [{"name": agent, "prefix_tokens": tokens} for agent, tokens in agents.items()]
    stages = [{"name": s, "agent": s, "after": list(chain[k - 1 : k]) if k else []} for k, s in enumerate(chain)]
    return {"name": name, "agents": listed, "stages": stages}


def _task(name: str, flow: str, stages: tuple[str, ...], query: int, output: int, asked: int) -> dict[str, Any]:
    call = {
        "suffix_tokens": query,
        "history_tokens": 0,
        "output_tokens": output,
        "max_new_tokens": asked,
        "tool_s": 0.0,
    }
    return {
        "id": name,
        "arrival_s": 0.0,
        "workflow": flow,
        "stages": [{"name": stage, "calls": [call]} for stage in stages],
    }


def _serve(workload: Workload, policy: str, profile: EngineProfile, *, record: bool = False) -> SimulationResult:
    from topas_env._simulate import simulate
    from topas_policies import make_policy

    return simulate(workload, make_policy(policy), profile=profile, record=record)


class Gantt(NamedTuple):
    """One half of figure 2.

    Attributes:
        policy: lpm or srpt.
        boxes: Agent, task, start and end of each request, seconds.
        setups: Times at which a prefix was set up, and how long that took.
        mean_jct_s: Mean completion time.
        makespan_s: Time to serve all.
    """

    policy: str
    boxes: list[tuple[str, str, float, float]]
    setups: int
    mean_jct_s: float
    makespan_s: float


GANTT = ("lpm", "srpt")


def gantt(policy: str, tasks: int = 3) -> Gantt:
    """Serves tasks of a chain A, B, C, all there at once, one request at a time, on an engine that holds one prefix.

    A prefix of 8 tokens takes 1 s to prefill, a request 4 s: 8 tokens of prompt, 1 s, and the rest of 4 output tokens
    in steps of 1 s. A chain alone takes 3 * (1 + 4) = 15 s.
    """
    from dataclasses import replace

    profile = load_profile(
        "toy", kv_budget_tokens=21, max_running_requests=1, host_tier="none", eviction="eager", reserve_ratio=1.0
    )
    chain = ("A", "B", "C")
    listed = [_task(f"t{k + 1}", "chain", chain, 8, 4, 4) for k in range(tasks)]
    workload = load_workload(
        {"version": 1, "name": "gantt", "workflows": [_flow("chain", dict.fromkeys(chain, 8), chain)], "tasks": listed}
    )
    workload = replace(workload, profile_s={("chain", stage): 4.0 for stage in chain})
    result = _serve(workload, policy, profile, record=True)
    rows = result.requests
    boxes = [
        (
            result.agent_names[row["agent"]],
            workload.task_ids[row["task"]],
            float(row["admitted_s"]),
            float(row["finish_s"]),
        )
        for row in rows
    ]
    return Gantt(policy, boxes, result.computes, result.mean_jct_s, result.makespan_s)
