"""The results of the paper beside those of the simulator, as a document."""

import itertools
from collections.abc import Sequence
from typing import Any

from topas_env.compare import Interval, Record
from topas_env.compare._samples import METRICS, Samples
from topas_env.report._document import Block, Document, Figure, Heading, Table, Text
from topas_env.report._words import ends, number, ours, percent, verdict
from topas_env.reproduce import _paper as paper
from topas_env.reproduce._cases import MORE, OURS, main_settings
from topas_env.reproduce._figures import bars, curves, gantt_picture
from topas_env.reproduce._micro import GANTT, TABLE_1_REQUESTS, gantt, table_1
from topas_env.reproduce._settings import Setting, charged
from topas_env.reproduce._sweeps import sweeps

__all__ = ["document"]

_SYNTHETIC = ("chain-3", "dag-4", "dag-10-wide")
_METAGPT = ("metagpt-sop", "metagpt-tl")
_PREFILL = "topas, told prefill"
Lines = dict[str, tuple[str, dict[str, list[Setting]]]]  # by label: policy, and its points by workload
_CAPACITY = (
    "first_task_s", "request_throughput", "mean_batch", "cache_hit_rate_pct", "preemptions", "retractions",
    "prefix_moves",
)  # fmt: skip
Fact = dict[str, Any]


def document(records: Sequence[Record], seeds: Sequence[int], tasks: int, missing: int = 0) -> Document:
    """Returns the findings of some runs; what has no complete runs is left out and said to be.

    Args:
        records: Of `run_cases`.
        seeds: The seeds that were asked for.
        tasks: Tasks of a run.
        missing: Number of runs that were asked for and are not there.
    """
    samples = Samples(records, seeds, Setting)
    facts: list[Fact] = []
    parts = [
        *_table_1(facts),
        *_figure_2(facts),
        *_figure_1(samples, tasks, facts),
        *_main(samples, tasks, facts),
        *_ablation(samples, tasks, facts),
        *_overhead(records, facts),
        *sweeps(samples, tasks, facts),
    ]
    n = len(seeds)
    intro = (
        f"Made by `topas reproduce` with {tasks} tasks a run and {n} seeds ({n * tasks:,} tasks a point) in the "
        "simulator; no GPU took part. All policies of a point see the same traces. Intervals are 95% bootstrap "
        "intervals over seeds, paired; where one has zero in it there is no clear difference, and none is claimed."
    )
    if missing:
        intro += f" {missing:,} runs are missing (a limit of time, or an interrupt): parts that need them are left out."
    if n * tasks < 2000:
        intro += " The p99 of fewer than 2,000 tasks is not to be relied on."
    choices = Table(("open in the paper", "here", "reason"), paper.CHOICES, words=True)
    blocks: list[Block] = [
        Text(intro),
        Heading("The paper's results and ours"),
        _beside(facts),
        Heading("Choices, made before the runs"),
        choices,
        *parts,
    ]
    return Document("TOPAS, made again in the simulator", blocks, facts)


def _beside(facts: Sequence[Fact]) -> Table:
    rows = []
    for fact in facts:
        if "paper" in fact:
            against = f" against `{fact['against']}`" if fact.get("against") else ""
            name = f"{fact['result']}{against}"
            rows.append((name, str(fact["paper"]), fact["here"], fact.get("verdict", ""), fact.get("prefill", "")))
    note = (
        "Per cent: by how much TOPAS is below what it is compared with; a negative number is above. `Here`: preempted "
        "work is charged at decode speed, as in the paper's equation 9, while the engine prefills it, as SGLang does. "
        "Told prefill: the score is charged what the engine really takes."
    )
    return Table(("result", "paper", "here", "so", "told prefill"), rows, note)


def _fact(result: str, value: Interval, shown: str, **more: Any) -> Fact:
    return {"result": result, "value": value.value, "low": value.low, "high": value.high, "here": shown, **more}


