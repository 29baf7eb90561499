"""What a request says about itself: untrusted hints in `sampling_params.custom_params`, bounded, never obeyed blindly.

Flat fields: `workflow`, `task`, `stage`, `agent`, `last_call`, `end_task`, `skip`, `ttl_s`, `prefix_tokens`,
`define_workflow`. The names of SGLang's agent-hints RFC (#24656) are read too, flat or in a dict `agent_hints`:
`workflow_id` is a task here, `agent_id` an agent, `step_id` a stage, `cache_ttl_ms` a time to live.
"""

from typing import Any

import msgspec

__all__ = ["NAME_LIMIT", "Tags", "read_tags"]

NAME_LIMIT = 128  # characters of a name
DEFINITION_LIMIT = 65536  # characters of a workflow's JSON text
SKIP_LIMIT = 64  # stage names in `skip`


class Tags(msgspec.Struct, frozen=True, gc=False):
    """The tags of a request; what is absent or malformed is None.

    Attributes:
        workflow: Name of a known workflow.
        task: The client's id of the task.
        stage: Name of the stage.
        agent: Name of the agent, where there is no workflow.
        last_call: Whether the stage is done after this call; None if the client did not say.
        end_task: Whether the task is done after this call.
        skip: Stages of the task that will not run.
        ttl_s: Seconds without a request after which the task is forgotten.
        prefix_tokens: Length of the agent's static prefix.
        define_workflow: JSON text of a workflow to register.
        malformed: How many fields were dropped.
    """

    workflow: str | None = None
    task: str | None = None
    stage: str | None = None
    agent: str | None = None
    last_call: bool | None = None
    end_task: bool = False
    skip: tuple[str, ...] = ()
    ttl_s: float | None = None
    prefix_tokens: int | None = None
    define_workflow: str | None = None
    malformed: int = 0


_NOTHING = Tags()


class _Reader:
    """Reads typed fields and counts those that it drops."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.malformed = 0

    def text(self, *names: str, limit: int = NAME_LIMIT) -> str | None:
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, str) and 0 < len(value) <= limit and _is_unicode(value):
                return value
            self.malformed += 1
        return None

    def flag(self, name: str) -> bool | None:
        value = self.fields.get(name)
        if value is None or isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        self.malformed += 1
        return None

    def number(self, name: str, most: float) -> float | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
            return float(value)
        self.malformed += 1
        return None

    def names(self, name: str) -> tuple[str, ...]:
        value = self.fields.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, list) and len(value) <= SKIP_LIMIT:
            kept = tuple(v for v in value if isinstance(v, str) and len(v) <= NAME_LIMIT)
            self.malformed += len(value) - len(kept)
            return kept
        self.malformed += 1
        return ()


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_tags(custom_params: Any) -> Tags:
    """Returns the tags of a request; never raises, whatever it is given.

    Args:
        custom_params: What SGLang hands on of the client's `custom_params`.
    """
    if not isinstance(custom_params, dict) or not custom_params:
        return _NOTHING
    fields = custom_params
    hints = custom_params.get("agent_hints")
    if isinstance(hints, dict):
        fields = {**hints, **custom_params}
    reader = _Reader(fields)
    ttl = reader.number("ttl_s", 86400.0)
    if ttl is None:
        milliseconds = reader.number("cache_ttl_ms", 86400e3)
        ttl = None if milliseconds is None else milliseconds / 1e3
    prefix = reader.number("prefix_tokens", 2.0**31)
    return Tags(
        workflow=reader.text("workflow"),
        task=reader.text("task", "workflow_id"),
        stage=reader.text("stage", "step_id"),
        agent=reader.text("agent", "agent_id"),
        last_call=reader.flag("last_call"),
        end_task=bool(reader.flag("end_task")),
        skip=reader.names("skip"),
        ttl_s=ttl,
        prefix_tokens=None if prefix is None else int(prefix),
        define_workflow=reader.text("define_workflow", limit=DEFINITION_LIMIT),
        malformed=reader.malformed,
    )
