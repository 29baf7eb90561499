"""The report: one HTML file that needs nothing else."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from topas_env._errors import InputError
from topas_env.compare import BASELINES, Interval, PointSummary, Record, policy_label, summarise
from topas_env.report._curves import distribution, jct_against_rate
from topas_env.report._headline import headline, representative
from topas_env.report._timelines import busiest, merge_others, run_picture, window

__all__ = ["headlines", "render", "write_report"]

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def write_report(records: Sequence[Record], path: Path) -> None:
    """Writes the report of some runs as one HTML file.

    Args:
        records: of `run_all` or `read_results`.
        path: file to write; its folder is made.

    Raises:
        InputError: the file cannot be written.
    """
    page = render(records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def render(records: Sequence[Record]) -> str:
    """Returns the page; the same records give the same bytes."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "interval": _interval, "percent": _percent, "sign": _sign, "ends": _ends}
    environment.globals["baselines"] = BASELINES
    sections = [_section(points, records) for points in _groups(records)]
    return environment.get_template("report.html.j2").render(sections=sections)


def headlines(records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each workload and profile: who is fastest, by how much, and how sure that is."""
    return [headline(points) for points in _groups(records)]


def _groups(records: Sequence[Record]) -> list[list[PointSummary]]:
    """Returns the points that differ in the arrival rate only, together."""
    groups: dict[bytes, list[PointSummary]] = {}
    for point in summarise(records):
        plain = msgspec.structs.replace(point.point, arrival_rate=None)
        groups.setdefault(msgspec.json.encode(plain, order="sorted"), []).append(point)
    return list(groups.values())


def _section(points: list[PointSummary], records: Sequence[Record]) -> dict[str, Any]:
    shown = representative(points)
    usable = sorted((point for point in points if point.rows), key=lambda point: point.point.arrival_rate or 0.0)
    policies = [row.policy for row in shown.rows]
    at_point = [r for r in records if msgspec.convert(r["point"], type(shown.point)) == shown.point]
    title = msgspec.structs.replace(shown.point, arrival_rate=None).label()
    many = len(usable) > 1 and all(point.point.arrival_rate is not None for point in usable)
    return {
        "title": title,
        "headline": headline(points),
        "profile": shown.profile,
        "points": usable,
        "shown": shown.point.label(),
        "rates": jct_against_rate(usable) if many else "",
        "distribution": distribution(at_point, policies) if policies else "",
        "runs": _runs(at_point, shown),
    }


def _runs(records: Sequence[Record], shown: PointSummary) -> list[str]:
    """Returns the pictures of single runs: the best baseline, and the best of the others."""
    timelines = {policy_label(r): r["timeline"] for r in records if r.get("timeline")}
    ranked = [row.policy for row in sorted(shown.rows, key=lambda row: row.mean_jct_s.value)]
    others = [policy for policy in ranked if policy.split()[0] not in BASELINES]
    chosen = [policy for policy in (shown.best_mean, *others[:1]) if policy in timelines] or list(timelines)[:2]
    if not chosen:
        return []
    part = window([timelines[policy] for policy in chosen])
    agents = busiest(timelines[chosen[0]], part)
    return [run_picture(merge_others(timelines[policy], agents), policy, part) for policy in chosen]


def _number(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def _interval(interval: Interval) -> str:
    return "" if math.isnan(interval.low) else f"{_number(interval.low)} to {_number(interval.high)}"


def _percent(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval.value:+.1f}%".replace("-", "−")


def _ends(interval: Interval) -> str:
    if math.isnan(interval.low):
        return ""
    return f"{interval.low:+.1f} to {interval.high:+.1f}".replace("-", "−")


def _sign(interval: Interval | None) -> str:
    return "" if interval is None else {-1: "lower", 0: "", 1: "higher"}[interval.sign]
