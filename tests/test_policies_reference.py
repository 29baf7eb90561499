"""The topas policy and the plain reading of SCHEDULER.md against the expected answers that came with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from reference.topas_reference import decide
from topas_env import Snapshot
from topas_env._explain import explain
from topas_policies import make_policy

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "snapshots"
VARIANTS = {"topas_defaults": {}, "topas_K2": {"max_changes": 2}, "topas_M2": {"max_enumerated": 2}}


def lines(name: str) -> list[dict[str, Any]]:
    """Returns the records of one of the files, or skips where they are absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}: the shared data is not part of the repository")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_policy_and_reference_agree_with_the_expected_answers(variant: str) -> None:
    snapshots = lines("snapshots.jsonl")
    answers = lines(f"{variant}.jsonl")
    assert len(snapshots) == len(answers) == 60
    for snapshot, answer in zip(snapshots, answers, strict=True):
        found = explain(Snapshot.from_dict(snapshot), make_policy("topas", **VARIANTS[variant])).to_dict()
        assert found["prefixes"] == answer["prefixes"]
        assert sorted(found["requests"]) == answer["requests"]
        assert found["admitted"] == answer["admitted"]
        assert sorted(found["preempted"]) == sorted(answer["preempted"])
        assert found["terms_s"] == pytest.approx(answer["terms_s"], abs=1e-9)
        assert found["score_s"] == pytest.approx(answer["score_s"], abs=1e-9)
        state = decide(snapshot, **VARIANTS[variant]).chosen
        assert state is not None
        assert list(state.prefixes) == answer["prefixes"]
        assert sorted(state.requests) == answer["requests"]  # the file has them sorted
        assert list(state.admitted) == answer["admitted"]
        assert sorted(state.preempted) == sorted(answer["preempted"])
        for name, value in answer["terms_s"].items():
            assert getattr(state.terms, name) == pytest.approx(value, abs=1e-9)
        assert state.terms.total == pytest.approx(answer["score_s"], abs=1e-9)
