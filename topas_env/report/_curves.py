"""Pictures over many runs: JCT against arrival rate, and the distribution of JCTs."""

from collections.abc import Sequence

import numpy as np

from topas_env.compare import PointSummary, Record, policy_label
from topas_env.report._style import figure, line_style, svg_text

__all__ = ["distribution", "jct_against_rate"]

_MOST_STEPS = 300


def jct_against_rate(points: Sequence[PointSummary]) -> str:
    """Returns a picture of mean and p99 JCT against the arrival rate, with 95% intervals over seeds.

    Args:
        points: of one workload and profile, which differ in arrival rate.
    """
    policies = list(dict.fromkeys(row.policy for point in points for row in point.rows))
    ordered = sorted((point for point in points if point.rows), key=_rate)
    with figure(6.6, 3.1) as made:
        axes = made.subplots(1, 2)
        for axis, title, field in zip(axes, ("Mean JCT (s)", "p99 JCT (s)"), ("mean_jct_s", "p99_jct_s"), strict=True):
            for policy in policies:
                rows = [(_rate(p), row) for p in ordered for row in p.rows if row.policy == policy]
                rates = [rate for rate, _ in rows]
                intervals = [getattr(row, field) for _, row in rows]
                values = np.array([i.value for i in intervals])
                ends = np.array([[i.low, i.high] for i in intervals])
                ends = np.where(np.isnan(ends), values[:, None], ends)
                errors = np.maximum(np.abs(ends - values[:, None]).T, 0.0)
                axis.errorbar(
                    rates, values, errors, label=policy, elinewidth=0.9, capsize=2.0, **line_style(policy, policies)
                )
            if field == "mean_jct_s":
                axis.plot(
                    [_rate(p) for p in ordered], [p.rows[0].bound_s for p in ordered],
                    color="#444444", linewidth=1, linestyle=(0, (1, 2)), label="bound",
                )  # fmt: skip
            axis.set_title(title)
            axis.set_xlabel("arrival rate (task/s)")
            axis.set_ylim(bottom=0)
        handles, labels = axes[0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside lower center", ncols=5, handlelength=2.6)
        return svg_text(made, "Mean and p99 job completion time against arrival rate, a line for each policy")


def _rate(point: PointSummary) -> float:
    return point.point.arrival_rate or 0.0


def distribution(records: Sequence[Record], policies: Sequence[str]) -> str:
    """Returns a picture of the share of tasks that are done within a time, all seeds of a point together.

    Args:
        records: the runs of one operating point.
        policies: labels in the order of the other pictures, so that the colours agree.
    """
    with figure(4.9, 3.3) as made:
        axis = made.subplots()
        for policy in policies:
            parts = [record["jct_s"] for record in records if policy_label(record) == policy and record.get("jct_s")]
            if not parts:
                continue
            values = np.sort(np.concatenate([np.asarray(part, np.float64) for part in parts]))
            shares = np.arange(1, values.size + 1) / values.size
            if values.size > _MOST_STEPS:
                keep = np.unique(np.linspace(0, values.size - 1, _MOST_STEPS).astype(int))
                values, shares = values[keep], shares[keep]
            style = {**line_style(policy, policies), "marker": ""}
            axis.plot(values, shares, drawstyle="steps-post", label=policy, **style)
        axis.set_ylim(0, 1.01)
        axis.set_xlim(left=0)
        axis.set_xlabel("JCT (s)")
        axis.set_title("Share of tasks done within that time")
        axis.legend(loc="lower right", handlelength=2.6)
        return svg_text(made, "Distribution of job completion times, a line for each policy")
