"""Snapshots of a given size, for the growth of decision time."""

import random
from typing import Any

__all__ = ["big_snapshot"]

_WIDTH = 8  # stages of each workflow: one source, six in parallel, one sink


def big_snapshot(agents: int, requests: int) -> dict[str, Any]:
    """Returns a snapshot with ready requests only, of fork/join tasks, with several observations a stage.

    Args:
        agents: number of agents, spread over the stages of as many workflows as it takes.
        requests: number of ready requests; a task has up to six.
    """
    rng = random.Random(0)
    names = [f"A{k:02d}" for k in range(agents)]
    count = max(1, -(-agents // _WIDTH))
    workflows, service = [], []
    for w in range(count):
        used = [names[(w * _WIDTH + k) % agents] for k in range(_WIDTH)]
        middle = [f"s{k}" for k in range(1, _WIDTH - 1)]
        stages = [{"name": "s0", "agent": used[0], "after": []}]
        stages += [{"name": name, "agent": used[k], "after": ["s0"]} for k, name in enumerate(middle, 1)]
        stages.append({"name": f"s{_WIDTH - 1}", "agent": used[-1], "after": middle})
        agent_list = [{"name": name, "prefix_tokens": 2_000} for name in dict.fromkeys(used)]
        workflows.append({"name": f"w{w}", "agents": agent_list, "stages": stages})
        for stage in stages:
            totals = [round(rng.uniform(5, 20), 3) for _ in range(32)]
            service.append(
                {"workflow": f"w{w}", "stage": stage["name"], "profile_s": 10.0, "stage_totals_s": totals,
                 "call_s": totals, "call_output_tokens": [200] * 32}
            )  # fmt: skip
    tasks: list[dict[str, Any]] = []
    ready: list[dict[str, Any]] = []
    while len(ready) < requests:
        number = len(tasks)
        arrival = round(rng.uniform(0, 900), 3)
        take = min(_WIDTH - 2, requests - len(ready))
        stages = [{"name": "s0", "status": "done", "service_s": 10.0}]
        stages += [
            {"name": f"s{k}", "status": "ready" if k <= take else "done", "service_s": 0.0 if k <= take else 9.0}
            for k in range(1, _WIDTH - 1)
        ]
        stages.append({"name": f"s{_WIDTH - 1}", "status": "waiting", "service_s": 0.0})
        tasks.append({"id": f"t{number:05d}", "workflow": f"w{number % count}", "arrival_s": arrival, "stages": stages})
        ready += [
            {"id": f"t{number:05d}/{k}", "task": f"t{number:05d}", "stage": f"s{k}", "status": "ready",
             "ready_s": arrival, "admitted_s": None, "suffix_tokens": rng.randrange(200, 1200), "cached_tokens": 0,
             "generated_tokens": 0, "max_new_tokens": 400, "admission_credit_s": 0.0}
            for k in range(1, take + 1)
        ]  # fmt: skip
    return {
        "version": 1, "time_s": 1000.0, "kv_budget_tokens": 40_000, "max_running_requests": 64,
        "engine": {"prefill_base_s": 0.02, "prefill_s_per_token": 0.0002, "decode_s_per_token": 0.04,
                   "load_s_per_token": 1.05e-5, "offload_s_per_token": 1.05e-5, "rebuild_s_per_token": 0.0002,
                   "reserve_ratio": 1.0, "reserve_cap_tokens": None},
        "age_scale_s": 60.0, "workflows": workflows, "service": service, "resident": [], "cached": [],
        "tasks": tasks, "requests": ready,
    }  # fmt: skip
