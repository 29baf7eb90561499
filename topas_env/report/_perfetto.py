"""A run as a trace that chrome://tracing and ui.perfetto.dev open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from topas_env._errors import InputError
from topas_env.compare import Point, Record, policy_label
from topas_env.report._timelines import lanes

__all__ = ["write_trace"]

Event = dict[str, Any]


def write_trace(records: Sequence[Record], path: Path) -> None:
    """Writes the runs that kept a timeline as Chrome trace events: a process a run, threads by agent, memory counters.

    Args:
        records: of `run_all` or `read_results`.
        path: JSON file to write.

    Raises:
        InputError: no run has a timeline, or the file cannot be written.
    """
    kept = [record for record in records if record.get("timeline")]
    if not kept:
        raise InputError("no run kept a timeline: run the first seed of topas compare again")
    events = [event for process, record in enumerate(kept, 1) for event in _events(record, process)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _events(record: Record, process: int) -> list[Event]:
    timeline = record["timeline"]
    spans, agents = timeline["spans"], timeline["agents"]
    label = f"{policy_label(record)}: {msgspec.convert(record['point'], Point).label()}, seed {record['seed']}"
    events: list[Event] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": label}}]
    thread = 0
    for agent, name in enumerate(agents):
        rows = [row for row, owner in enumerate(spans["agent"]) if owner == agent]
        places = lanes([spans["start_s"][row] for row in rows], [spans["end_s"][row] for row in rows])
        for lane in range(max(places, default=-1) + 1):
            tid = thread + lane + 1
            events.append({"ph": "M", "pid": process, "tid": tid, "name": "thread_name", "args": {"name": name}})
            events.append(
                {"ph": "M", "pid": process, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
            )
        for row, lane in zip(rows, places, strict=True):
            start, end = spans["start_s"][row], spans["end_s"][row]
            events.append(
                {
                    "ph": "X",
                    "pid": process,
                    "tid": thread + lane + 1,
                    "name": f"{spans['task'][row]} {spans['stage'][row]}",
                    "cat": "preempted" if spans["preempted"][row] else "request",
                    "ts": start * 1e6,
                    "dur": (end - start) * 1e6,
                    "args": {"agent": name, "preempted": bool(spans["preempted"][row])},
                }
            )
        thread += max(places, default=-1) + 1
    held = timeline["memory"]
    for sample, time in enumerate(held["time_s"]):
        tokens = {name: held["prefix_tokens"][agent][sample] for agent, name in enumerate(agents)}
        tokens |= {"running": held["running_tokens"][sample], "history": held["history_tokens"][sample]}
        events.append({"ph": "C", "pid": process, "name": "KV tokens", "ts": time * 1e6, "args": tokens})
    return events
