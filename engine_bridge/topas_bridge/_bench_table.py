"""The results of `topas bench` as tables for people."""

from typing import Any

import numpy as np

from topas_bridge._fidelity import Fidelity

__all__ = ["bench_table", "fidelity_table"]


def bench_table(lines: list[dict[str, Any]]) -> str:
    """Returns one row a policy: means over traces with 95% intervals where there are several traces."""
    from topas_env.compare import mean_interval

    rows: list[tuple[str, ...]] = [
        ("policy", "traces", "mean JCT s", "p99 JCT s", "TTFT ms", "failed", "preempt", "ours %", "ms/decision")
    ]
    for policy in dict.fromkeys(line.get("policy", "endpoint") for line in lines):
        own = [line for line in lines if line.get("policy", "endpoint") == policy]
        cells = [policy, str(len(own))]
        for field in ("mean_jct_s", "p99_jct_s"):
            values = np.array([line[field] for line in own if line[field] is not None], float)
            if len(values) == 0:
                cells.append("-")
            elif len(values) == 1:
                cells.append(f"{values[0]:.3f}")
            else:
                found = mean_interval(values)
                cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")
        cells.append(_mean(own, "mean_ttft_ms", "{:.1f}"))
        cells.append(str(sum(line["failed"] for line in own)))
        cells.append(_mean(own, "preemptions", "{:.0f}"))
        cells.append(_mean(own, "overhead_percent", "{:.1f}"))
        cells.append(_mean(own, "decision_ms", "{:.2f}"))
        rows.append(tuple(cells))
    return _table(rows)


def fidelity_table(found: Fidelity) -> str:
    """Returns the fidelity report: simulator against engine."""
    rows: list[tuple[str, ...]] = [
        ("policy", "engine mean s", "simulator", "error", "spread", "engine p99 s", "simulator", "error", "speed")
    ]
    rows += [
        (
            entry.policy,
            f"{entry.engine_mean_s:.3f}",
            f"{entry.simulated_mean_s:.3f}",
            f"{entry.mean_error_percent:+.1f}%",
            f"{entry.spread_percent:.1f}%",
            f"{entry.engine_p99_s:.3f}",
            f"{entry.simulated_p99_s:.3f}",
            f"{entry.p99_error_percent:+.1f}%",
            f"{entry.slowness:.2f}",
        )
        for entry in found.policies
    ]
    rank = "none" if found.rank_correlation is None else f"{found.rank_correlation:.2f}"
    return f"{_table(rows)}\nrank correlation of the policies' mean JCT: {rank}"


def _mean(lines: list[dict[str, Any]], field: str, form: str) -> str:
    values = [line[field] for line in lines if line.get(field) is not None]
    return form.format(sum(values) / len(values)) if values else "-"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
