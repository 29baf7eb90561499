"""Open-loop replay of a workload: arrivals are kept, stages are released by the workflow's graph."""

import asyncio
import hashlib
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from topas_bridge.client import routing_headers, tag_fields
from topas_env import Workload

__all__ = ["CallRecord", "Replay", "ReplayOptions", "replay"]


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is replayed.

    Attributes:
        api: `generate` (SGLang) or `completions` (any OpenAI-compatible server that takes token ids).
        model: Model name for `completions`.
        api_key: Sent as a bearer token.
        stream: Whether answers are streamed, which TTFT and ITL need.
        tags: Whether requests carry tags.
        lengths: `stop_after` (a server that `topas bench` started ends outputs where the trace says) or `exact` (the
            client asks for exactly the recorded output).
        vocabulary: Prompts use token ids from 10 up to this.
        seed: Seed of the prompts' tokens.
        limit_s: Longest wait for one answer.
        suffix: Added to task ids, so that a trace can be replayed more than once.
    """

    api: str = "generate"
    model: str = "default"
    api_key: str | None = None
    stream: bool = True
    tags: bool = True
    lengths: str = "exact"
    vocabulary: int = 2000
    seed: int = 0
    limit_s: float = 3600.0
    suffix: str = ""


class CallRecord(msgspec.Struct, frozen=True, gc=False):
    """One request as the client saw it; times in seconds since the replay's start.

    Attributes:
        task: Position of its task.
        stage: Position of its stage.
        call: Position in the stage.
        agent: Name of its agent.
        sent_s: When it was sent.
        first_s: When its first token came, its end without streaming.
        done_s: When it ended.
        prompt_tokens: Length of its prompt.
        output_tokens: Tokens that came.
        wanted_tokens: Tokens that the trace says.
        cached_tokens: Prompt tokens from the cache, as the server says.
        itl_s: Times between tokens.
        error: What went wrong, empty if nothing did.
    """

    task: int
    stage: int
    call: int
    agent: str
    sent_s: float
    first_s: float
    done_s: float
    prompt_tokens: int
    output_tokens: int
    wanted_tokens: int
    cached_tokens: int
    itl_s: tuple[float, ...] = ()
    error: str = ""


class Replay(msgspec.Struct, frozen=True):
    """What came of a replay.

    Attributes:
        jct_s: Completion time of each task; NaN where a call of it failed.
        calls: All requests, in the order of their ends.
        duration_s: From the first arrival to the last end.
        late_s: The most that an arrival was sent late, by this client's own fault.
    """

    jct_s: list[float]
    calls: list[CallRecord]
    duration_s: float
    late_s: float


class _Run:
    def __init__(self, session: Any, workload: Workload, options: ReplayOptions, notice: Callable[[int], None]) -> None:
        self.session = session
        self.workload = workload
        self.options = options
        self.notice = notice
        self.calls: list[CallRecord] = []
        self.late_s = 0.0
        self.finished = 0
        self.prefixes: dict[str, list[int]] = {}
        for workflow in workload.workflows:
            for agent in workflow.agents:
                self.prefixes[agent.name] = self._tokens(f"prefix/{agent.name}", agent.prefix_tokens)
        self.start = time.perf_counter() + 0.05

    def _tokens(self, label: str, count: int) -> list[int]:
        digest = hashlib.sha256(f"{self.options.seed}/{label}".encode()).digest()
        generator = random.Random(digest)  # noqa: S311
        return [generator.randrange(10, self.options.vocabulary) for _ in range(count)]

    def now(self) -> float:
        return time.perf_counter() - self.start

    async def task(self, index: int) -> float:
        trace = self.workload.trace
        workflow = self.workload.workflows[int(trace.workflow[index])]
        arrival = float(trace.arrival[index])
        await asyncio.sleep(max(arrival - self.now(), 0.0))
        self.late_s = max(self.late_s, self.now() - arrival)
        ended = {stage.name: asyncio.Event() for stage in workflow.stages}
        results = await asyncio.gather(*(self._stage(index, i, workflow, ended) for i in range(len(workflow.stages))))
        self.finished += 1
        self.notice(self.finished)
        return self.now() - arrival if all(results) else float("nan")

    async def _stage(self, index: int, position: int, workflow: Any, ended: dict[str, asyncio.Event]) -> bool:
        stage = workflow.stages[position]
        for name in stage.after:
            await ended[name].wait()
        try:
            return await self._calls(index, position, workflow, stage)
        finally:
            ended[stage.name].set()

    async def _calls(self, index: int, position: int, workflow: Any, stage: Any) -> bool:
        trace = self.workload.trace
        row = int(trace.stage0[index]) + position
        first, last = int(trace.first_call[row]), int(trace.first_call[row + 1])
        left: list[int] = []  # what the last call left in the cache after the agent's prefix
        for k in range(first, last):
            call = trace.calls[k]
            history = left[: int(call["history"])]
            fresh = self._tokens(f"{index}/{position}/{k - first}", int(call["suffix"]) - len(history))
            suffix = history + fresh
            fields = tag_fields(
                workflow.name,
                task=f"{self.workload.task_ids[index]}{self.options.suffix}",
                stage=stage.name,
                last_call=k == last - 1,
            )
            output = await self._call(index, position, k - first, stage.agent, suffix, call, fields)
            if output is None:
                return False
            left = suffix + output
            if float(call["tool"]) > 0:
                await asyncio.sleep(float(call["tool"]))
        return True

    async def _call(
        self, index: int, position: int, number: int, agent: str, suffix: list[int], call: Any, fields: dict[str, Any]
    ) -> list[int] | None:
        prompt = self.prefixes[agent] + suffix
        wanted = int(call["output"])
        most = wanted
        if self.options.lengths == "stop_after":
            most = int(call["max_new"])
            fields["stop_after"] = wanted
        sent = self.now()
        times: list[float] = []
        tokens: list[int] = []
        cached, error = 0, ""
        try:
            cached = await self._send(prompt, most, fields if self.options.tags else {}, tokens, times)
        except Exception as problem:  # noqa: BLE001 (what a server does wrong is a result)
            error = f"{type(problem).__name__}: {problem}"[:300]
        done = self.now()
        if not error and len(tokens) != wanted:
            error = f"{len(tokens)} tokens came, {wanted} were to come"
        self.calls.append(
            CallRecord(
                index,
                position,
                number,
                agent,
                sent,
                times[0] if times else done,
                done,
                len(prompt),
                len(tokens),
                wanted,
                cached,
                tuple(b - a for a, b in itertools.pairwise(times)),
                error,
            )
        )
        return None if error else tokens

    async def _send(
        self, prompt: list[int], most: int, fields: dict[str, Any], tokens: list[int], times: list[float]
    ) -> int:
        options = self.options
        exact = options.lengths == "exact"  # else the server ends each output, and must not know that none stops early
        if options.api == "generate":
            sampling = {"max_new_tokens": most, "temperature": 0, "ignore_eos": exact, "custom_params": fields}
            body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling, "stream": options.stream}
            path = "/generate"
        else:
            body = {"model": options.model, "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": exact}
            body |= {"stream": options.stream, "custom_params": fields}
            if options.stream:
                body["stream_options"] = {"include_usage": True}
            path = "/v1/completions"
        async with self.session.post(path, json=body, headers=routing_headers(fields.get("task"))) as answer:
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {(await answer.text())[:200]}")
            if not options.stream:
                return self._take(msgspec.json.decode(await answer.read()), tokens, times)
            cached = 0
            async for line in answer.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    cached = max(cached, self._take(msgspec.json.decode(line[6:]), tokens, times))
            return cached

    def _take(self, piece: Any, tokens: list[int], times: list[float]) -> int:
        """Reads one answer or one piece of a stream; returns the cached prompt tokens as far as they are told."""
        if "error" in piece:
            raise RuntimeError(str(piece["error"])[:200])
        if self.options.api == "generate":
            meta = piece["meta_info"]
            reason = meta.get("finish_reason") or {}
            if reason.get("type") == "abort":
                raise RuntimeError(f"aborted by the server: {reason.get('message')}")
            known = piece["output_ids"]
            grown = meta["completion_tokens"] - len(tokens)
            fresh = known[-grown:] if grown > 0 else []
            tokens.extend(fresh)
            times.extend([self.now()] * min(len(fresh), 1))
            return int(meta.get("cached_tokens") or 0)
        text = "".join(choice.get("text") or "" for choice in piece.get("choices", ()))
        if text:
            tokens.append(0)
            times.append(self.now())
        usage = piece.get("usage") or {}  # exact, where pieces of text are not: a token may yield no text or part of it
        if usage.get("completion_tokens") is not None:
            tokens[:] = [0] * int(usage["completion_tokens"])
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


async def replay(
    url: str, workload: Workload, options: ReplayOptions, notice: Callable[[int], None] = lambda _: None
) -> Replay:
    """Replays a workload.

    Args:
        url: Address of the server, without a path.
        workload: The workload.
        options: How.
        notice: Called with the number of finished tasks.
    """
    import aiohttp

    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    timeout = aiohttp.ClientTimeout(total=options.limit_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # SGLang may close an idle one as we use it
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector, headers=headers) as session:
        run = _Run(session, workload, options, notice)
        jct = await asyncio.gather(*(run.task(i) for i in range(workload.num_tasks)))
    first = float(workload.trace.arrival[0])
    return Replay(list(jct), run.calls, max(call.done_s for call in run.calls) - first, run.late_s)
