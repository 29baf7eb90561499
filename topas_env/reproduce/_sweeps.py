"""What the gain is made of: the host tier, the unknowns of the paper swept, and the policies of the literature."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from topas_env.compare import Interval
from topas_env.compare._samples import METRICS, Samples
from topas_env.report._document import Block, Figure, Heading, Table, Text
from topas_env.report._heat_map import heat_map
from topas_env.report._words import number, ours, percent, verdict
from topas_env.reproduce._cases import (
    ENGINES,
    ENUMERATED,
    LITERATURE,
    LITERATURE_STEP,
    LOADS,
    MORE,
    OURS,
    OUTPUTS,
    SHARES,
    SWEPT,
    WEIGHTS,
    engine_settings,
    enumeration_settings,
    main_settings,
    output_settings,
    share_settings,
    weight_settings,
)
from topas_env.reproduce._paper import BASELINES, RATES
from topas_env.reproduce._settings import Options, Setting, bare, charged

__all__ = ["sweeps"]

_SHARE_MAPS = (("all", "decode"), ("topas-only", "decode"), ("none", "decode"), ("all", "prefill"))
Fact = dict[str, Any]
Grid = list[list[Interval | None]]
_HOW = (
    "Numbers are per cent by which TOPAS is below the best of the paper's five baselines there (negative: above); "
    "brackets: no clear difference."
)


def sweeps(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    """Returns the parts that have all their runs, and adds their numbers to the facts."""
    return [
        *_tier(samples, tasks, facts),
        *_engine(samples, tasks, facts),
        *_share(samples, tasks, facts),
        *_weights(samples, tasks, facts),
        *_output(samples, tasks, facts),
        *_literature(samples, tasks, facts),
        *_enumeration(samples, tasks, facts),
    ]


def _tier(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    """Splits what a tier for TOPAS alone would show into the part of the tier and the part of the scheduling.

    With `topas-only` TOPAS runs as with a tier for all and the baselines as without one, so no runs of it are needed.
    """
    with_tier, without = main_settings(tasks), main_settings(tasks, host_tier="none")
    points = [*with_tier, *without]
    if not samples.complete(points, BASELINES) or not samples.complete([charged(s) for s in points], ("topas",)):
        return []
    rows = []
    for w, metric in itertools.product(RATES, METRICS):
        tier, none = ([s for s in group if s.workload == w] for group in (with_tier, without))
        ours, ours_none = ([charged(s) for s in group] for group in (tier, none))
        best_tier, best_none = samples.best(tier, BASELINES, metric), samples.best(none, BASELINES, metric)
        found = {
            "alone": samples.reduction(ours, "topas", best_none, metric, other_settings=none),
            "tier": samples.reduction(tier, best_tier, best_none, metric, other_settings=none),
            "with": samples.reduction(ours, "topas", best_tier, metric, other_settings=tier),
            "without": samples.reduction(ours_none, "topas", best_none, metric, other_settings=none),
        }
        for name, value in found.items():
            facts.append({"result": f"tier: {name}", "workload": w, "metric": metric, **value._asdict()})
        rows.append((f"{w}: {metric}", *(percent(value) for value in found.values())))
    header = (
        "average over 4 rates",
        "tier for TOPAS alone",
        "of it the tier",
        "scheduling, tier for all",
        "no tier at all",
    )
    note = (
        "Reductions. First: TOPAS with a host tier against the best baseline without. Second: the best baseline with a "
        "tier against the best without. Third and fourth: TOPAS against the best baseline, both with and both without."
    )
    return [Heading("What the host tier gives, and what scheduling gives"), Table(header, rows, note)]


def _tally(grids: Sequence[Grid]) -> str:
    """Returns in how many points TOPAS is clearly below and above, and the largest clear gain."""
    cells = [cell for grid in grids for row in grid for cell in row if cell is not None]
    lower = [cell for cell in cells if cell.sign > 0]
    text = f"Clearly below at {len(lower)} of {len(cells)} points, clearly above at {sum(c.sign < 0 for c in cells)}"
    return text + (f"; the largest clear gain is {percent(max(lower, key=lambda cell: cell.value))}." if lower else ".")


def _engine(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    cells: dict[str, dict[tuple[str, str], Interval]] = {metric: {} for metric in METRICS}
    for row, setting, options in engine_settings(tasks):
        for metric in METRICS:
            found = _against_best(samples, setting, metric, options)
            if found is not None:
                cells[metric][row, setting.workload] = found
                facts.append(
                    {"result": f"engine: {row}", "workload": setting.workload, "metric": metric, **found._asdict()}
                )
    rows = [row for row in ENGINES if any((row, w) in cells["mean"] for w in RATES)]
    if not rows:
        return []
    grids: list[Grid] = [[[cells[metric].get((row, w)) for w in RATES] for row in rows] for metric in METRICS]
    picture = heat_map([f"{m} JCT" for m in METRICS], grids, rows, list(RATES), ("", ""), "Gain of TOPAS by engine")
    caption = f"One thing changed at a time, at 0.8 times the shipped rates. {_HOW}"
    return [
        Heading("Engine, preemption and the cap K"),
        Figure("engine", picture, caption),
        *_caps(samples, tasks, facts),
    ]


def _caps(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    """Says what a cap on preemptions does to TOPAS itself."""
    rows = []
    for w in RATES:
        at = Setting(w, RATES[w][2], num_tasks=tasks)
        if not samples.has(at, "topas"):
            return []
        cells = [
            f"{samples.column(at, 'topas', 'preemptions').mean() / samples.column(at, 'topas', 'requests').mean():.2f}"
        ]
        for cap in (1, 2, 4, 8):
            options: Options = {"K": cap}
            if not samples.has(at, "topas", options):
                return []
            calls = samples.column(at, "topas", "requests", options).mean()
            lost = float(samples.column(at, "topas", "preemptions", options).mean() / calls)
            found = samples.reduction([at], "topas", "topas", "mean", options=options)
            facts.append({"result": f"cap: K = {cap}", "workload": w, "preempted": lost, **found._asdict()})
            cells.append(f"{lost:.2f}; {percent(found)}")
        rows.append((w, *cells))
    note = "Preemptions a request, told prefill. For K > 0 then by how much the mean JCT is below that without a cap."
    return [Table(("TOPAS", "K = 0", "K = 1", "K = 2", "K = 4", "K = 8"), rows, note)]


def _share(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    blocks: list[Block] = []
    for metric in METRICS:
        grids, titles = [], []
        for (tier, told), w in itertools.product(_SHARE_MAPS, SWEPT):
            titles.append(f"{w}, tier: {tier}")
            grids.append(_share_grid(samples, tasks, w, tier, told, metric, facts))
        if any(cell is not None for grid in grids for row in grid for cell in row):
            for k, (tier, told) in enumerate(_SHARE_MAPS):
                pair = grids[2 * k : 2 * k + 2]
                picture = heat_map(
                    titles[2 * k : 2 * k + 2], pair, [f"{s:g}" for s in SHARES],
                    [f"{load:g}" for load in LOADS], ("mean prefix / KV budget", "utilisation"),
                    f"Gain of TOPAS in {metric} JCT by prefix share and load, host tier {tier}, told {told}",
                )  # fmt: skip
                caption = (
                    f"{metric} JCT by prefix share and load, host tier: {tier}, told {told}. {_HOW} {_tally(pair)}"
                )
                blocks.append(Figure(f"share-{tier}-{told}-{metric}", picture, caption))
    return [Heading("Prefix share and load"), *blocks] if blocks else []


def _share_grid(
    samples: Samples, tasks: int, workload: str, tier: str, told: str, metric: str, facts: list[Fact]
) -> Grid:
    grid: Grid = []
    settings = [s for s in share_settings(tasks) if s.workload == workload]
    for share in SHARES:
        line: list[Interval | None] = []
        for setting, load in zip([s for s in settings if s.prefix_share == share], LOADS, strict=True):
            alone = msgspec.structs.replace(setting, overrides={"host_tier": "none"})
            mine, theirs = (alone if tier == "none" else setting), (setting if tier == "all" else alone)
            mine = charged(mine) if told == "decode" else mine
            found = _against_best(samples, mine, metric, {}, theirs)
            line.append(found)
            if found is not None:
                fact = {
                    "result": f"share: {tier}, told {told}",
                    "workload": workload,
                    "metric": metric,
                    "share": share,
                    "load": load,
                }
                facts.append({**fact, **found._asdict()})
        grid.append(line)
    return grid


def _weights(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    betas, rhos = WEIGHTS
    blocks: list[Block] = []
    for metric in METRICS:
        grids: list[Grid] = []
        settings = weight_settings(tasks)
        for setting in settings:
            grid: Grid = []
            for rho in rhos:
                line: list[Interval | None] = []
                for beta in betas:
                    found = _against_best(samples, charged(setting), metric, {"beta": beta, "rho": rho})
                    line.append(found)
                    if found is not None:
                        fact = {"result": "weights", "workload": setting.workload, "metric": metric, "beta": beta}
                        facts.append({**fact, "rho": rho, **found._asdict()})
                grid.append(line)
            grids.append(grid)
        if all(cell is None for grid in grids for row in grid for cell in row):
            continue
        picture = heat_map(
            [s.workload for s in settings], grids, [f"{r:g}" for r in rhos], [f"{b:g}" for b in betas],
            ("rho (aging)", "beta (reuse)"), f"Gain of TOPAS in {metric} JCT by beta and rho",
        )  # fmt: skip
        blocks.append(
            Figure(
                f"weights-{metric}",
                picture,
                f"{metric} JCT by beta and rho, at 0.8 times the shipped rates. {_HOW} {_tally(grids)}",
            )
        )
    return [Heading("Strength of reuse and of aging"), *blocks] if blocks else []


def _output(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    blocks: list[Block] = []
    for metric in METRICS:
        grids: list[Grid] = []
        for w in SWEPT:
            settings = iter([s for s in output_settings(tasks) if s.workload == w])
            grid: Grid = []
            for scale in OUTPUTS:
                line: list[Interval | None] = []
                for load in LOADS:
                    found = _against_best(samples, charged(next(settings)), metric, {})
                    line.append(found)
                    if found is not None:
                        fact = {"result": "output", "workload": w, "metric": metric, "scale": scale, "load": load}
                        facts.append({**fact, **found._asdict()})
                grid.append(line)
            grids.append(grid)
        if all(cell is None for grid in grids for row in grid for cell in row):
            continue
        picture = heat_map(
            list(SWEPT), grids, [f"{s:g}" for s in OUTPUTS], [f"{load:g}" for load in LOADS],
            ("output length, times shipped", "utilisation"), f"Gain of TOPAS in {metric} JCT by output length and load",
        )  # fmt: skip
        blocks.append(
            Figure(f"output-{metric}", picture, f"{metric} JCT by output length and load. {_HOW} {_tally(grids)}")
        )
    return [Heading("Output length and load"), *blocks] if blocks else []


def _literature(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    settings = [Setting(w, rates[LITERATURE_STEP], num_tasks=tasks) for w, rates in RATES.items()]
    others = [p for p in (*BASELINES, *MORE, *LITERATURE) if samples.complete(settings, (p,))]
    told = [charged(s) for s in settings]
    if not set(LITERATURE) & set(others) or not samples.complete(told, ("topas",)):
        return []
    rows_of = [(name, name, settings) for name in others]
    rows_of += [("topas", "topas", told), ("topas, told prefill", "topas", settings)]
    rows_of += [("topas-keep", "topas-keep", settings)]
    rows_of += [(ours(p), p, [s for s in settings if samples.has(s, p)]) for p in OURS]
    blocks: list[Block] = [Heading("Policies of the literature")]
    for metric in METRICS:
        table: dict[str, dict[str, float]] = {}
        for shown, policy, at in rows_of:
            if at and samples.complete(at, (policy,)):
                table[shown] = {s.workload: samples.value([s], policy, metric).value for s in at}
        lowest = {w: min(values[w] for values in table.values() if w in values) for w in RATES}
        rows = [(name, *(_marked(values.get(w), lowest[w]) for w in RATES)) for name, values in table.items()]
        note = f"{metric} JCT, s, at 0.8 times the shipped rates; * the lowest."
        blocks.append(Table((f"{metric} JCT, s", *RATES), rows, note))
    sentences: list[str] = []
    for setting, mine in zip(settings, told, strict=True):
        best = samples.best([setting], others, "mean")
        found = samples.reduction([mine], "topas", best, "mean", other_settings=[setting])
        facts.append({"result": "literature", "workload": setting.workload, "against": best, **found._asdict()})
        sentences.append(f"{setting.workload}: {percent(found)} below `{best}`, {verdict(found, 'lower', 'higher')}")
    blocks.append(Text("TOPAS against the best of all others, mean JCT. " + "; ".join(sentences) + "."))
    return blocks


def _marked(value: float | None, lowest: float) -> str:
    if value is None:
        return "not run"
    return f"{number(value)} *" if value == lowest else number(value)


def _enumeration(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    """Returns what TOPAS gains or loses with another M, and what a decision then takes."""
    rows: list[tuple[str, ...]] = []
    for at in map(charged, enumeration_settings(tasks)):
        if not all(samples.has(at, "topas", options) for options in ({}, *({"M": m} for m in ENUMERATED))):
            return []
        for metric in METRICS:
            cells = []
            for m in ENUMERATED:
                found = samples.reduction([at], "topas", "topas", metric, options={"M": m})
                facts.append({"result": f"M = {m}", "workload": at.workload, "metric": metric, **found._asdict()})
                cells.append(percent(found))
            rows.append((f"{at.workload}: {metric}", *cells))
        speed = [samples.column(at, "topas", "decision_ms", {"M": m}).mean() for m in ENUMERATED]
        rows.append((f"{at.workload}: ms a decision", *(f"{value:.3f}" for value in speed)))
    header = ("TOPAS against itself with M = 6", *(f"M = {m}" for m in ENUMERATED))
    note = (
        "Reductions (negative: longer), at 0.8 times the shipped rates. With at most M active agents every set of "
        "prefixes is tried, with more the bounded search; 0 is always the bounded search."
    )
    return [Heading("How many agents are enumerated: M"), Table(header, rows, note)]


def _against_best(
    samples: Samples, setting: Setting, metric: str, options: Options, theirs: Setting | None = None
) -> Interval | None:
    """Returns the reduction against the best of the five baselines at a point; None without all runs."""
    other = theirs or bare(setting)
    if not samples.has(setting, "topas", options) or not all(samples.has(other, p) for p in BASELINES):
        return None
    best = samples.best([other], BASELINES, metric)
    return samples.reduction([setting], "topas", best, metric, options=options, other_settings=[other])
