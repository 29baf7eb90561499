"""The report: one file that needs nothing else, deterministic, and honest about intervals; the Perfetto trace."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from topas_env._errors import InputError
from topas_env.compare import Point, grid, run_all
from topas_env.report import render, write_report, write_trace
from topas_env.report._timelines import lanes

VOID = {"meta", "br", "link", "img", "input", "hr"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    points = [Point("dag-4", rate, 8) for rate in (0.05, 0.1)]
    runs = grid(points, ["fcfs", "lpm", "topas"], [0, 1, 2], {})
    return run_all(runs, tmp_path_factory.mktemp("runs") / "results.jsonl", jobs=1)


class Checker(HTMLParser):
    """Checks that tags are closed in order, and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "data"} and value and not value.startswith("#"):
                self.fetched.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_stands_alone_and_is_well_formed(records: list[dict[str, Any]]) -> None:
    page = render(records)
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.fetched == []
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert page.count("<svg") == 4  # JCT against rate, distribution, and a run of the best baseline and of topas
    assert page.count('role="img" aria-label=') == 4
    text = " ".join("".join(checker.text).split())
    for words in ("dag-4, 0.05 task/s", "dag-4, 0.1 task/s", "best baseline", "3 seeds of 8 tasks", "Bound"):
        assert words in text


def test_the_same_records_give_the_same_bytes_in_any_order(records: list[dict[str, Any]]) -> None:
    assert render(records) == render(records[::-1])


def test_names_from_files_are_escaped(records: list[dict[str, Any]]) -> None:
    name = "<script>alert(1)</script>"
    hostile = [{**r, "point": {**r["point"], "workload": name}, "profile": name} for r in records]
    page = render(hostile)
    assert "<script>" not in page


def test_it_is_written_where_asked_or_refused(records: list[dict[str, Any]], tmp_path: Path) -> None:
    write_report(records, tmp_path / "new" / "r.html")
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match=r"r\.html"):
        write_report(records, tmp_path / "new" / "r.html" / "x.html")


def test_lanes_never_overlap_and_are_as_few_as_possible() -> None:
    starts, ends = [0.0, 1.0, 2.0, 2.0], [2.0, 4.0, 3.0, 5.0]
    # At 1.5 two spans are open, at 2.5 three: [0, 2) ends as [2, 3) and [2, 5) begin, so one of them takes its lane.
    found = lanes(starts, ends)
    assert max(found) + 1 == 3
    assert found[0] in found[2:]
    for i in range(4):
        for j in range(i):
            assert found[i] != found[j] or ends[j] <= starts[i] or ends[i] <= starts[j]


def test_perfetto_trace(records: list[dict[str, Any]], tmp_path: Path) -> None:
    write_trace(records, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(names) == 6  # three policies at two rates, the first seed of each
    spans = [e for e in events if e["ph"] == "X"]
    assert sum(e["cat"] == "request" for e in spans) == 6 * 8 * 4
    assert all(e["dur"] > 0 for e in spans)
    last: dict[tuple[int, int], float] = {}
    for event in sorted(spans, key=lambda e: e["ts"]):
        thread = event["pid"], event["tid"]
        assert event["ts"] >= last.get(thread, 0.0) - 1e-3, "spans of one thread must not overlap"
        last[thread] = event["ts"] + event["dur"]
    assert any(e["ph"] == "C" for e in events)
    with pytest.raises(InputError, match="timeline"):
        write_trace([{**r, "timeline": None} for r in records], tmp_path / "none.json")
