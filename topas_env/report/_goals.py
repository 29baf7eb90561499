"""What the planner and the learned policy were to reach, and what they reached."""

from collections.abc import Sequence
from typing import Any

from topas_env.compare import Interval, SuitePoint
from topas_env.report._document import Block, Heading, Table, Text
from topas_env.report._standings import Standing, Standings, mean_difference
from topas_env.report._words import signed

__all__ = ["CONTENDED", "contended", "goals"]

Fact = dict[str, Any]
CONTENDED = 1.2  # the best baseline over the bound
WORSE_PCT, GAIN_PCT, KEPT, DECISION_MS = 1.0, 15.0, 0.8, 0.3
PLANNER, LEARNED, PAPER = "rollout", "learned", "topas"


def contended(standings: Standings, points: Sequence[SuitePoint]) -> list[SuitePoint]:
    """Returns the points at which there is something to win: the best baseline is over 1.2 times the bound."""
    return [at for at in points if standings.over_bound(at, standings.best(at, "mean")) > CONTENDED]


def goals(standings: Standings, points: Sequence[SuitePoint], labels: Sequence[str], facts: list[Fact]) -> list[Block]:
    """Returns the goals of the planner and of the learned policy beside what was measured."""
    rows: list[tuple[str, str, str]] = []
    busy = contended(standings, points)
    blocks: list[Block] = []
    if PLANNER in labels:
        behind, text = _behind(standings, points, labels)
        rows.append(("points where `rollout` is worse than the best of all others by more than 1%", "0", text))
        blocks += behind
        family = [label for label in labels if label == PAPER or label.startswith((f"{PAPER} told", f"{PAPER}-keep"))]
        for other in ("", *family):
            name = f"`{other}`" if other else "the best baseline"
            found = _mean(standings, busy, PLANNER, other)
            if found is not None:
                goal = f"at least {GAIN_PCT:g}% better"
                rows.append((f"`rollout` against {name}, {len(busy)} contended points", goal, _said(found, -GAIN_PCT)))
                facts.append({"goal": f"rollout against {name}", "points": len(busy), **found._asdict()})
    if PLANNER in labels and LEARNED in labels:
        rows += _kept(standings, busy, facts)
    if LEARNED in labels:
        slowest = max(standings.field(at, LEARNED, "decision_ms") for at in points if standings.seeds(at, LEARNED))
        reached = "reached" if slowest <= DECISION_MS else "not reached"
        rows.append(
            ("`learned`, ms a decision, the slowest point", f"at most {DECISION_MS:g}", f"{slowest:.2f}: {reached}")
        )
    if not rows:
        return []
    note = (
        f"Contended: the best baseline's mean JCT is over {CONTENDED:g} times the bound. Averages are geometric means."
    )
    return [Heading("Goals"), Table(("goal", "wanted", "found"), rows, note, words=True), *blocks]


def _said(found: Interval, most: float) -> str:
    return f"{signed(found)}: {'reached' if found.value <= most else 'not reached'}"


def _behind(standings: Standings, points: Sequence[SuitePoint], labels: Sequence[str]) -> tuple[list[Block], str]:
    """Returns a table of the points at which the planner is not the best, and how many are clearly over 1% worse."""
    rows, over, seen = [], 0, 0
    for at in points:
        best = standings.best_of_others(at, PLANNER, "mean", labels)
        standing = standings.against(at, PLANNER, best, "mean") if best else None
        if standing is None:
            continue
        seen += 1
        clear = standing.difference.low > WORSE_PCT
        over += clear
        if standing.difference.value > 0.0:
            rows.append((at.name, f"`{best}`", signed(standing.difference), "over 1% worse" if clear else ""))
    text = f"{over} of {seen}: {'reached' if over == 0 else 'not reached'}"
    if not rows:
        return [Text("`rollout` has the lowest mean JCT of all policies at every point.")], text
    header = ("`rollout` is not the best at", "best of all others", "mean JCT against it", "")
    return [Table(header, rows, "The best of all others is chosen with hindsight.", words=True)], text


def _mean(standings: Standings, points: Sequence[SuitePoint], label: str, other: str) -> Interval | None:
    found = _all(standings, points, label, other)
    return mean_difference(found) if found else None


def _all(standings: Standings, points: Sequence[SuitePoint], label: str, other: str = "") -> list[Standing]:
    pairs = [
        standings.against(at, label, other, "mean") if other else standings.against_best(at, label, "mean")
        for at in points
    ]
    return [standing for standing in pairs if standing is not None]


def _kept(standings: Standings, busy: Sequence[SuitePoint], facts: list[Fact]) -> list[tuple[str, str, str]]:
    """Returns what the learned policy keeps of the planner's gain: all contended points, then workload by workload."""
    rows = []
    workloads = list(dict.fromkeys(at.workload for at in busy))
    for name in ("all contended points", *workloads):
        mine = [at for at in busy if name in (at.workload, "all contended points")]
        both = [at for at in mine if standings.seeds(at, PLANNER) and standings.seeds(at, LEARNED)]
        planner, learned = (_mean(standings, both, label, "") for label in (PLANNER, LEARNED))
        if planner is None or learned is None:
            continue
        if planner.value >= 0.0:
            text = f"`learned` {learned.value:+.1f}%, `rollout` {planner.value:+.1f}%: no gain to keep"
        else:
            kept = learned.value / planner.value
            text = f"{100.0 * kept:.0f}% ({learned.value:+.1f}% of {planner.value:+.1f}%): "
            text += "reached" if kept >= KEPT else "not reached"
        facts.append({"goal": "learned keeps", "points": name, "learned": learned.value, "rollout": planner.value})
        rows.append(
            (f"`learned` of the gain of `rollout` over the best baseline, {name}", f"at least {100 * KEPT:g}%", text)
        )
    return rows
