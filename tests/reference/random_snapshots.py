"""Random legal snapshots, each from its seed alone, that reach the corners of SCHEDULER.md."""

import random
from typing import Any

from reference.topas_reading import reserved_tokens

__all__ = ["random_snapshot", "tiny_snapshot"]

Json = dict[str, Any]


def random_snapshot(seed: int, *, agents: int | None = None) -> Json:
    """Returns the JSON dict of a legal snapshot.

    Across seeds there are 1 to 9 agents, several workflows that share agents, idle and cached prefixes, ties of every
    kind (coarse values), budgets and slots that are over-full, preempted ready requests, empty and long service lists,
    observations that none exceed what was received, tool waits, and stages without any estimate.
    """
    return _Maker(random.Random(seed), agents).snapshot()


def tiny_snapshot(seed: int) -> Json:
    """Returns a snapshot with at most 3 agents, for brute force."""
    return _Maker(random.Random(seed), 1 + seed % 3).snapshot()


# Names whose sorted order differs from the order in which they are listed.
NAMES = ("A", "B", "C", "Zed", "a", "b10", "b9", "coder", "plan-ner", "tester", "\u00e9lan")


class _Maker:
    def __init__(self, rng: random.Random, agents: int | None) -> None:
        self.rng = rng
        n = agents if agents is not None else rng.choice([1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 9, 9])
        pool = [*NAMES, *(f"x{i}" for i in range(n - len(NAMES)))]
        names = rng.sample(pool, n)
        # Values from small sets make ties common; flat ones make agents alike, with sums that differ in rounding only.
        self.grain = rng.choice(["fine", "fine", "coarse", "coarse", "flat"])
        self.prefix = {name: self.tokens(0, 4000) for name in names}
        self.now = round(rng.uniform(50, 400), 3) if self.grain == "fine" else 100.0

    def tokens(self, low: int, high: int) -> int:
        if self.grain == "flat":
            return (low + high) // 3
        if self.grain == "coarse":
            return self.rng.choice([low, (low + high) // 4, (low + high) // 2, high])
        return self.rng.randint(low, high)

    def seconds(self, low: float, high: float) -> float:
        if self.grain == "flat":
            return max(low, (low + high) / 3 if self.rng.random() < 0.7 else (low + high) / 7)
        if self.grain == "coarse":
            return self.rng.choice([low, (low + high) / 4, (low + high) / 2, high])
        return round(self.rng.uniform(low, high), 4)

    def snapshot(self) -> Json:
        rng = self.rng
        workflows = [self.workflow(f"w{i}") for i in range(rng.choice([1, 1, 2, 3]))]
        tasks: list[Json] = []
        requests: list[Json] = []
        for i in range(rng.choice([0, 1, 2, 3, 4, 6, 9, 12]) if rng.random() < 0.9 else 25):
            self.task(f"t{i}", rng.choice(workflows), tasks, requests)
        rng.shuffle(requests)
        used = {stage["agent"] for w in workflows for stage in w["stages"]}
        agent_of = {(w["name"], s["name"]): s["agent"] for w in workflows for s in w["stages"]}
        workflow_of = {t["id"]: t["workflow"] for t in tasks}
        for i, request in enumerate(requests):
            request["id"] = f"r{rng.choice(['', '0', 'x'])}{i}"
        owner = {r["id"]: agent_of[workflow_of[r["task"]], r["stage"]] for r in requests}
        resident = {owner[r["id"]] for r in requests if r["status"] == "running"}
        for agent in sorted(used - resident):
            if rng.random() < 0.25:
                resident.add(agent)
        cached = [a for a in sorted(used - resident) if rng.random() < 0.3]
        engine = self.engine()
        budget = self.budget(engine, requests, owner)
        running = sum(r["status"] == "running" for r in requests)
        slots = rng.choice([64, 64, max(running, 1), running + 1, running + 2, max(running - 1, 1)])
        return {
            "version": 1,
            "time_s": self.now,
            "kv_budget_tokens": budget,
            "max_running_requests": slots,
            "engine": engine,
            "age_scale_s": self.seconds(10.0, 90.0),
            "workflows": workflows,
            "service": self.service(workflows),
            "resident": rng.sample(sorted(resident), len(resident)),
            "cached": [{"agent": a, "last_used_s": self.seconds(0.0, self.now)} for a in cached],
            "tasks": tasks,
            "requests": requests,
        }

    def workflow(self, name: str) -> Json:
        rng = self.rng
        agents = rng.sample(sorted(self.prefix), rng.randint((len(self.prefix) + 1) // 2, len(self.prefix)))
        n = rng.randint(1, 7) if len(agents) < 5 else rng.randint(5, max(12, len(agents)))
        density = rng.choice([0.0, 0.2, 0.5])
        stages = []
        for i in range(n):
            after = [f"s{j}" for j in range(i) if rng.random() < density]
            if i and not after and rng.random() < 0.5:
                after = [f"s{i - 1}"]
            stages.append({"name": f"s{i}", "agent": rng.choice(agents), "after": after})
        rng.shuffle(stages)  # a stage may be listed before the stages that it waits for
        used = {s["agent"] for s in stages}
        return {
            "name": name,
            "agents": [{"name": a, "prefix_tokens": self.prefix[a]} for a in agents if a in used],
            "stages": stages,
        }

    def task(self, task_id: str, workflow: Json, tasks: list[Json], requests: list[Json]) -> None:
        rng = self.rng
        arrival = self.seconds(0.0, self.now / 2)
        status: dict[str, str] = {}
        states = {}
        eager = rng.choice([0.2, 0.5, 0.8])
        for stage in sorted(workflow["stages"], key=lambda s: int(s["name"][1:])):
            name = stage["name"]
            if any(status[p] != "done" for p in stage["after"]):
                status[name] = "waiting"
            else:
                status[name] = rng.choices(["done", "ready", "running", "tool"], [eager, 0.4, 0.3, 0.1])[0]
            received = 0.0
            if status[name] in ("done", "tool") or (status[name] in ("ready", "running") and rng.random() < 0.3):
                received = self.seconds(1.0, 30.0)
            states[name] = {"name": name, "status": status[name], "service_s": received}
        if all(s == "done" for s in status.values()):
            last = max(status, key=lambda s: int(s[1:]))
            status[last] = "ready"
            states[last] = {"name": last, "status": "ready", "service_s": 0.0}
        listed = [states[s["name"]] for s in workflow["stages"]]
        if rng.random() < 0.3:
            rng.shuffle(listed)
        tasks.append({"id": task_id, "workflow": workflow["name"], "arrival_s": arrival, "stages": listed})
        for name, value in status.items():
            if value in ("ready", "running"):
                requests.append(self.request(task_id, name, value, arrival))

    def request(self, task_id: str, stage: str, status: str, arrival: float) -> Json:
        rng = self.rng
        ready = max(arrival, self.seconds(arrival, self.now))
        running = status == "running"
        generated = self.tokens(0, 200) if running or rng.random() < 0.2 else 0
        suffix = self.tokens(1, 800)  # at least 1, so that every d_r is
        return {
            "id": "",
            "task": task_id,
            "stage": stage,
            "status": status,
            "ready_s": ready,
            "admitted_s": max(ready, self.seconds(ready, self.now)) if running else None,
            "suffix_tokens": suffix,
            "cached_tokens": rng.choice([0, 0, suffix // 2, suffix]),
            "generated_tokens": generated,
            "max_new_tokens": self.tokens(0, 600) if rng.random() < 0.9 else 0,
            "admission_credit_s": self.seconds(0.0, 20.0) if running else 0.0,
        }

    def engine(self) -> Json:
        rng = self.rng
        return {
            "prefill_base_s": rng.choice([0.0, 0.02]),
            "prefill_s_per_token": self.seconds(1e-4, 4e-4),
            "decode_s_per_token": self.seconds(0.01, 0.05),
            "load_s_per_token": rng.choice([1e-5, 2e-4, 1e-3]),
            "offload_s_per_token": rng.choice([0.0, 1e-5, 1e-3]),
            "rebuild_s_per_token": rng.choice([2e-4, 0.04]),
            "reserve_ratio": rng.choice([0.0, 0.3, 0.7, 1.0]),
            "reserve_cap_tokens": rng.choice([None, None, 100, 333]),
        }

    def budget(self, engine: Json, requests: list[Json], owner: dict[str, str]) -> int:
        """A budget that every ready request fits alone, and that what runs fits in most of the time."""
        reserved = {r["id"]: reserved_tokens(engine, r) for r in requests}
        least = max(
            (reserved[r["id"]] + self.prefix[owner[r["id"]]] for r in requests if r["status"] == "ready"), default=1
        )
        agents = {owner[r["id"]] for r in requests if r["status"] == "running"}
        held = sum(self.prefix[a] for a in agents)
        held += sum(reserved[r["id"]] for r in requests if r["status"] == "running")
        whole = sum(self.prefix[a] for a in set(owner.values())) + sum(reserved.values())
        if self.rng.random() < 0.15:
            return max(least, held - self.tokens(1, 800))  # over-full
        room = self.rng.choice([0.0, 0.1, 0.3, 0.6, 1.0]) * max(whole - held, 0)
        return max(least, held + int(room), 1)

    def service(self, workflows: list[Json]) -> list[Json]:
        rng = self.rng
        entries = []
        richness = rng.choice([0, 1, 1, 2, 3])  # 0: next to nothing is known
        for workflow in workflows:
            for stage in workflow["stages"]:
                if rng.random() < (0.7 if richness == 0 else 0.1):
                    continue
                entry: Json = {"workflow": workflow["name"], "stage": stage["name"]}
                entry["profile_s"] = self.seconds(1.0, 30.0) if rng.random() < 0.6 else None
                if richness:
                    totals = rng.choice([0, 1, 2, 3, 4]) if richness < 3 else rng.choice([0, 5, 20, 256])
                    calls = rng.choice([0, totals, 2 * totals]) if totals < 100 else 256
                    entry["stage_totals_s"] = [self.seconds(1.0, 40.0) for _ in range(totals)]
                    if calls or rng.random() < 0.5:
                        entry["call_s"] = [self.seconds(1.0, 25.0) for _ in range(calls)]
                        entry["call_output_tokens"] = [self.tokens(1, 600) for _ in range(calls)]
                entries.append(entry)
        return entries
