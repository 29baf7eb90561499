"""The live engine as the same `Snapshot` that the simulator hands to a policy."""

import math
from typing import Any

import msgspec

from topas_bridge._config import BridgeConfig
from topas_bridge._ledger import Ledger
from topas_bridge._records import Call, Task
from topas_bridge._workflows import SOLO_AGENT
from topas_bridge.engine import requests as sgl
from topas_env import Agent, EngineProfile, Snapshot, Workflow
from topas_env._snapshot import CachedPrefix, EngineCosts, History, RequestState, StageService, StageState, TaskState

__all__ = ["GAP_S", "SnapshotBuilder", "believed_costs"]

GAP_S = 1e-9
"""Service shown of a stage between its predecessors' end and its first request: a live engine sees this gap, and the
format has no other state for a stage that is neither waiting for another one nor has a request."""


def believed_costs(profile: EngineProfile, config: BridgeConfig, *, host_tier: bool) -> EngineCosts:
    """Returns the costs that the policy is told.

    Args:
        profile: The engine's profile.
        config: Settings, which may replace the reservation.
        host_tier: Whether the engine has a host tier (HiCache).
    """
    tier = host_tier and profile.host_tier != "none"
    return EngineCosts(
        prefill_base_s=profile.prefill_base_s,
        prefill_s_per_token=profile.prefill_s_per_token,
        decode_s_per_token=profile.decode_s_per_token,
        load_s_per_token=profile.load_s_per_token if tier else profile.prefill_s_per_token,
        offload_s_per_token=profile.offload_s_per_token if tier else 0.0,
        rebuild_s_per_token=profile.prefill_s_per_token,  # SGLang prefills prompt and output again
        reserve_ratio=profile.reserve_ratio if config.reserve_ratio is None else config.reserve_ratio,
        reserve_cap_tokens=profile.reserve_cap_tokens if config.reserve_ratio is None else config.reserve_cap_tokens,
    )


