"""The results of the paper beside those of the simulator, as a document."""

from collections.abc import Sequence
from typing import Any

from topas_env.compare import Interval, Record
from topas_env.reproduce import _paper as paper
from topas_env.reproduce._cases import CHARGE, MORE, main_settings
from topas_env.reproduce._document import Block, Document, Figure, Heading, Table, Text
from topas_env.reproduce._figures import bars, curves, gantt_picture
from topas_env.reproduce._micro import GANTT, TABLE_1_REQUESTS, gantt, table_1
from topas_env.reproduce._samples import METRICS, Samples
from topas_env.reproduce._settings import Setting
from topas_env.reproduce._sweeps import sweeps
from topas_env.reproduce._words import ends, number, percent, verdict

__all__ = ["document"]

_SYNTHETIC = ("chain-3", "dag-4", "dag-10-wide")
_METAGPT = ("metagpt-sop", "metagpt-tl")
Fact = dict[str, Any]


def document(records: Sequence[Record], seeds: Sequence[int], tasks: int, missing: int = 0) -> Document:
    """Returns the findings of some runs; what has no complete runs is left out and said to be.

    Args:
        records: Of `run_cases`.
        seeds: The seeds that were asked for.
        tasks: Tasks of a run.
        missing: Number of runs that were asked for and are not there.
    """
    samples = Samples(records, seeds)
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
            rows.append((f"{fact['result']}{against}", str(fact["paper"]), fact["here"], fact.get("verdict", "")))
    note = "Per cent: by how much TOPAS is below what it is compared with; a negative number is above."
    return Table(("result", "paper", "here", "so"), rows, note)


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


