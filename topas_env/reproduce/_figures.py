"""Pictures of the reproduction."""

from collections.abc import Sequence

import numpy as np

from topas_env.compare import Interval
from topas_env.report._style import AGENT_COLOURS, figure, line_style, svg_text
from topas_env.reproduce._micro import Gantt

__all__ = ["bars", "curves", "gantt_picture"]

Curve = dict[str, list[tuple[float, Interval]]]  # by policy: rate and value


def curves(panels: Sequence[tuple[str, Curve]], columns: int, alt: str) -> str:
    """Returns a grid of pictures of JCT against arrival rate, on a logarithmic axis.

    Args:
        panels: Title and curves of each picture, row by row.
        columns: Pictures in a row.
        alt: What it shows.
    """
    rows = -(-len(panels) // columns)
    policies = list(dict.fromkeys(policy for _, curve in panels for policy in curve))
    with figure(3.1 * columns + 0.4, 2.5 * rows + 0.6) as made:
        axes = np.atleast_1d(made.subplots(rows, columns, squeeze=False)).ravel()
        for axis, (title, curve) in zip(axes, panels, strict=False):
            for policy, points in curve.items():
                values = np.array([value.value for _, value in points])
                ends = np.array([[value.low, value.high] for _, value in points])
                errors = np.maximum(np.abs(ends - values[:, None]).T, 0.0)
                axis.errorbar(
                    [rate for rate, _ in points], values, errors, label=policy, elinewidth=0.8, capsize=1.5,
                    **line_style(policy, policies),
                )  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(title)
            axis.set_xlabel("arrival rate (task/s)")
            axis.set_ylabel("s")
        handles, labels = axes[0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside lower center", ncols=6, handlelength=2.6)
        return svg_text(made, alt)


def bars(groups: Sequence[tuple[str, dict[str, Interval]]], alt: str) -> str:
    """Returns a picture with a group of bars for each metric, a bar for each policy, with intervals, in seconds."""
    with figure(3.3 * len(groups), 2.7) as made:
        axes = np.atleast_1d(made.subplots(1, len(groups)))
        for axis, (title, values) in zip(axes, groups, strict=True):
            heights = [value.value for value in values.values()]
            errors = [[v.value - v.low for v in values.values()], [v.high - v.value for v in values.values()]]
            colours = [AGENT_COLOURS[k % len(AGENT_COLOURS)] for k in range(len(values))]
            axis.bar(range(len(values)), heights, yerr=np.maximum(errors, 0.0), color=colours, capsize=2.5, width=0.7)
            axis.set_xticks(range(len(values)), list(values), rotation=20, ha="right")
            axis.set_title(title)
            axis.set_ylabel("s")
        return svg_text(made, alt)


def gantt_picture(charts: Sequence[Gantt]) -> str:
    """Returns figure 2: a row for each policy and task, a box for each request, coloured by agent."""
    agents = sorted({box[0] for chart in charts for box in chart.boxes})
    end = max(chart.makespan_s for chart in charts)
    with figure(6.6, 1.5 * len(charts) + 0.6) as made:
        axes = np.atleast_1d(made.subplots(len(charts), 1, sharex=True))
        for axis, chart in zip(axes, charts, strict=True):
            tasks = sorted({box[1] for box in chart.boxes})
            for agent, task, start, finish in chart.boxes:
                row = len(tasks) - 1 - tasks.index(task)
                axis.barh(row, finish - start, left=start, height=0.7, color=AGENT_COLOURS[agents.index(agent)])
                axis.text((start + finish) / 2, row, agent, ha="center", va="center", color="white", fontsize=8)
            axis.set_yticks(range(len(tasks)), tasks[::-1])
            axis.set_xlim(0, end)
            axis.set_title(f"{chart.policy}: mean JCT {chart.mean_jct_s:g} s, all done at {chart.makespan_s:g} s")
        axes[-1].set_xlabel("time (s); a box of 5 s has the set-up of its prefix in it")
        return svg_text(made, "When each request ran under lpm and under srpt")