class SnapshotBuilder:
    """Builds snapshots; what has not changed since the last one is used again.

    Args:
        ledger: The engine's records.
        costs: Believed costs.
        age_scale_s: H_age before any task has finished.
    """

    def __init__(self, ledger: Ledger, costs: EngineCosts, age_scale_s: float) -> None:
        self.costs = costs
        self._ledger = ledger
        self._age_scale_s = age_scale_s
        self._workflows: tuple[Workflow, ...] = ()
        self._workflows_key: tuple[Any, ...] | None = None
        self._shown: dict[str, Workflow] = {}
        self._service: dict[tuple[str, int], tuple[int, StageService]] = {}
        self._service_key = -1
        self._service_all: tuple[StageService, ...] = ()

    def build(
        self, now: float, *, budget: int, slots: int, pinned: list[str], cached: list[str]
    ) -> tuple[Snapshot, dict[str, Call]]:
        """Returns the snapshot and its requests by id.

        Args:
            now: Seconds.
            budget: Tokens of the KV pool that the policy may fill.
            slots: Most requests that may run.
            pinned: Agents whose prefix is locked.
            cached: Agents whose prefix lies in memory unlocked.
        """
        ledger = self._ledger
        self._refresh()
        running: list[Call] = []
        ready: list[Call] = []
        for call in ledger.calls.values():
            if not call.managed:
                continue
            if call.running:
                call.oversize = False
                running.append(call)
            else:
                oversize = call.agent.length + self._reserved(call) > budget
                if oversize != call.oversize:
                    call.oversize = oversize
                    call.task.state = None
                if not oversize:
                    ready.append(call)
        running.sort(key=lambda call: call.admitted_s)
        shown = running + ready
        resident = dict.fromkeys(call.agent.name for call in running)
        resident.update(dict.fromkeys(pinned))
        agents = ledger.agents
        snapshot = Snapshot(
            version=1,
            time_s=now,
            kv_budget_tokens=max(budget, 0),
            max_running_requests=max(slots, 1),
            engine=self.costs,
            age_scale_s=self.age_scale_s(),
            workflows=self._workflows,
            service=self._service_all,
            resident=tuple(resident),
            cached=tuple(CachedPrefix(name, agents[name].last_used_s) for name in cached if name not in resident),
            tasks=tuple(self._task(task) for task in ledger.tasks.values() if self._is_shown(task)),
            requests=tuple(self._request(call) for call in shown),
            history=self._history(now),
        )
        return snapshot, {call.id: call for call in shown}

    def reserve(self, ratio: float | None) -> None:
        """Takes over the share of the tokens to come that the engine itself reserves now, if it tells."""
        if ratio is not None and ratio != self.costs.reserve_ratio:
            self.costs = msgspec.structs.replace(self.costs, reserve_ratio=min(max(ratio, 0.0), 1.0))

    def age_scale_s(self) -> float:
        """Returns H_age: the mean service of the last 256 finished tasks."""
        totals = self._ledger.totals_s
        return max(math.fsum(totals) / len(totals), GAP_S) if totals else self._age_scale_s

    def _reserved(self, call: Call) -> int:
        left = max(call.max_new_tokens - sgl.generated(call.req), 0)
        cap = self.costs.reserve_cap_tokens
        if cap is not None:
            left = min(left, cap)
        suffix = max(call.prompt_tokens - call.agent.length, 1)
        return suffix + sgl.generated(call.req) + math.ceil(self.costs.reserve_ratio * left)

    def _is_shown(self, task: Task) -> bool:
        """A request that stands alone is a task only while a policy decides about it."""
        if not task.workflow.startswith(SOLO_AGENT):
            return True
        call = task.calls[0]
        return call is not None and call.managed and not call.oversize

    def _task(self, task: Task) -> TaskState:
        if task.state is None:
            workflow = self._shown[task.workflow]
            done: dict[str, bool] = {}
            for i in workflow.order:  # one that is skipped counts as done once it could have started
                stage = workflow.stages[i]
                done[stage.name] = task.done[i] or (task.skipped[i] and all(done[name] for name in stage.after))
            task.state = TaskState(
                task.id,
                task.workflow,
                task.arrival_s,
                tuple(self._stage(task, i, done, workflow) for i in range(len(workflow.stages))),
            )
        return task.state

    @staticmethod
    def _stage(task: Task, i: int, done: dict[str, bool], workflow: Workflow) -> StageState:
        stage, call = workflow.stages[i], task.calls[i]
        if call is not None and call.managed and not call.oversize:
            return StageState(stage.name, "running" if call.running else "ready", task.service_s[i])
        if done[stage.name]:
            return StageState(stage.name, "done", task.service_s[i])
        if not all(done[name] for name in stage.after):
            return StageState(stage.name, "waiting", 0.0)
        return StageState(stage.name, "tool", max(task.service_s[i], GAP_S))

    @staticmethod
    def _request(call: Call) -> RequestState:
        suffix = max(call.prompt_tokens - call.agent.length, 1)
        return RequestState(
            call.id,
            call.task.id,
            call.stage_name,
            "running" if call.running else "ready",
            call.ready_s,
            call.admitted_s if call.running else None,
            suffix,
            max(min(call.cached_tokens - call.agent.length, suffix), 0),
            sgl.generated(call.req),
            call.max_new_tokens,
            call.credit_s,
        )

    def _history(self, now: float) -> History | None:
        rates = {}
        for name, times in self._ledger.arrivals_s.items():
            if name in self._shown and len(times) >= 2 and now > times[0]:
                rates[name] = (len(times) - 1) / (now - times[0])
        return History(rates) if rates else None

    def _refresh(self) -> None:
        """Rebuilds workflows and statistics where they have changed."""
        ledger = self._ledger
        key = (
            ledger.book.version,
            ledger.solo_count,
            len(ledger.agents),
            sum(a.version for a in ledger.agents.values()),
        )
        if key != self._workflows_key:
            self._workflows_key = key
            self._workflows = tuple(self._with_lengths(workflow) for workflow in ledger.workflows())
            self._shown = {workflow.name: workflow for workflow in self._workflows}
        total = sum(statistics.version for statistics in ledger.statistics.values())
        if total != self._service_key:
            self._service_key = total
            self._service_all = tuple(self._stage_service(*where) for where in ledger.statistics)

    def _with_lengths(self, workflow: Workflow) -> Workflow:
        known = self._ledger.agents
        used = dict.fromkeys(stage.agent for stage in workflow.stages)
        agents = tuple(Agent(name, known[name].length if name in known else 0) for name in used)
        return Workflow(workflow.name, agents, workflow.stages)

    def _stage_service(self, workflow: str, stage: int) -> StageService:
        statistics = self._ledger.statistics[workflow, stage]
        kept = self._service.get((workflow, stage))
        if kept is None or kept[0] != statistics.version:
            name = self._ledger.workflow(workflow).stages[stage].name
            made = StageService(
                workflow,
                name,
                None,
                tuple(statistics.totals_s),
                tuple(statistics.calls_s),
                tuple(statistics.outputs),
            )
            kept = self._service[workflow, stage] = (statistics.version, made)
        return kept[1]