def _main(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    shown = [p for p in (*paper.BASELINES, *MORE, "topas") if samples.complete(main_settings(tasks), (p,))]
    if "topas" not in shown or not set(paper.BASELINES) <= set(shown):
        return []
    points = {w: [s for s in main_settings(tasks) if s.workload == w] for w in paper.RATES}
    blocks: list[Block] = []
    for figure, workloads in (("figure-3", _SYNTHETIC), ("figure-4", _METAGPT)):
        panels = [
            (f"{w}: {m} JCT", {p: [(s.arrival_rate, samples.value([s], p, m)) for s in points[w]] for p in shown})
            for m in METRICS
            for w in workloads
        ]
        caption = f"Mean (above) and p99 JCT (below) against the arrival rate: {', '.join(workloads)}."
        blocks += [
            Heading(f"{figure.replace('-', ' ').capitalize()}: JCT against load"),
            Figure(figure, curves(panels, len(workloads), caption), caption),
        ]
    rows = []
    for w, settings in points.items():
        for k, metric in enumerate(METRICS):
            best = samples.best(settings, paper.BASELINES, metric)
            against = "spf" if w == "metagpt-sop" and metric == "p99" else best
            found = samples.reduction(settings, "topas", against, metric)
            facts.append(
                _fact(
                    f"{w}: {metric} JCT", found, percent(found), paper=f"{paper.HEADLINES[w][k]}%", against=against,
                    best=best, verdict=verdict(found, "lower", "higher"),
                )
            )  # fmt: skip
            charged = [s for s in main_settings(tasks, believed=CHARGE) if s.workload == w]
            told = kept = "not run"
            if samples.complete(charged, ("topas",)):
                lower = samples.reduction(charged, "topas", best, metric, other_settings=settings)
                facts.append(_fact(f"charge: {w}: {metric} JCT", lower, percent(lower), against=best))
                told = percent(lower)
            if samples.complete(settings, ("topas-keep",)):
                never = samples.reduction(settings, "topas-keep", best, metric)
                facts.append(_fact(f"keep: {w}: {metric} JCT", never, percent(never), against=best))
                kept = percent(never)
            widest = samples.best(settings, [p for p in shown if p != "topas"], metric)
            all_found = samples.reduction(settings, "topas", widest, metric)
            rows.append(
                (
                    f"{w}: {metric}",
                    number(samples.value(settings, "topas", metric).value),
                    f"{number(samples.value(settings, best, metric).value)} ({best})",
                    percent(samples.reduction(settings, "topas", best, metric)),
                    told,
                    kept,
                    f"{percent(all_found)} ({widest})",
                )
            )
    blocks += [
        Heading("Headline reductions"),
        Text(
            "As in the paper: each metric is averaged over the operating points, and compared with the baseline that "
            "has the lowest average of that metric. Charged as decode: TOPAS is told, as in equation 9, that "
            "lost tokens come back at decode speed, while the engine prefills them, as SGLang does. Never preempting: "
            "`topas-keep`, the same search among the states that preempt nothing. Against all: also "
            "`srpt` and `gated-lpm`."
        ),
        Table(
            (
                "average over 4 rates",
                "TOPAS, s",
                "best of the five, s",
                "reduction",
                "charged as decode",
                "never preempting",
                "against all",
            ),
            rows,
        ),
        *_capacity(samples, points, facts),
    ]
    return blocks


def _capacity(samples: Samples, points: dict[str, list[Setting]], facts: list[Fact]) -> list[Block]:
    """First-task completion, throughput, and what the engine did, at the highest rate."""
    rows = []
    for w, settings in points.items():
        top = settings[-1:]
        best = samples.best(settings, paper.BASELINES, "mean")
        for policy in ("topas", best):
            calls = samples.mean_of(top, policy, "requests").value
            figures = {
                f: samples.mean_of(top, policy, f).value
                for f in (
                    "first_task_s",
                    "request_throughput",
                    "mean_batch",
                    "preemptions",
                    "retractions",
                    "prefix_moves",
                )
            }
            facts.append(
                {"result": "capacity", "workload": w, "policy": policy, "rate": top[0].arrival_rate, **figures}
            )
            rows.append(
                (
                    f"{w}: {policy}",
                    number(figures["first_task_s"]),
                    f"{figures['request_throughput']:.3f}",
                    f"{figures['mean_batch']:.1f}",
                    *(f"{figures[f] / calls:.2f}" for f in ("preemptions", "retractions", "prefix_moves")),
                )
            )
    at = points["metagpt-sop"][-1]
    found = samples.ratio_of(at, "topas", "spf", "request_throughput")
    facts.append(
        _fact(
            "metagpt-sop: request throughput (higher is better)", found, f"{found.value:+.1f}% {ends(found)}",
            paper=f"+{paper.SOP_THROUGHPUT_PCT}%", against="spf", verdict=verdict(found, "higher", "lower"),
        )
    )  # fmt: skip
    header = (
        "at the highest rate",
        "first task, s",
        "requests/s",
        "mean batch",
        "preempted",
        "retracted",
        "prefix moves",
    )
    note = "The last three are per request. First task: from the first arrival to the first task that is done."
    return [Heading("First task, throughput, and what the engine did"), Table(header, rows, note)]


def _ablation(samples: Samples, tasks: int, facts: list[Fact]) -> list[Block]:
    at = [Setting("metagpt-tl", paper.ABLATION_RATE, num_tasks=tasks)]
    names = ("topas-base", "topas-reuse", "topas-aging", "topas")
    if not samples.complete(at, names):
        return []
    told = {"topas-base": ("60.5%", "53.6%")}
    for other in names[:-1]:
        for k, metric in enumerate(METRICS):
            found = samples.reduction(at, "topas", other, metric)
            printed = told.get(other, ("44.9 to 51.0%", "44.2 to 48.5%"))[k]
            facts.append(
                _fact(
                    f"figure 5: {metric} JCT", found, percent(found), paper=printed, against=other,
                    verdict=verdict(found, "lower", "higher"),
                )
            )  # fmt: skip
    groups = [(f"{m} JCT", {p: samples.value(at, p, m) for p in names}) for m in METRICS]
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