def _table_1(facts: list[Fact]) -> list[Block]:
    rows, batches, spans = [], [], []
    for n in TABLE_1_REQUESTS:
        order = table_1(n)
        batches.append(order.batch[0] / order.batch[1])
        spans.append(order.makespan_s[1] / order.makespan_s[0])
        rows.append(
            (
                str(n),
                f"{order.batch[0]:.1f} / {order.batch[1]:.1f}",
                f"{order.makespan_s[0]:.1f} / {order.makespan_s[1]:.1f}",
                f"{spans[-1]:.2f}",
            )
        )
    for result, values, told in (
        ("table I: batch, grouped over alternating", batches, "about 2"),
        ("table I: makespan, alternating over grouped", spans, "1.8 to 1.9"),
    ):
        shown = f"{min(values):.2f} to {max(values):.2f}"
        facts.append({"result": result, "paper": told, "here": shown, "values": values})
    note = "Grouped / alternating, fcfs, two agents with n requests each, lengths of chain-3; nothing is random here."
    return [
        Heading("Table I: two prefixes side by side"),
        Table(("n", "mean batch", "makespan, s", "ratio of makespans"), rows, note),
    ]


def _figure_2(facts: list[Fact]) -> list[Block]:
    charts = [gantt(policy) for policy in GANTT]
    facts += [
        {"result": f"figure 2: {c.policy}", "makespan_s": c.makespan_s, "mean_jct_s": c.mean_jct_s, "setups": c.setups}
        for c in charts
    ]
    caption = (
        "Three tasks of a chain A, B, C; the memory holds one prefix, a request takes 4 s, a set-up 1 s. "
        + "; ".join(
            f"{c.policy}: {c.setups} set-ups, mean JCT {c.mean_jct_s:g} s, end {c.makespan_s:g} s" for c in charts
        )
        + "."
    )
    return [Heading("Figure 2: locality first and progress first"), Figure("figure-2", gantt_picture(charts), caption)]


