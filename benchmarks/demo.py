"""`make demo`: the policies on a paper workload and on recorded coding-agent sessions, and a report to look at."""

import argparse
import sys
from pathlib import Path

from topas_env.cli._progress import run_with_progress
from topas_env.cli._table import print_points
from topas_env.compare import PAPER_BASELINES, Point, RunConfig, grid, summarise
from topas_env.report import headlines, write_report

POLICIES = [*PAPER_BASELINES, "topas"]
SEEDS = range(5)
RATES = (0.09, 0.12, 0.15)
REBUILDS = ("decode", "prefill")
TRACE_RATES = (0.008, 0.0125)
TRACE_TASKS = 43
TRACE_BUDGET = 480_000


def runs(trace: Path) -> list[RunConfig]:
    """Returns the runs of the demo; those on the recorded sessions only where they are there.

    The paper workload is run twice: a preempted request's output is rebuilt by decoding, as the paper charges it, and
    by prefill, as SGLang does. The sessions are served by a small model, in half of its pool, so that memory is scarce.
    """
    paper = [Point("chain-3", r, 100, overrides={"rebuild": rebuild}) for rebuild in REBUILDS for r in RATES]
    found = grid(paper, POLICIES, SEEDS, {})
    if trace.exists():
        small = {"profile": "qwen2.5-7b-a100-80g", "overrides": {"kv_budget_tokens": TRACE_BUDGET}}
        recorded = [Point(str(trace), rate, TRACE_TASKS, **small) for rate in TRACE_RATES]
        found += grid(recorded, POLICIES, SEEDS, {})
    else:
        print(f"{trace} is not there: the paper workload only (give another with TRACE=PATH)", file=sys.stderr)
    return found


def main() -> None:
    """Makes the runs, prints the tables, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--trace", type=Path, default=Path("../shared/data/claude-code"))
    arguments = parser.parse_args()
    records = run_with_progress(runs(arguments.trace), arguments.out / "demo.jsonl", None)
    print_points(summarise(records))
    for line in headlines(records):
        print(line)
    write_report(records, arguments.out / "report.html")
    print(f"Look at {arguments.out / 'report.html'}")


if __name__ == "__main__":
    main()
