"""The scheduling snapshot, version 1: everything that a policy may look at when it decides (SNAPSHOT.md)."""

import math
from typing import Any, Literal

import msgspec

from topas_env._convert import convert, decode_json, fail, in_source
from topas_env._errors import InputError
from topas_env._snapshot_rules import check_snapshot
from topas_env._workflow import Workflow

__all__ = [
    "CachedPrefix",
    "EngineCosts",
    "History",
    "RequestState",
    "Snapshot",
    "StageService",
    "StageState",
    "TaskState",
]

StageStatus = Literal["waiting", "ready", "running", "tool", "done"]
RequestStatus = Literal["ready", "running"]


class EngineCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What the scheduler believes about the engine's speed.

    Attributes:
        prefill_base_s: Fixed time of a prefill batch, seconds.
        prefill_s_per_token: Seconds per prompt token.
        decode_s_per_token: Seconds per output token of one request.
        load_s_per_token: Seconds per token to make a prefix resident.
        offload_s_per_token: Seconds per token to release one, 0 without a host tier.
        rebuild_s_per_token: Seconds per generated token that preemption loses.
        reserve_ratio: Share of the tokens that a request may still generate that is reserved for it.
        reserve_cap_tokens: Most tokens that the ratio is applied to; None for no cap.
    """

    prefill_base_s: float
    prefill_s_per_token: float
    decode_s_per_token: float
    load_s_per_token: float
    offload_s_per_token: float
    rebuild_s_per_token: float
    reserve_ratio: float
    reserve_cap_tokens: int | None


class StageService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Service statistics of one stage of a workflow; lists are oldest first, at most 256 long.

    Attributes:
        workflow: Name of the workflow.
        stage: Name of the stage.
        profile_s: Profiled total service, seconds; None if there is none.
        stage_totals_s: Total service of finished stages, seconds.
        call_s: Service of finished calls, seconds.
        call_output_tokens: Output tokens of finished calls.
    """

    workflow: str
    stage: str
    profile_s: float | None = None
    stage_totals_s: tuple[float, ...] = ()
    call_s: tuple[float, ...] = ()
    call_output_tokens: tuple[int, ...] = ()


class CachedPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A released prefix that still lies in memory.

    Attributes:
        agent: Name of the agent.
        last_used_s: When it was last used, seconds.
    """

    agent: str
    last_used_s: float


class StageState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Where a task's stage is.

    Attributes:
        name: Name of the stage.
        status: `waiting`, `ready`, `running`, `tool` or `done`.
        service_s: Service that it received in completed calls, seconds.
    """

    name: str
    status: StageStatus
    service_s: float


class TaskState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instance of a workflow.

    Attributes:
        id: Unique in the snapshot.
        workflow: Name of its workflow.
        arrival_s: When it arrived, seconds.
        stages: One state for each stage of the workflow.
    """

    id: str
    workflow: str
    arrival_s: float
    stages: tuple[StageState, ...]


class RequestState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A call of a stage that waits for admission or runs.

    Attributes:
        id: Unique in the snapshot.
        task: Id of its task.
        stage: Name of its stage.
        status: `ready` or `running`.
        ready_s: When it became ready, seconds.
        admitted_s: When it was admitted, seconds; None while ready.
        suffix_tokens: Prompt tokens after the agent's prefix.
        cached_tokens: How many of them lie in the KV cache now.
        generated_tokens: Output tokens so far, those of a preempted attempt included.
        max_new_tokens: What the client asked for.
        admission_credit_s: Its summand of the score at its admission, seconds; 0 while ready.
    """

    id: str
    task: str
    stage: str
    status: RequestStatus
    ready_s: float
    admitted_s: float | None
    suffix_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_new_tokens: int
    admission_credit_s: float


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was observed of arrivals.

    Attributes:
        arrivals_per_s: Observed arrivals a second, by workflow name, each above 0.
    """

    arrivals_per_s: dict[str, float]


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that a policy may look at when it decides; see SNAPSHOT.md for the rules between the fields.

    The constructor checks nothing, because the simulator makes one a decision; `from_dict` and `from_json` check all.

    Attributes:
        version: 1.
        time_s: Now, seconds.
        kv_budget_tokens: Size of the KV pool.
        max_running_requests: Most requests that may run at once.
        engine: Believed costs.
        age_scale_s: H_age of SCHEDULER.md section 4, seconds.
        workflows: All workflows that tasks may name.
        service: Statistics by stage.
        resident: Agents of R' of the last decision.
        cached: Released prefixes that still lie in memory.
        tasks: Tasks of the engine.
        requests: Ready and running requests.
        history: Observed arrivals, None where there is no record of them.
    """

    version: int
    time_s: float
    kv_budget_tokens: int
    max_running_requests: int
    engine: EngineCosts
    age_scale_s: float
    workflows: tuple[Workflow, ...]
    service: tuple[StageService, ...]
    resident: tuple[str, ...]
    cached: tuple[CachedPrefix, ...]
    tasks: tuple[TaskState, ...]
    requests: tuple[RequestState, ...]
    history: History | None = None

    @classmethod
    def from_dict(cls, obj: Any, source: str = "") -> "Snapshot":
        """Makes a snapshot from plain dicts and lists, as JSON gives them, and checks every rule.

        Args:
            obj: The snapshot as a dict.
            source: Name of the file, for messages.

        Raises:
            InputError: One line with the path in the snapshot and the value.
        """
        try:
            if isinstance(obj, dict) and "history" in obj and obj["history"] is None:
                fail("$.history", "must be an object; leave it out where there is none", None)
            snapshot = convert(obj, cls)
            check_snapshot(snapshot)
        except InputError as error:
            raise in_source(source, error) from None
        return snapshot

    @classmethod
    def from_json(cls, data: bytes | str, source: str = "") -> "Snapshot":
        """Makes a snapshot from JSON text and checks every rule.

        Args:
            data: The text.
            source: Name of the file, for messages.

        Raises:
            InputError: One line with the path in the snapshot and the value.
        """
        return cls.from_dict(decode_json(data, source), source)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts and lists that `from_dict` takes back unchanged."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    def to_json(self) -> bytes:
        """Returns one line of JSON that `from_json` takes back unchanged."""
        return msgspec.json.encode(self)

    def reserved_tokens(self, request: RequestState) -> int:
        """Returns d_r of SNAPSHOT.md: the tokens, beside the prefix, that the budget must hold for a request."""
        left = max(request.max_new_tokens - request.generated_tokens, 0)
        cap = self.engine.reserve_cap_tokens
        if cap is not None and cap < left:
            left = cap
        return request.suffix_tokens + request.generated_tokens + math.ceil(self.engine.reserve_ratio * left)