def _figure_1(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    at = [Setting("chain-3", paper.FIGURE_1_RATE, num_tasks=tasks)]
    policies = ("lpm", "srpt", "gated-lpm")
    if not samples.complete(at, policies):
        return []
    for other in ("lpm", "srpt"):
        found = samples.reduction(at, "gated-lpm", other, "mean")
        result = "figure 1: mean JCT of the downstream gate"
        facts.append(
            _fact(
                result, found, percent(found), paper="lower", against=other, verdict=verdict(found, "lower", "higher")
            )
        )
    groups = [(f"{m} JCT", {p: samples.value(at, p, m) for p in policies}) for m in METRICS]
    caption = f"chain-3 at {paper.FIGURE_1_RATE} task/s: longest prefix match, shortest remaining time, and the gate."
    return [
        Heading("Figure 1: a downstream gate"),
        Figure("figure-1", bars(groups, "JCT of three policies on chain-3"), caption),
    ]


def _lines(samples: Samples, tasks: int) -> Lines:
    """Returns all that ran at all points of the main part."""
    plain = {w: [s for s in main_settings(tasks) if s.workload == w] for w in paper.RATES}
    told = {w: [charged(s) for s in settings] for w, settings in plain.items()}
    lines = {policy: (policy, plain) for policy in (*paper.BASELINES, *MORE)}
    lines |= {"topas": ("topas", told), _PREFILL: ("topas", plain), "topas-keep": ("topas-keep", plain)}
    found = {
        shown: (policy, points)
        for shown, (policy, points) in lines.items()
        if all(samples.complete(settings, (policy,)) for settings in points.values())
    }
    for policy in OURS:
        points = {w: settings for w, settings in plain.items() if samples.complete(settings, (policy,))}
        if points:
            found[ours(policy)] = (policy, points)
    return found


def _main(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    lines = _lines(samples, tasks)
    if not {"topas", _PREFILL, *paper.BASELINES} <= set(lines):
        return []
    blocks: list[Block] = []
    for figure, workloads in (("figure-3", _SYNTHETIC), ("figure-4", _METAGPT)):
        panels = [
            (
                f"{w}: {m} JCT",
                {
                    shown: [(s.arrival_rate, samples.value([s], policy, m)) for s in points[w]]
                    for shown, (policy, points) in lines.items()
                    if w in points
                },
            )
            for m in METRICS
            for w in workloads
        ]
        caption = f"Mean (above) and p99 JCT (below) against the arrival rate: {', '.join(workloads)}."
        blocks += [
            Heading(f"{figure.replace('-', ' ').capitalize()}: JCT against load"),
            Figure(figure, curves(panels, len(workloads), caption), caption),
        ]
    rows = [_headline(samples, lines, w, metric, facts) for w in paper.RATES for metric in METRICS]
    text = (
        "As in the paper: each metric is averaged over the operating points, and compared with the baseline that has "
        "the lowest average of that metric. Told prefill: the score is charged what the engine really takes for "
        "preempted work. Never preempting: `topas-keep`, the same search among the states that preempt nothing. "
        "Against all: also `srpt` and `gated-lpm`."
    )
    header = (
        "average over 4 rates", "TOPAS, s", "best of the five, s", "reduction", "told prefill", "never preempting",
        "against all",
    )  # fmt: skip
    blocks += [Heading("Headline reductions"), Text(text), Table(header, rows), *_ours(samples, lines, facts)]
    blocks += _capacity(samples, lines, facts)
    return blocks


def _simple(lines: Lines) -> list[str]:
    return [policy for policy in lines if policy in (*paper.BASELINES, *MORE)]


def _ours(samples: Samples, lines: Lines, facts: list[Fact]) -> list[Block]:
    """Returns what the planner, the learned and the tuned policy gain where the paper measured."""
    mine = [policy for policy in OURS if ours(policy) in lines]
    if not mine:
        return []
    rows = []
    for w, metric in itertools.product(paper.RATES, METRICS):
        plain = lines["fcfs"][1][w]
        best = samples.best(plain, paper.BASELINES, metric)
        everyone = samples.best(plain, _simple(lines), metric)
        cells = []
        for policy in mine:
            if w not in lines[ours(policy)][1]:
                cells.append("not run")
                continue
            found, hard = (samples.reduction(plain, policy, other, metric) for other in (best, everyone))
            facts.append(_fact(f"{policy}: {w}: {metric} JCT", found, percent(found), against=best))
            cells.append(f"{percent(found)}; {percent(hard)}")
        rows.append((f"{w}: {metric}", f"{best}; {everyone}", *cells))
    note = (
        "Not the paper's. Reductions, averaged over four rates: against the best of the paper's five baselines; "
        "against the best of these, `srpt` and `gated-lpm`. Told what the engine takes for preempted work."
    )
    header = ("average over 4 rates", "best of the five; of seven", *map(ours, mine))
    return [Heading("Ours at the paper's points"), Table(header, rows, note)]


def _headline(samples: Samples, lines: Lines, w: str, metric: str, facts: list[Fact]) -> tuple[str, ...]:
    """Returns a row of the table of headlines, and adds it to the facts beside the paper's number."""
    plain = lines["fcfs"][1][w]
    best = samples.best(plain, paper.BASELINES, metric)
    against = "spf" if w == "metagpt-sop" and metric == "p99" else best  # as in the paper
    everyone = samples.best(plain, _simple(lines), metric)

    def below(shown: str, other: str) -> Interval:
        policy, points = lines[shown]
        return samples.reduction(points[w], policy, other, metric, other_settings=plain)

    found = below("topas", against)
    printed = f"{paper.HEADLINES[w][METRICS.index(metric)]}%"
    facts.append(
        _fact(
            f"{w}: {metric} JCT", found, percent(found), paper=printed, against=against, best=best,
            prefill=percent(below(_PREFILL, against)), verdict=verdict(found, "lower", "higher"),
        )
    )  # fmt: skip
    kept = below("topas-keep", best) if "topas-keep" in lines else None
    if kept is not None:
        facts.append(_fact(f"keep: {w}: {metric} JCT", kept, percent(kept), against=best))
    return (
        f"{w}: {metric}",
        number(samples.value(lines["topas"][1][w], "topas", metric).value),
        f"{number(samples.value(plain, best, metric).value)} ({best})",
        percent(below("topas", best)),
        percent(below(_PREFILL, best)),
        "not run" if kept is None else percent(kept),
        f"{percent(below('topas', everyone))} ({everyone})",
    )


def _capacity(samples: Samples, lines: Lines, facts: list[Fact]) -> list[Block]:
    """First-task completion, throughput, and what the engine did, at the highest rate."""
    rows = []
    for w in paper.RATES:
        best = samples.best(lines["fcfs"][1][w][-1:], paper.BASELINES, "mean")
        for shown in ("topas", _PREFILL, "topas-keep", best):
            if shown not in lines:
                continue
            policy, points = lines[shown]
            top = points[w][-1:]
            calls = samples.mean_of(top, policy, "requests").value
            figures = {f: samples.mean_of(top, policy, f).value for f in _CAPACITY}
            facts.append({"result": "capacity", "workload": w, "policy": shown, "rate": top[0].arrival_rate, **figures})
            rows.append(
                (
                    f"{w}: {shown}",
                    number(figures["first_task_s"]),
                    f"{figures['request_throughput']:.3f}",
                    f"{figures['mean_batch']:.1f}",
                    f"{figures['cache_hit_rate_pct']:.1f}",
                    *(f"{figures[f] / calls:.2f}" for f in ("preemptions", "retractions", "prefix_moves")),
                )
            )
    at = lines["fcfs"][1]["metagpt-sop"][-1]
    plain = samples.ratio_of(at, "topas", "spf", "request_throughput")
    found = samples.ratio_of(charged(at), "topas", "spf", "request_throughput", other_setting=at)
    facts.append(
        _fact(
            "metagpt-sop: request throughput (higher is better)", found, f"{found.value:+.1f}% {ends(found)}",
            paper=f"+{paper.SOP_THROUGHPUT_PCT}%", against="spf", prefill=f"{plain.value:+.1f}% {ends(plain)}",
            verdict=verdict(found, "higher", "lower"),
        )
    )  # fmt: skip
    header = (
        "at the highest rate",
        "first task, s",
        "requests/s",
        "mean batch",
        "from cache, %",
        "preempted",
        "retracted",
        "prefix moves",
    )
    note = (
        "First task: from the first arrival to the first task that is done. From cache: prompt tokens that were not "
        "prefilled, what preemption makes the engine prefill again counted against. The last three are per request."
    )
    return [Heading("First task, throughput, and what the engine did"), Table(header, rows, note)]


def _ablation(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    plain = [Setting("metagpt-tl", paper.ABLATION_RATE, num_tasks=tasks)]
    at = [charged(plain[0])]
    names = ("topas-base", "topas-reuse", "topas-aging", "topas")
    if not samples.complete([*at, *plain], names):
        return []
    printed = {"topas-base": ("60.5%", "53.6%")}
    for other in names[:-1]:
        for k, metric in enumerate(METRICS):
            found = samples.reduction(at, "topas", other, metric)
            facts.append(
                _fact(
                    f"figure 5: {metric} JCT", found, percent(found), against=other,
                    paper=printed.get(other, ("44.9 to 51.0%", "44.2 to 48.5%"))[k],
                    prefill=percent(samples.reduction(plain, "topas", other, metric)),
                    verdict=verdict(found, "lower", "higher"),
                )
            )  # fmt: skip
    groups = [
        (f"{m} JCT{told}", {p: samples.value(points, p, m) for p in names})
        for points, told in ((at, ""), (plain, ", told prefill"))
        for m in METRICS
    ]
    caption = f"metagpt-tl at {paper.ABLATION_RATE} task/s: TOPAS without reuse and aging, with one of them, with both."
    return [Heading("Figure 5: ablation"), Figure("figure-5", bars(groups, "JCT of TOPAS and its ablations"), caption)]


def _overhead(records: Sequence[Record], facts: list[Fact]) -> list[Block]:
    found = [r for r in records if r["point"].get("decision_time") == "measured"]
    if not found:
        return []
    mean, share = found[0]["decision_ms"], found[0]["decision_share_pct"]
    for result, value, told in (
        ("overhead: ms a decision", f"{mean:.3f}", f"{paper.OVERHEAD_MS}"),
        ("overhead: share of time", f"{share:.3f}%", f"{paper.OVERHEAD_SHARE_PCT}%"),
    ):
        facts.append({"result": result, "paper": told, "here": value, "verdict": "depends on the machine"})
    text = (
        f"metagpt-sop at {paper.OVERHEAD_RATE} task/s, the engine standing still while TOPAS decides: {mean:.3f} ms a "
        f"decision, {share:.3f}% of the simulated time. The search is compiled here."
    )
    return [Heading("Overhead"), Text(text)]
