"""Pictures of one run: when each agent's requests ran, and what the KV memory held."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from topas_env.report._style import AGENT_COLOURS, HATCHES, figure, svg_text

__all__ = ["busiest", "lanes", "merge_others", "run_picture", "window"]

Timeline = dict[str, Any]
_MOST_SPANS = 400
_MOST_SAMPLES = 300
_MOST_AGENTS = 10


def window(timelines: Sequence[Timeline]) -> tuple[float, float]:
    """Returns the part of the runs that is shown, seconds: all, or as much from the start as stays readable.

    Args:
        timelines: of the same trace, one for each policy that is shown.
    """
    end = max(float(timeline["end_s"]) for timeline in timelines)
    for timeline in timelines:
        starts = np.sort(np.asarray(timeline["spans"]["start_s"], np.float64))
        if starts.size > _MOST_SPANS:
            end = min(end, float(starts[_MOST_SPANS]))
    return 0.0, end


def busiest(timeline: Timeline, shown: tuple[float, float]) -> list[str]:
    """Returns the agents that get a band of their own: all, or those with the most requests in the time shown."""
    agents = list(timeline["agents"])
    if len(agents) <= _MOST_AGENTS:
        return agents
    spans = timeline["spans"]
    inside = np.asarray(spans["start_s"], np.float64) < shown[1]
    counts = np.bincount(np.asarray(spans["agent"], np.int64)[inside], minlength=len(agents))
    chosen = np.sort(np.argsort(-counts, kind="stable")[: _MOST_AGENTS - 1])
    return [agents[number] for number in chosen]


def merge_others(timeline: Timeline, kept: Sequence[str]) -> Timeline:
    """Returns the timeline with all agents but the kept ones as one, after them."""
    agents = timeline["agents"]
    others = [number for number, name in enumerate(agents) if name not in set(kept)]
    if not others:
        return timeline
    place = {number: kept.index(name) if name in set(kept) else len(kept) for number, name in enumerate(agents)}
    prefix = timeline["memory"]["prefix_tokens"]
    columns = [prefix[agents.index(name)] for name in kept]
    columns.append([int(sum(tokens)) for tokens in zip(*(prefix[number] for number in others), strict=True)])
    return {
        **timeline,
        "agents": [*kept, f"{len(others)} others"],
        "spans": {**timeline["spans"], "agent": [place[number] for number in timeline["spans"]["agent"]]},
        "memory": {**timeline["memory"], "prefix_tokens": columns},
    }


def lanes(starts: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Returns a lane for each span so that no two spans of a lane overlap, with as few lanes as possible."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    found = [0] * len(starts)
    used = 0
    for index in sorted(range(len(starts)), key=lambda i: (starts[i], ends[i])):
        while busy and busy[0][0] <= starts[index]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        found[index] = lane
        heapq.heappush(busy, (ends[index], lane))
    return found


def run_picture(timeline: Timeline, title: str, shown: tuple[float, float]) -> str:
    """Returns a picture of one run: above a band for each agent, below what the KV memory held.

    Args:
        timeline: of the run.
        title: heading of the picture.
        shown: first and last second.
    """
    agents = len(timeline["agents"])
    bands = min(0.5 * agents, 5.5) + 0.3
    with figure(6.6, bands + 2.4) as made:
        above, below = made.subplots(2, 1, sharex=True, height_ratios=(bands, 1.7))
        engine = made.get_layout_engine()
        assert engine is not None
        engine.set(w_pad=0.2)  # type: ignore[call-arg]
        _gantt(above, timeline, shown)
        _memory(below, timeline, shown)
        above.set_title(title)
        below.set_xlim(*shown)
        below.set_xlabel("time (s)")
        return svg_text(made, f"{title}: when the requests of each agent ran, and what the KV memory held over time")


def _gantt(axis: Axes, timeline: Timeline, shown: tuple[float, float]) -> None:
    """Draws a band for each agent: its requests, and shaded where its prefix was in memory."""
    spans, agents = timeline["spans"], timeline["agents"]
    last = shown[1]
    for number in range(len(agents)):
        rows = [i for i, agent in enumerate(spans["agent"]) if agent == number and spans["start_s"][i] < last]
        starts = [float(spans["start_s"][i]) for i in rows]
        ends = [min(float(spans["end_s"][i]), last) for i in rows]
        places = lanes(starts, ends)
        height = 0.8 / (max(places, default=0) + 1)
        colour = AGENT_COLOURS[number % len(AGENT_COLOURS)]
        base = len(agents) - 1 - number + 0.1
        _shade(axis, timeline, number, base, colour)
        for preempted in (False, True):
            boxes = [
                _box(start, end, base + lane * height, height * 0.86)
                for i, start, end, lane in zip(rows, starts, ends, places, strict=True)
                if bool(spans["preempted"][i]) == preempted
            ]
            face, edge = ("white", colour) if preempted else (colour, "none")
            axis.add_collection(PolyCollection(boxes, facecolors=face, edgecolors=edge, linewidths=0.7))
    axis.set_ylim(0, len(agents))
    axis.set_yticks([len(agents) - 0.5 - n for n in range(len(agents))], [_short(name) for name in agents])
    axis.grid(visible=False, axis="y")


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:7] + "…" + name[-8:]


def _box(start: float, end: float, bottom: float, height: float) -> list[tuple[float, float]]:
    return [(start, bottom), (end, bottom), (end, bottom + height), (start, bottom + height)]


def _shade(axis: Axes, timeline: Timeline, agent: int, base: float, colour: str) -> None:
    """Shades the times at which the agent's prefix was in memory."""
    times = timeline["memory"]["time_s"]
    held = timeline["memory"]["prefix_tokens"][agent]
    boxes: list[list[tuple[float, float]]] = []
    start = None
    for time, tokens in zip([*times, timeline["end_s"]], [*held, 0], strict=True):
        if tokens and start is None:
            start = time
        elif not tokens and start is not None:
            boxes.append(_box(start, time, base - 0.05, 0.9))
            start = None
    axis.add_collection(PolyCollection(boxes, facecolors=colour, alpha=0.16, linewidths=0))


