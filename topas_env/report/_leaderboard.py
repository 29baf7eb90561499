"""The leaderboard of the standard suite: every policy at every point against the best baseline there."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from topas_env.compare import BASELINES, METRICS, SUITE_SEEDS, Record, Suite, SuitePoint
from topas_env.report._document import Block, Document, Figure, Heading, Table, Text
from topas_env.report._goals import goals
from topas_env.report._heat_map import heat_map
from topas_env.report._standings import Standing, Standings, mean_difference
from topas_env.report._words import number, signed

__all__ = ["HOW", "leaderboard", "settings_text", "standing_cell"]

Fact = dict[str, Any]
HOW = (
    "The best baseline of a point is the one with the lowest value of the metric over the very seeds that are "
    "reported, so it is chosen with hindsight: it looks a little better than any single baseline would on other "
    "seeds, which is to the disadvantage of what is compared with it. Negative is better than it. Intervals are 95%, "
    "paired, 1,000 resamples of seeds; in bold what has no zero in it. p99 is that of the tasks of all seeds "
    "together."
)


def leaderboard(suite: Suite, records: Iterable[Record], missing: int = 0) -> Document:
    """Returns the page of the standard suite.

    Args:
        suite: What was asked for.
        records: Finished runs.
        missing: Runs that are not finished.
    """
    standings = Standings(records, suite.labels(BASELINES))
    points = [at for at in suite.points if standings.best(at, "mean")]
    labels = [label for label in suite.labels() if any(standings.seeds(at, label) for at in points)]
    facts: list[Fact] = [fact for at in points for label in labels for fact in _facts(standings, at, label)]
    blocks: list[Block] = [Text(settings_text(suite, missing)), Text(HOW)]
    if points:
        blocks += [_overall(standings, points, labels), *goals(standings, points, labels, facts)]
        blocks += [*_pictures(standings, points, labels), _points_table(standings, points)]
        for workload in dict.fromkeys(at.workload for at in points):
            blocks += _workload(standings, [at for at in points if at.workload == workload], labels)
    return Document("Leaderboard: mean and p99 JCT against the best baseline", blocks, facts)


def settings_text(suite: Suite, missing: int) -> str:
    """Returns what was run, in sentences."""
    first = suite.points[0].point
    text = (
        f"{len(suite.points)} operating points, {len(suite.entries)} policies, seeds {_range(suite.seeds)}, "
        f"{first.num_tasks} tasks a run (so {len(suite.seeds) * (first.num_tasks or 0):,} tasks a point), from an "
        "empty engine; all policies see the same traces and the same engine."
    )
    if set(suite.seeds) <= set(SUITE_SEEDS):
        text += (
            " Nothing was trained, tuned or tried on these seeds: tuning and training use seeds of 1,000,000 and "
            "above, development those below 5,000."
        )
    profiles = dict.fromkeys(
        f"`{at.point.profile}`" + (f" with {tokens:,} KV tokens" if isinstance(tokens, int) else "")
        for at in suite.points
        for tokens in (at.point.overrides.get("kv_budget_tokens"),)
    )
    text += f" Engines: {'; '.join(profiles)}." if not any(at.world for at in suite.points) else ""
    if suite.notes:
        text += " " + " ".join(f"{note[0].upper()}{note[1:]}." for note in suite.notes)
    if missing:
        text += f" {missing:,} runs are not finished; where a policy has fewer seeds, their number is given."
    return text


def _range(seeds: Sequence[int]) -> str:
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _facts(standings: Standings, at: SuitePoint, label: str) -> list[Fact]:
    found: list[Fact] = []
    for metric in METRICS:
        standing = standings.against_best(at, label, metric)
        if standing is not None:
            fact = {
                "point": at.name, "policy": label, "metric": metric, "seeds": standing.seeds,
                "jct_s": standings.value(at, label, metric).value, "best_baseline": standings.best(at, metric),
                **standing.difference._asdict(),
            }  # fmt: skip
            if metric == "mean":
                fact |= {
                    "over_bound": standings.over_bound(at, label),
                    "decision_ms": standings.field(at, label, "decision_ms"),
                    "utilisation": standings.field(at, label, "utilisation"),
                }
            found.append({name: _plain(value) for name, value in fact.items()})
    return found


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _standings_of(
    standings: Standings, points: Sequence[SuitePoint], label: str, metric: str
) -> list[tuple[SuitePoint, Standing]]:
    pairs = [(at, standings.against_best(at, label, metric)) for at in points]
    return [(at, standing) for at, standing in pairs if standing is not None]


def _overall(standings: Standings, points: Sequence[SuitePoint], labels: Sequence[str]) -> Table:
    rows = []
    for label in labels:
        mean, tail = (_standings_of(standings, points, label, metric) for metric in METRICS)
        if not mean:
            continue
        worst_at, worst = max(mean, key=lambda pair: pair[1].difference.value)
        ranked = mean_difference([standing for _, standing in mean])
        signs = [standing.difference.sign for _, standing in mean]
        milliseconds = [standings.field(at, label, "decision_ms") for at, _ in mean]
        over = [math.log(standings.over_bound(at, label)) for at, _ in mean]
        rows.append(
            (
                ranked.value,
                (
                    f"`{label}`",
                    str(len(mean)) if len(mean) < len(points) else "all",
                    signed(ranked),
                    signed(mean_difference([standing for _, standing in tail])),
                    f"{signs.count(-1)} / {signs.count(1)}",
                    f"{worst.difference.value:+.1f}% at {worst_at.name}",
                    f"{math.exp(sum(over) / len(over)):.2f}",
                    f"{sorted(milliseconds)[len(milliseconds) // 2]:.3f}",
                ),
            )
        )
    header = (
        "policy", "points", "mean JCT", "p99 JCT", "points clearly better / worse", "worst point", "times bound",
        "ms a decision",
    )  # fmt: skip
    note = (
        "Against the best baseline of each point, the geometric mean over points. Times bound: mean JCT over the "
        "mean critical path alone on the engine with its prefixes resident, geometric mean. Milliseconds: median "
        "over points of the wall time of a decision on this machine, which others shared."
    )
    return Table(header, [row for _, row in sorted(rows)], note)


def _pictures(standings: Standings, points: Sequence[SuitePoint], labels: Sequence[str]) -> list[Block]:
    found: list[Block] = []
    for metric in METRICS:
        for tier in dict.fromkeys(at.tier for at in points):
            mine = [at for at in points if at.tier == tier]
            cells = [[_difference(standings.against_best(at, label, metric)) for at in mine] for label in labels]
            columns = [f"{at.workload} {at.load:g}" for at in mine]
            alt = f"{metric} JCT of each policy against the best baseline, host tier {tier}"
            picture = heat_map([""], [cells], labels, columns, ("", ""), alt, difference=True)
            caption = f"{alt}. Per cent; blue is better, red worse; in brackets what may be chance."
            found.append(Figure(f"{metric}-{tier}", picture, caption))
    return [Heading("At a glance"), *found]


def _difference(standing: Standing | None) -> Any:
    return None if standing is None else standing.difference


def _points_table(standings: Standings, points: Sequence[SuitePoint]) -> Table:
    rows = []
    for at in points:
        best, tail = (standings.best(at, metric) for metric in METRICS)
        rows.append(
            (
                at.name,
                f"{at.point.arrival_rate:g}",
                f"{standings.field(at, best, 'utilisation'):.2f}",
                f"`{best}`",
                number(standings.value(at, best, "mean").value),
                f"{standings.over_bound(at, best):.2f}",
                f"`{tail}`",
                number(standings.value(at, tail, "p99").value),
            )
        )
    header = (
        "point: workload/load/tier", "task/s", "utilisation", "best baseline, mean", "s", "times bound",
        "best baseline, p99", "s",
    )  # fmt: skip
    return Table(header, rows, "Utilisation: of the tasks that were drawn. Loads are set by the mean over other tasks.")


def _workload(standings: Standings, points: Sequence[SuitePoint], labels: Sequence[str]) -> list[Block]:
    found: list[Block] = [Heading(f"{points[0].workload}")]
    for metric in METRICS:
        rows = [
            (f"`{label}`", *(standing_cell(standings, at, label, metric) for at in points))
            for label in labels
            if any(standings.seeds(at, label) for at in points)
        ]
        header = (f"{metric} JCT", *(f"load {at.load:g}, tier {at.tier}" for at in points))
        found.append(Table(header, rows))
    return found


def standing_cell(standings: Standings, at: SuitePoint, label: str, metric: str, other: str = "") -> str:
    """Returns a difference with its interval, in bold where it is clear, and the number of seeds where it is smaller.

    Args:
        standings: The comparisons.
        at: Where.
        label: Of the policy.
        metric: `mean` or `p99`.
        other: Label of the policy that it is compared with; the best baseline if empty.
    """
    against = other or standings.best(at, metric)
    if label == against:
        return f"best: {number(standings.value(at, label, metric).value)} s" if not other else "0"
    standing = standings.against(at, label, against, metric) if against else None
    if standing is None:
        return ""
    text = "0" if max(map(abs, standing.difference)) < 0.05 else signed(standing.difference)
    if standing.difference.sign and text != "0":
        text = f"**{text.partition(' ')[0]}** {text.partition(' ')[2]}".strip()
    return text if standing.seeds == len(standings.seeds(at, against)) else f"{text}, {standing.seeds} seeds"
