"""Traces of single requests as workloads: every request is a task of one stage with one call.

* Mooncake (JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`, one per 512-token block of the
  prompt). Requests that start with the same block are given to one agent, whose prefix are the blocks that all of
  them start with; a request that shares its first block with no other belongs to an agent without a prefix.
* Azure (CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`): one agent without a prefix.

What clients asked for is not recorded: `max_new_tokens` is one number for all calls, 4,096, doubled while any recorded
output is longer. Arrivals are the recorded ones, from 0.
"""

import csv
import io
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topas_env._convert import convert, decode_json, fail, in_source
from topas_env._core.trace import CALL
from topas_env._errors import InputError
from topas_env._snapshot_rules import check_count, check_seconds
from topas_env._trace_build import build_trace, common_length
from topas_env._workflow import Agent, Stage, Workflow
from topas_env._workload import Workload
from topas_env._workload_file import read_bytes

__all__ = ["AZURE_HEADER", "import_azure", "import_mooncake"]

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_BLOCK = 512
_MAX_NEW = 4096


class _Line(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def import_mooncake(path: Path) -> Workload:
    """Reads a Mooncake trace.

    Raises:
        InputError: One line with the file, its line, the path in it and the value.
    """
    lines: list[_Line] = []
    for number, text in enumerate(read_bytes(path).splitlines(), 1):
        if not text.strip():
            continue
        try:
            plain = decode_json(text)
            if not isinstance(plain, dict):
                fail("$", "expected an object", plain)
            line = convert(plain, _Line)
            check_seconds(line.timestamp, "$.timestamp")
            check_count(line.input_length, "$.input_length")
            check_count(line.output_length, "$.output_length")
        except InputError as error:
            raise in_source(f"{path}: line {number}", error) from None
        lines.append(line)
    prefixes = _shared_blocks(lines)
    keys = [line.hash_ids[0] if line.hash_ids and prefixes[line.hash_ids[0]] else None for line in lines]
    numbers = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    tokens = [0 if key is None else prefixes[key] * _BLOCK for key in numbers]
    agent = np.array([numbers[key] for key in keys], np.int64)
    arrival = np.array([line.timestamp for line in lines]) / 1000
    prompt = np.array([line.input_length for line in lines], np.int64)
    output = np.array([line.output_length for line in lines], np.int64)
    return _workload(path, tokens, agent, arrival, prompt, output)


def import_azure(path: Path) -> Workload:
    """Reads an Azure trace.

    Raises:
        InputError: One line with the file, its line, the column and the value.
    """
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeError:
        raise InputError(f"{path}: not CSV: the text is not UTF-8") from None
    rows = csv.reader(io.StringIO(text))
    try:
        if next(rows, []) != AZURE_HEADER.split(","):
            fail("$[0]", f"must be the header {AZURE_HEADER}", text[:60].split("\n")[0])
        for row in rows:
            if not row:
                continue
            if len(row) != 3:
                fail("$", "must have three columns", row)
            times.append(_time(row[0]))
            prompts.append(_count(row[1], "$.ContextTokens"))
            outputs.append(_count(row[2], "$.GeneratedTokens"))
    except InputError as error:
        raise in_source(f"{path}: line {rows.line_num}", error) from None
    except csv.Error as error:
        raise InputError(f"{path}: line {rows.line_num}: not CSV: {error}") from None
    agent = np.zeros(len(times), np.int64)
    return _workload(path, [0], agent, np.array(times), np.array(prompts, np.int64), np.array(outputs, np.int64))


def _time(text: str) -> float:
    """Returns seconds on some clock; the recorded fractions have seven digits, of which Python keeps six."""
    try:
        return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        fail("$.TIMESTAMP", "must be a date and time", text)


def _count(text: str, path: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        fail(path, "must be a whole number", text)
    value = int(text)
    check_count(value, path)
    return value


def _shared_blocks(lines: list[_Line]) -> dict[int, int]:
    """Returns, for each first block, how many leading blocks all requests that start with it share; 0 for one alone."""
    shared: dict[int, list[int]] = {}
    count: dict[int, int] = {}
    for line in lines:
        # Only whole blocks of the prompt can be a prefix, and one token at least is left to the request.
        blocks = line.hash_ids[: max(line.input_length - 1, 0) // _BLOCK]
        if not line.hash_ids:
            continue
        first = line.hash_ids[0]
        count[first] = count.get(first, 0) + 1
        known = shared.setdefault(first, blocks)
        shared[first] = known[: common_length(known, blocks)]
    return {first: len(blocks) if count[first] > 1 else 0 for first, blocks in shared.items()}


def _workload(
    path: Path,
    prefixes: list[int],
    agent: NDArray[np.int64],
    arrival: NDArray[np.float64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
) -> Workload:
    """Returns the workload of requests with the given agents (rows of `prefixes`)."""
    if not len(arrival):
        raise InputError(f"{path}: $: must hold at least one request")
    n = len(arrival)
    calls: NDArray[Any] = np.zeros(n, CALL)
    calls["suffix"] = prompt - np.array(prefixes, np.int64)[agent]
    calls["output"] = np.maximum(output, 1)
    limit = _MAX_NEW
    while limit < output.max():
        limit *= 2
    calls["max_new"] = limit
    workflows = tuple(
        Workflow(f"prefix-{k}", (Agent(f"prefix-{k}", tokens),), (Stage("call", f"prefix-{k}", ()),))
        for k, tokens in enumerate(prefixes)
    )
    width = max(6, len(str(n - 1)))
    ids = [f"r{k:0{width}d}" for k in range(n)]
    trace, ids = build_trace(ids, arrival - arrival.min(), agent, [1] * len(workflows), np.ones(n, np.int64), calls)
    return Workload(path.stem, workflows, trace, ids)