def _memory(axis: Axes, timeline: Timeline, shown: tuple[float, float]) -> None:
    """Draws the KV memory over time: prefixes by agent, running suffixes, history, free above."""
    held, agents, budget = timeline["memory"], timeline["agents"], timeline["kv_budget_tokens"]
    times = np.asarray(held["time_s"], np.float64)
    inside = np.flatnonzero(times <= shown[1])
    if not inside.size:
        return
    keep = inside[np.unique(np.linspace(0, inside.size - 1, _MOST_SAMPLES).astype(int))]
    series = [np.asarray(held["prefix_tokens"][n], np.float64) for n in range(len(agents))]
    series += [np.asarray(held["running_tokens"], np.float64), np.asarray(held["history_tokens"], np.float64)]
    colours = [AGENT_COLOURS[n % len(AGENT_COLOURS)] for n in range(len(agents))] + ["#4d4d4d", "#b3b3b3"]
    hatches = [HATCHES[n // len(AGENT_COLOURS) % len(HATCHES)] for n in range(len(agents))] + ["", "///"]
    at = np.append(times[keep], max(min(float(timeline["end_s"]), shown[1]), times[keep[-1]]))
    bottom = np.zeros(at.size)
    for values, colour, hatch in zip(series, colours, hatches, strict=True):
        top = bottom + np.append(values[keep], values[keep[-1]]) / 1e3
        if np.any(top > bottom):
            axis.fill_between(
                at, bottom, top, step="post", color=colour, hatch=hatch or None, edgecolor="white", linewidth=0.0
            )
        bottom = top
    axis.axhline(budget / 1e3, color="#222222", linewidth=1)
    axis.set_ylim(0, 1.04 * budget / 1e3)
    axis.set_ylabel("1,000 KV tokens")
    handles = [
        Patch(facecolor=colour, hatch=hatch or None, edgecolor="white", label=name)
        for name, colour, hatch in zip(["running", "history"], colours[-2:], hatches[-2:], strict=True)
    ]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, handlelength=1.4, borderaxespad=0.1)
