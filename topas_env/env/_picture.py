"""The picture of the recent past (`render_mode="rgb_array"`): a Gantt of requests and the memory by agent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topas_env._core.world import World
from topas_env.env._history import Span, memory_since, spans_since

__all__ = ["HEIGHT", "WIDTH", "picture"]

WIDTH, HEIGHT = 960, 600  # pixels
_DPI = 100
_WINDOW_S = 300.0  # how much of the past is shown
_MOST_LANES_WITH_TEXT = 40


def picture(world: World, agent_names: Sequence[str], title: str) -> NDArray[np.uint8]:
    """Draws the recent past of a world that keeps the full record.

    Args:
        world: The world.
        agent_names: Names in the order of its agents.
        title: What stands above the picture.

    Returns:
        uint8 (HEIGHT, WIDTH, 3).
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    now = float(world.clock["time"][0])
    start = max(0.0, now - _WINDOW_S)
    palette = colormaps["tab10" if len(agent_names) <= 10 else "tab20"]
    colours = [palette(index % palette.N) for index in range(len(agent_names))]
    figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    gantt, memory = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
    figure.suptitle(title, fontsize=10)
    _draw_gantt(gantt, spans_since(world, start), colours, start, now)
    _draw_memory(memory, world, colours, start)
    memory.set_xlim(start, max(now, start + 1.0))
    for axes in (gantt, memory):
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour, label=name) for colour, name in zip(colours, agent_names, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), fontsize=7, frameon=False)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[:, :, :3])


def _lanes(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Returns (lane, span): spans of an agent lie together, and two that overlap get lanes of their own."""
    placed: list[tuple[int, Span]] = []
    first = 0
    for agent in sorted({span.agent for span in spans}):
        ends: list[float] = []
        for span in sorted((s for s in spans if s.agent == agent), key=lambda s: (s.start, s.task)):
            lane = next((i for i, end in enumerate(ends) if end <= span.start), len(ends))
            if lane == len(ends):
                ends.append(0.0)
            ends[lane] = span.end
            placed.append((first + lane, span))
        first += len(ends)
    return placed


def _draw_gantt(axes: Any, spans: Sequence[Span], colours: Sequence[Any], start: float, now: float) -> None:
    placed = _lanes(spans)
    lanes = 1 + max((lane for lane, _ in placed), default=0)
    for lane, span in placed:
        left = max(span.start, start)
        axes.barh(
            lane, span.end - left, left=left, height=0.9, color=colours[span.agent], edgecolor="white", linewidth=0.5,
            hatch="" if span.whole else "////",
        )  # fmt: skip
        if lanes <= _MOST_LANES_WITH_TEXT and span.end - left > 0.03 * (now - start):
            axes.text((left + span.end) / 2, lane, str(span.task), ha="center", va="center", fontsize=6, color="white")
    axes.set_ylim(lanes - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_ylabel("requests on the engine, number: task\n(hatched: preempted or retracted)", fontsize=8)


def _draw_memory(axes: Any, world: World, colours: Sequence[Any], start: float) -> None:
    budget = int(world.v.head["budget"][0])
    times, tokens, leaves = memory_since(world, start)
    if len(times):
        layers = [*tokens[:, :, 0].T, *tokens[:, :, 1].T, leaves]
        pale = [(*colour[:3], 0.45) for colour in colours]
        axes.stackplot(times, np.array(layers), colors=[*colours, *pale, "0.8"])
    axes.axhline(budget, color="black", linewidth=1, linestyle="--")
    axes.set_ylim(0, budget * 1.1)
    axes.set_ylabel("KV tokens: prefixes,\nrunning requests (pale), history (grey)", fontsize=8)
    axes.set_xlabel("simulated time, s", fontsize=8)
