"""What the paper reports (arXiv:2608.25523v1), and what it leaves open with the choice made here and its reason."""

from typing import NamedTuple

__all__ = [
    "ABLATION_RATE",
    "BASELINES",
    "CHOICES",
    "FIGURE_1_RATE",
    "HEADLINES",
    "OVERHEAD_MS",
    "OVERHEAD_RATE",
    "OVERHEAD_SHARE_PCT",
    "RATES",
    "SOP_THROUGHPUT_PCT",
    "TABLE_1_BATCH_RATIO",
    "TABLE_1_MAKESPAN_RATIO",
    "Choice",
]

BASELINES = ("fcfs", "lpm", "parrot-fcfs", "las", "spf")
"""The five baselines of section V-A; srpt and the downstream gate occur in figures 1 and 2 only."""

HEADLINES = {
    "chain-3": (27.5, 31.7),
    "dag-4": (39.8, 49.4),
    "dag-10-wide": (27.7, 30.8),
    "metagpt-sop": (9.8, 4.5),
    "metagpt-tl": (22.0, 26.6),
}
"""Reductions of mean and p99 JCT in per cent (section V-B). For metagpt-sop both are against spf, its best mean."""

TABLE_1_BATCH_RATIO = 2.0  # grouped "doubles the average running batch size"
TABLE_1_MAKESPAN_RATIO = (1.8, 1.9)  # alternating over grouped
OVERHEAD_MS, OVERHEAD_SHARE_PCT, OVERHEAD_RATE = 1.9, 0.31, 0.15  # metagpt-sop
SOP_THROUGHPUT_PCT = 6.7  # request throughput against spf
ABLATION_RATE = 0.0175  # metagpt-tl, figure 5: 60.5 / 53.6 against base, 44.9 to 51.0 / 44.2 to 48.5 against one part
FIGURE_1_RATE = 0.15  # chain-3

RATES = {
    "chain-3": (0.06, 0.09, 0.12, 0.15),
    "dag-4": (0.04, 0.06, 0.08, 0.10),
    "dag-10-wide": (0.016, 0.024, 0.032, 0.04),
    "metagpt-sop": (0.06, 0.09, 0.12, 0.15),
    "metagpt-tl": (0.007, 0.0105, 0.014, 0.0175),
}
"""Operating points, tasks a second: 0.4, 0.6, 0.8 and 1 times the rate of the shipped workload."""


class Choice(NamedTuple):
    """Something that the paper does not print.

    Attributes:
        what: What is open.
        value: What is used here.
        reason: Why.
    """

    what: str
    value: str
    reason: str


CHOICES = (
    Choice(
        "prefix, query and output lengths",
        "those of the shipped workloads; synthetic prefixes are 0.32 to 0.38 of the KV budget",
        "two prefixes side by side then about halve the batch, which is what table I reports; the share is swept",
    ),
    Choice(
        "arrival rates",
        "0.4, 0.6, 0.8 and 1 times 0.15, 0.10, 0.04, 0.15 and 0.0175 task/s",
        "0.15 (chain-3, sop) and 0.0175 (metagpt-tl) are printed; the others give as many requests a second; "
        "the paper's figures go from light to high load",
    ),
    Choice(
        "KV budget",
        "18,560 tokens",
        "the paper leaves SGLang's memory fraction alone, which gives this pool for 32B weights on 80 GB",
    ),
    Choice(
        "M, K, beta, rho",
        "6, 0 (no cap), 1, 0.5",
        "not printed; K = 0 is the paper's word for no cap, the weights keep terms of one size; all are swept",
    ),
    Choice(
        "host tier",
        "all policies may reload a prefix from host memory",
        "not said for the baselines; a tier for TOPAS alone would mix two causes, so it is shown apart",
    ),
    Choice(
        "preemption in the engine",
        "prompt and output are prefilled again",
        "so does SGLang 0.5.3 (schedule_batch.py), though the paper says that it decodes them again; that is swept",
    ),
    Choice(
        "preemption in the score",
        "lost tokens are charged at decode speed, 49 ms each",
        "equation 9; the profile by itself would tell the policy prefill, 0.26 ms each, which is shown beside (a pilot "
        "of one seed with that thrashed)",
    ),
    Choice(
        "released prefixes",
        "stay in memory until their room is needed",
        "so does a radix cache; eager eviction is swept",
    ),
    Choice(
        "reservation for output",
        "0.4 of what the client asked for",
        "the mean of SGLang's new-token ratio over one decay; 0.1, 0.7 and 1.0 are swept",
    ),
    Choice(
        "tasks and seeds",
        "200 tasks a run, 10 seeds, the same traces for every policy",
        "2,000 tasks a point for the p99; the paper has one trace a point",
    ),
    Choice(
        "p99",
        "of the tasks of all seeds together; intervals resample whole seeds",
        "one run of 200 tasks has two tasks beyond its p99",
    ),
    Choice(
        "time of a decision",
        "free, but for the overhead run",
        "it is below 1% of the time of a step in either system",
    ),
)
