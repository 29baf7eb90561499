"""Tags for requests: one line for callers of the `openai` package, and a caller for any OpenAI-compatible client.

```python
client.chat.completions.create(model=..., messages=..., extra_body=tags("review", task=task_id, stage="plan"))
```
or, for a client that an agent framework holds, `tagged(client, ...)` once.
"""

import json
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = [
    *("ROUTING_HEADER", "current_tags", "define_workflow", "end_task", "new_task", "routing_headers", "stage"),
    *("tag_fields", "tagged", "tags"),
]

ROUTING_HEADER = "x-smg-routing-key"
"""SGLang's router keeps requests with the same value on one replica (`--policy manual`)."""
C = TypeVar("C")
_current: ContextVar[dict[str, Any] | None] = ContextVar("topas_tags", default=None)


def new_task() -> str:
    """Returns an id for a new task."""
    return uuid.uuid4().hex


def tag_fields(
    workflow: str | None = None,
    *,
    task: str | None = None,
    stage: str | None = None,
    agent: str | None = None,
    last_call: bool | None = None,
    end_task: bool = False,
    skip: Sequence[str] = (),
    ttl_s: float | None = None,
    prefix_tokens: int | None = None,
) -> dict[str, Any]:
    """Returns the flat fields that a request carries; those that are not given are left out.

    Args:
        workflow: Name of a workflow that the server knows.
        task: Id of the task, the same for all its requests.
        stage: Name of the stage in the workflow.
        agent: Name of the agent; needed only without a workflow.
        last_call: Whether the stage is done after this call; False when a tool's answer will bring another one.
        end_task: Whether the task is done after this call.
        skip: Stages that will not run for this task.
        ttl_s: After so many seconds without a request the server forgets the task.
        prefix_tokens: Length of the agent's static prefix, as the server's tokenizer counts it.
    """
    fields: dict[str, Any] = {
        "workflow": workflow,
        "task": task,
        "stage": stage,
        "agent": agent,
        "last_call": last_call,
        "end_task": end_task or None,
        "skip": list(skip) or None,
        "ttl_s": ttl_s,
        "prefix_tokens": prefix_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


def tags(workflow: str | None = None, **fields: Any) -> dict[str, Any]:
    """Returns the `extra_body` of an `openai` call; the arguments are those of `tag_fields`."""
    return {"custom_params": tag_fields(workflow, **fields)}


def routing_headers(task: object) -> dict[str, str]:
    """Returns the header that keeps a task's requests on one replica behind SGLang's router, none without a task."""
    return {ROUTING_HEADER: task} if isinstance(task, str) and task.isascii() and task.isprintable() and task else {}


@contextmanager
def stage(workflow: str | None = None, **fields: Any) -> Iterator[dict[str, Any]]:
    """Tags every call that a client from `tagged` makes inside the block, in this task or thread alone."""
    merged = {**(_current.get() or {}), **tag_fields(workflow, **fields)}
    token = _current.set(merged)
    try:
        yield merged
    finally:
        _current.reset(token)


def current_tags() -> dict[str, Any]:
    """Returns the tags of the enclosing `stage` blocks."""
    return dict(_current.get() or {})


def tagged(client: C, workflow: str | None = None, **fields: Any) -> C:
    """Makes an `openai` client, synchronous or not, send tags with every chat and text completion.

    Calls of a task also carry it as SGLang's routing key.

    Args:
        client: An `OpenAI` or `AsyncOpenAI` client; it is changed and returned.
        workflow: As `tag_fields`.
        **fields: As `tag_fields`; tags of an enclosing `stage` block come on top, those of the call on top of both.
    """
    fixed = tag_fields(workflow, **fields)
    holder: Any = client
    for resource in (holder.chat.completions, holder.completions):
        resource.create = _adding(resource.create, fixed)
    return client


def _adding(create: Callable[..., Any], fixed: Mapping[str, Any]) -> Callable[..., Any]:
    def create_tagged(*args: Any, extra_body: Any = None, extra_headers: Any = None, **kwargs: Any) -> Any:
        body = dict(extra_body or {})
        fields = body["custom_params"] = {**fixed, **current_tags(), **(body.get("custom_params") or {})}
        headers = {**routing_headers(fields.get("task")), **(extra_headers or {})}
        return create(*args, extra_body=body, extra_headers=headers, **kwargs)

    return create_tagged


def define_workflow(url: str, workflow: Mapping[str, Any], *, api_key: str | None = None) -> None:
    """Registers a workflow (an entry of a workload file's `workflows`) with a running server."""
    _post(url, {"define_workflow": json.dumps(workflow)}, api_key)


def end_task(url: str, task: str, *, api_key: str | None = None) -> None:
    """Tells a server that no more requests of a task will come."""
    _post(url, {"task": task, "end_task": True}, api_key)


def _post(url: str, fields: dict[str, Any], api_key: str | None) -> None:
    """Sends a request of one token, since tags travel with requests."""
    sampling = {"max_new_tokens": 1, "temperature": 0, "custom_params": fields}
    body = json.dumps({"text": ".", "sampling_params": sampling}).encode()
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url.rstrip("/") + "/generate", data=body, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60.0) as answer:  # noqa: S310
        answer.read()
