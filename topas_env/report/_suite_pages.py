"""The pages of the robustness and of the ablation suite."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from topas_env.compare import BASELINES, METRICS, Record, Suite, SuitePoint
from topas_env.report._document import Block, Document, Heading, Table, Text
from topas_env.report._goals import CONTENDED, PLANNER, contended
from topas_env.report._leaderboard import HOW, leaderboard, settings_text, standing_cell
from topas_env.report._standings import Standing, Standings, mean_difference
from topas_env.report._words import number, signed

__all__ = ["suite_document"]

Fact = dict[str, Any]
_LEAST_SHARE = 0.5


def suite_document(suite: Suite, records: Iterable[Record], missing: int = 0) -> Document:
    """Returns the page of a suite.

    Args:
        suite: What was asked for.
        records: Finished runs.
        missing: Runs that are not finished.
    """
    pages: dict[str, Callable[[Suite, Iterable[Record], int], Document]] = {
        "standard": leaderboard,
        "robust": _robust,
        "ablation": _ablation,
    }
    return pages[suite.name](suite, records, missing)


def _robust(suite: Suite, records: Iterable[Record], missing: int) -> Document:
    standings = Standings(records, suite.labels(BASELINES))
    points = [at for at in suite.points if standings.best(at, "mean")]
    worlds = list(dict.fromkeys(at.world for at in points))
    labels = [
        label for label in suite.labels() if label not in BASELINES and any(standings.seeds(at, label) for at in points)
    ]
    facts: list[Fact] = []
    blocks: list[Block] = [Text(settings_text(suite, missing)), Text(_ROBUST), Text(HOW)]
    if PLANNER in labels:
        blocks += _half(standings, points, worlds, facts)
    if points:
        blocks += [Heading("All policies, averages over points"), *_averages(standings, points, worlds, labels, facts)]
    for label in labels:
        rows = [
            (world, *(standing_cell(standings, at, label, "mean") for at in points if at.world == world))
            for world in worlds
            if len([at for at in points if at.world == world]) == len(_places(points))
        ]
        blocks += [Heading(f"`{label}`, mean JCT"), Table(("world", *_places(points)), rows)]
    return Document("Robustness: worlds that are not what policies are told", blocks, facts)


_ROBUST = (
    "In each world the engine, the tasks or the arrivals are not what policies are told. They are told the speeds of "
    "the engine of the first world, and the expected services of its tasks; what a snapshot observes (services of "
    "finished calls, the rate so far) and the KV budget, without which no decision would be feasible, are true. `all "
    "at once` draws every factor from 0.7 to 1.3. The best baseline is that of the same world. A request without "
    "tags is shown as a task of one stage of which nothing is known, wrong tags as a task of the reversed workflow, "
    "for a tenth of the tasks; the engine does the same as before."
)


def _places(points: Sequence[SuitePoint]) -> list[str]:
    return list(dict.fromkeys(at.name.removesuffix(f"/{at.world}") for at in points))


def _stands(
    standings: Standings, points: Sequence[SuitePoint], label: str, metric: str, other: str = ""
) -> list[Standing]:
    found = [
        standings.against(at, label, other, metric) if other else standings.against_best(at, label, metric)
        for at in points
    ]
    return [standing for standing in found if standing is not None]


def _averages(
    standings: Standings, points: Sequence[SuitePoint], worlds: Sequence[str], labels: Sequence[str], facts: list[Fact]
) -> list[Block]:
    """Returns for each metric a table of the geometric means over points, by world and policy."""
    blocks: list[Block] = []
    places = len(_places(points))
    for metric in METRICS:
        rows = []
        for world in worlds:
            mine = [at for at in points if at.world == world]
            cells = []
            for label in labels:
                found = _stands(standings, mine, label, metric)
                if len(found) < places:
                    cells.append("")
                    continue
                mean = mean_difference(found)
                facts.append({"world": world, "policy": label, "metric": metric, **mean._asdict()})
                cells.append(signed(mean))
            rows.append((world, *cells))
        blocks.append(Table((f"{metric} JCT against the best baseline", *(f"`{label}`" for label in labels)), rows))
    return blocks


def _half(standings: Standings, points: Sequence[SuitePoint], worlds: Sequence[str], facts: list[Fact]) -> list[Block]:
    """Returns how much of the planner's gain on contended points is left in each world."""
    plain = contended(standings, [at for at in points if at.world == worlds[0]])
    names = {at.name.removesuffix(at.world) for at in plain}
    gains = {}
    for world in worlds:
        mine = [at for at in points if at.world == world and at.name.removesuffix(world) in names]
        found = _stands(standings, mine, PLANNER, "mean")
        if found and len(found) == len(names):
            gains[world] = mean_difference(found)
    if worlds[0] not in gains or gains[worlds[0]].value >= 0.0:
        return []
    whole = gains[worlds[0]].value
    rows = []
    for world, gain in gains.items():
        share = gain.value / whole
        facts.append({"goal": "half of the gain", "world": world, "share": share, **gain._asdict()})
        rows.append((world, signed(gain), f"{100 * share:.0f}%", "" if share >= _LEAST_SHARE else "less than half"))
    short = sum(row[3] != "" for row in rows)
    text = (
        f"`rollout` against the best baseline on the {len(names)} contended points (the best baseline over "
        f"{CONTENDED:g} times the bound in the first world). Wanted: at least half of the gain of the first world. "
        f"Less in {short} of {len(rows) - 1} others."
    )
    return [
        Heading("What is left of the planner's gain"),
        Text(text),
        Table(("world", "mean JCT", "of the gain", ""), rows),
    ]


