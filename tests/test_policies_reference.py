"""The plain reading of SCHEDULER.md against the expected answers that came with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from reference.topas_reference import decide

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "snapshots"
VARIANTS = {"topas_defaults": {}, "topas_K2": {"max_changes": 2}, "topas_M2": {"max_enumerated": 2}}


def lines(name: str) -> list[dict[str, Any]]:
    """Returns the records of one of the files, or skips where they are absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}: the shared data is not part of the repository")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_agrees_with_the_expected_answers(variant: str) -> None:
    snapshots = lines("snapshots.jsonl")
    answers = lines(f"{variant}.jsonl")
    assert len(snapshots) == len(answers) == 60
    for snapshot, answer in zip(snapshots, answers, strict=True):
        state = decide(snapshot, **VARIANTS[variant]).chosen
        assert state is not None
        assert list(state.prefixes) == answer["prefixes"]
        assert sorted(state.requests) == answer["requests"]  # the file has them sorted
        assert list(state.admitted) == answer["admitted"]
        assert sorted(state.preempted) == sorted(answer["preempted"])
        for name, value in answer["terms_s"].items():
            assert getattr(state.terms, name) == pytest.approx(value, abs=1e-9)
        assert state.terms.total == pytest.approx(answer["score_s"], abs=1e-9)
