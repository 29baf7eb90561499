"""Requests of made-up multi-agent tasks as token ids, and a client that sends them and keeps every output."""

import asyncio
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Outcome", "Prompt", "make_prompts", "make_trouble", "run_prompts"]


class Prompt(NamedTuple):
    """One request.

    Attributes:
        tokens: Its prompt.
        output_tokens: How many tokens it generates.
        tags: Its `custom_params`.
        delay_s: When it is sent.
        abort_s: The client leaves so long after sending; None if it waits for the end.
        body: More fields of the request.
        sampling: More sampling parameters.
        headers: Its headers.
    """

    tokens: list[int]
    output_tokens: int
    tags: dict[str, Any]
    delay_s: float = 0.0
    abort_s: float | None = None
    body: Mapping[str, Any] = MappingProxyType({})
    sampling: Mapping[str, Any] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})


class Outcome(NamedTuple):
    """What came of one request.

    Attributes:
        tokens: Its output.
        reason: SGLang's finish reason, `client` if the client left, `error` with a detail otherwise.
        retractions: How often it was retracted.
        cached_tokens: Prompt tokens that came from the cache.
        detail: Text of an error.
        host_tokens: How many of the cached tokens came from host memory (HiCache).
    """

    tokens: list[int]
    reason: str
    retractions: int = 0
    cached_tokens: int = 0
    detail: str = ""
    host_tokens: int = 0


def make_prompts(
    count: int, seed: int, *, agents: int = 4, prefix: int = 200, rate: float = 60.0, output: tuple[int, int] = (8, 60)
) -> list[Prompt]:
    """Returns requests of `agents` agents, each with its own static prefix, arriving at random.

    Args:
        count: How many.
        seed: Seed.
        agents: How many agents.
        prefix: Length of each prefix, tokens.
        rate: Mean requests a second.
        output: Least and most output tokens.
    """
    generator = random.Random(seed)
    prefixes = [[generator.randrange(10, 2000) for _ in range(prefix)] for _ in range(agents)]
    prompts, at = [], 0.0
    for i in range(count):
        agent = generator.randrange(agents)
        at += generator.expovariate(rate)
        suffix = [generator.randrange(10, 2000) for _ in range(generator.randrange(10, 80))]
        tags = {"agent": f"agent-{agent}", "task": f"t{i}"}
        prompts.append(Prompt(prefixes[agent] + suffix, generator.randint(*output), tags, at))
    return prompts


def make_trouble(prompts: list[Prompt], seed: int) -> list[Prompt]:
    """Returns the same requests, some of which leave early, and some of which carry senseless tags."""
    generator = random.Random(seed)
    troubled = []
    for prompt in prompts:
        draw = generator.random()
        if draw < 0.1:
            troubled.append(prompt._replace(abort_s=generator.uniform(0.0, 1.0)))
        elif draw < 0.3:
            troubled.append(prompt._replace(tags=_nonsense(generator)))
        elif draw < 0.6:
            troubled.append(prompt._replace(tags=_workflow_tags(generator)))
        else:
            troubled.append(prompt)
    return troubled


def _nonsense(generator: random.Random) -> dict[str, Any]:
    values: list[Any] = [
        None,
        True,
        -1,
        1e308,
        "",
        "x" * 5000,
        "\x00",
        "../../etc/passwd",
        [],
        ["a", 1, None],
        {"a": 1},
    ]
    names = ("workflow", "task", "stage", "agent", "last_call", "end_task", "skip", "ttl_s", "prefix_tokens")
    fields = {name: generator.choice(values) for name in names if generator.random() < 0.7}
    fields["define_workflow"] = generator.choice([None, "{", "[]", '{"name": "w"}', "x" * 70000, "[" * 3000])
    fields["agent_hints"] = generator.choice([None, {}, {"agent_id": 3}, "no"])
    return fields


def _workflow_tags(generator: random.Random) -> dict[str, Any]:
    """Returns tags of a known workflow in an order that no workflow allows: stages at random, tasks that never end."""
    return {
        "workflow": "soak",
        "task": f"w{generator.randrange(40)}",
        "stage": generator.choice(["a", "b", "c", "d", "nowhere"]),
        "last_call": generator.choice([True, False]),
        "end_task": generator.random() < 0.1,
        "ttl_s": 2.0,
        "define_workflow": SOAK_WORKFLOW,
    }


SOAK_WORKFLOW = (
    '{"name": "soak", "agents": [{"name": "agent-0", "prefix_tokens": 0}, {"name": "agent-1", "prefix_tokens": 0}],'
    ' "stages": [{"name": "a", "agent": "agent-0", "after": []}, {"name": "b", "agent": "agent-1", "after": ["a"]},'
    ' {"name": "c", "agent": "agent-1", "after": ["a"]}, {"name": "d", "agent": "agent-0", "after": ["b", "c"]}]}'
)


async def run_prompts(
    url: str, prompts: list[Prompt], *, limit_s: float = 1800.0, at_once: int | None = None
) -> list[Outcome]:
    """Sends all requests to `/generate`, each at its time, and returns what came of them in the same order.

    Args:
        url: Address of the server.
        prompts: The requests.
        limit_s: Longest wait for one answer.
        at_once: No more than so many are under way; one whose time has come waits. None for no bound.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=limit_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # SGLang may close an idle one as we use it
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        room = asyncio.Semaphore(len(prompts) if at_once is None else at_once)
        return list(await asyncio.gather(*(_one(session, prompt, room) for prompt in prompts)))


async def _one(session: Any, prompt: Prompt, room: asyncio.Semaphore) -> Outcome:
    await asyncio.sleep(prompt.delay_s)
    async with room:
        return await _outcome(session, prompt)


async def _outcome(session: Any, prompt: Prompt) -> Outcome:
    try:
        if prompt.abort_s is None:
            return await _send(session, prompt)
        return await asyncio.wait_for(_send(session, prompt), prompt.abort_s)
    except asyncio.TimeoutError:
        return Outcome([], "client" if prompt.abort_s is not None else "error", detail="timed out")
    except Exception as error:  # noqa: BLE001 (what a server does wrong is an outcome)
        return Outcome([], "error", detail=f"{type(error).__name__}: {error}")


async def _send(session: Any, prompt: Prompt) -> Outcome:
    sampling = {
        "max_new_tokens": prompt.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "custom_params": prompt.tags,
        **prompt.sampling,
    }
    request = {"input_ids": prompt.tokens, "sampling_params": sampling, **prompt.body}
    async with session.post("/generate", json=request, headers=dict(prompt.headers)) as answer:
        body = await answer.json()
        if answer.status != 200:
            return Outcome([], "error", detail=f"{answer.status}: {body}")
    if isinstance(body, list):  # n > 1
        all_tokens = [token for one in body for token in one["output_ids"]]
        return Outcome(all_tokens, body[-1]["meta_info"]["finish_reason"]["type"])
    meta = body["meta_info"]
    return Outcome(
        body["output_ids"],
        meta["finish_reason"]["type"],
        meta.get("num_retractions") or 0,
        meta.get("cached_tokens") or 0,
        host_tokens=int((meta.get("cached_tokens_details") or {}).get("host") or 0),
    )
