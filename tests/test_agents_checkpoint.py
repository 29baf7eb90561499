"""Checkpoints: they come back as they were, and whatever is wrong with a file is one line."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from topas_agents import Architecture, Checkpoint, load_checkpoint, save_checkpoint
from topas_agents._architecture import fresh_weights
from topas_agents._checkpoint import SHIPPED, Score, TrainingRecord
from topas_env import InputError

SMALL = Architecture(4)
RECORD = TrainingRecord(
    "imitation", "spf", 7, 20, 100, 1.5, {"seeds": [1, 2]}, (Score("p", "", (0,), {"a": 1.0}, "a", 0.0, 0.0, 0.0),), "n"
)


def write(folder: Path, **changes) -> Path:
    """Writes a checkpoint and then changes fields of its description; the hash stays right."""
    save_checkpoint(folder / "c", Checkpoint(SMALL, fresh_weights(SMALL), RECORD))
    path = folder / "c.json"
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))
    return path


def put_weights(folder: Path, weights: dict, raw: bytes | None = None) -> Path:
    """Puts other weights beside a description that vouches for them."""
    import hashlib

    data = save(weights) if raw is None else raw
    path = write(folder, weights_sha256=hashlib.sha256(data).hexdigest())
    (folder / "c.safetensors").write_bytes(data)
    return path


def refused(path: Path, *words: str) -> str:
    with pytest.raises(InputError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert "\n" not in message
    assert "c." in message
    for word in words:
        assert word in message
    return message


def test_round_trip(tmp_path):
    weights = fresh_weights(SMALL, 5)
    save_checkpoint(tmp_path / "deep" / "c.json", Checkpoint(SMALL, weights, RECORD))
    for name in ("c", "c.json", "c.safetensors"):
        loaded = load_checkpoint(tmp_path / "deep" / name)
        assert loaded.architecture == SMALL
        assert loaded.record == RECORD
        assert all(np.array_equal(loaded.weights[key], weights[key]) for key in weights)
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["c.json", "c.safetensors"]


def test_the_shipped_checkpoint_says_how_it_came_about():
    record = load_checkpoint(SHIPPED).record
    assert record.points > 0
    assert record.scores
    trained, (low, high) = record.data["config"], record.data["config"]["scenarios"]["seeds"]
    assert all(not low <= seed <= high for score in record.scores for seed in score.seeds)
    assert any("workload dag-10-wide" in score.held_out for score in record.scores)
    assert "dag-10-wide" not in trained["scenarios"]["workloads"]


def test_other_features_are_named(tmp_path):
    from topas_env._core.features import CANDIDATE_FEATURES

    known = list(CANDIDATE_FEATURES)
    refused(write(tmp_path, candidate_features=["colour", *known[1:]]), "candidate_features", "present", "colour")
    refused(write(tmp_path, candidate_features=known[::-1]), "another order")
    refused(write(tmp_path, global_features=["running"]), "global_features", "lacks", "free_slots")


def test_wrong_descriptions(tmp_path):
    refused(write(tmp_path, version=2), "$.version")
    refused(write(tmp_path, architecture={"hidden": 0}), "$.architecture.hidden")
    refused(write(tmp_path, architecture={"hidden": 10**9}), "$.architecture.hidden")
    refused(write(tmp_path, architecture={"hidden": 4, "kind": "x"}), "$.architecture.kind")
    refused(write(tmp_path, architecture={"hidden": 8}), "first.weight")
    refused(write(tmp_path, extra=1), "extra")
    refused(write(tmp_path, weights_sha256="0" * 64), "damaged")


def test_wrong_weights(tmp_path):
    weights = fresh_weights(SMALL)
    refused(put_weights(tmp_path, weights | {"second.bias": np.full(4, np.nan, np.float32)}), "second.bias", "finite")
    refused(put_weights(tmp_path, weights | {"second.bias": np.zeros(5, np.float32)}), "second.bias", "[5]", "[4]")
    refused(put_weights(tmp_path, weights | {"second.bias": np.zeros(4, np.float64)}), "float64")
    refused(put_weights(tmp_path, weights | {"other": np.zeros(1, np.float32)}), "'other'", "not known")
    refused(put_weights(tmp_path, {k: v for k, v in weights.items() if k != "score.bias"}), "score.bias", "missing")
    refused(put_weights(tmp_path, {}, raw=b""), "not a safetensors file")


def test_missing_files(tmp_path):
    refused(tmp_path / "c.json", "cannot be read")
    write(tmp_path)
    (tmp_path / "c.safetensors").unlink()
    refused(tmp_path / "c", "c.safetensors", "cannot be read")
    refused(tmp_path / ("c." + "x" * 5000), "cannot be read")


def test_a_pickle_is_never_unpacked(tmp_path):
    """The classic attack: a pickle that runs a command. Here it is bytes that are no safetensors file."""
    import pickle

    class Attack:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "attacked",))

    refused(put_weights(tmp_path, {}, raw=pickle.dumps(Attack())), "not a safetensors file")
    assert not (tmp_path / "attacked").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_one_line(tmp_path, data):
    """Cut, changed or random bytes in either file: refused in one line, or what was written comes back."""
    write(tmp_path)
    expected = load_checkpoint(tmp_path / "c")
    path = tmp_path / data.draw(st.sampled_from(["c.json", "c.safetensors"]))
    raw = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "random"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "cut":
        raw = raw[:at]
    elif kind == "flip":
        raw[at] ^= data.draw(st.integers(1, 255))
    elif kind == "insert":
        raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    else:
        raw = bytearray(data.draw(st.binary(max_size=200)))
    path.write_bytes(raw)
    try:
        loaded = load_checkpoint(tmp_path / "c")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert path.suffix == ".json"  # a changed word of the record is still a record; weights are vouched for
        assert all(np.array_equal(loaded.weights[key], expected.weights[key]) for key in expected.weights)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_header_is_one_line(tmp_path, header):
    """A safetensors file whose header is arbitrary bytes, vouched for by its description."""
    raw = len(header).to_bytes(8, "little") + header + b"\0" * 64
    refused(put_weights(tmp_path, {}, raw=raw), "c.safetensors")


def test_record_is_plain_json(tmp_path):
    write(tmp_path)
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["record"]["data"] == {"seeds": [1, 2]}
    assert msgspec.convert(content["record"], TrainingRecord) == RECORD