def _ablation(suite: Suite, records: Iterable[Record], missing: int) -> Document:
    standings = Standings(records, suite.labels())
    plain = suite.entries[0].label
    points = [at for at in suite.points if standings.seeds(at, plain)]
    facts: list[Fact] = []
    text = (
        f"`{plain}` with one parameter changed at a time, against itself as it is; negative is better. Intervals are "
        "95%, paired over seeds; in bold what has no zero in it. All points: geometric mean."
    )
    blocks: list[Block] = [Text(settings_text(suite, missing)), Text(text)]
    if points:
        blocks += [_plain(standings, points, plain)]
        blocks += [_variants(suite, standings, points, plain, metric, facts) for metric in METRICS]
    return Document(f"What the gain of {plain} is made of", blocks, facts)


def _plain(standings: Standings, points: Sequence[SuitePoint], plain: str) -> Table:
    rows = [
        (
            at.name,
            *(number(standings.value(at, plain, metric).value) for metric in METRICS),
            f"{standings.over_bound(at, plain):.2f}",
            f"{standings.field(at, plain, 'decision_ms'):.2f}",
        )
        for at in points
    ]
    return Table((f"`{plain}` at", "mean JCT, s", "p99 JCT, s", "times bound", "ms a decision"), rows)


def _variants(
    suite: Suite, standings: Standings, points: Sequence[SuitePoint], plain: str, metric: str, facts: list[Fact]
) -> Table:
    rows = []
    for entry in suite.entries[1:]:
        found = _stands(standings, points, entry.label, metric, plain)
        if not found:
            continue
        average = ""
        if len(found) == len(points):
            mean = mean_difference(found)
            average = signed(mean)
            facts.append({"group": entry.group, "policy": entry.label, "metric": metric, **mean._asdict()})
        cells = [standing_cell(standings, at, entry.label, metric, plain) for at in points]
        speed = [standings.field(at, entry.label, "decision_ms") for at in points if standings.seeds(at, entry.label)]
        said = entry.label.removeprefix(entry.policy).strip()
        rows.append((f"{entry.group}: `{said}`", average, *cells, f"{sum(speed) / len(speed):.2f}"))
    header = (f"{metric} JCT against `{plain}`", "all points", *(at.name for at in points), "ms a decision")
    return Table(header, rows)
