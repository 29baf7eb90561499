"""Snapshot under hypothesis: round trips, and mangled input that must load or be one line of error."""

import copy
import json
import math
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reference.random_snapshots import random_snapshot
from topas_env import InputError, Snapshot
from types_cases import example, snapshots

JUNK = [
    None, True, False, 0, 1, -1, 3.0, -0.5, 1e300, 2**53 + 1, 2**70, -(2**70), math.nan, math.inf, -math.inf,
    "", "x", "\ud800", "a\nb", "ready", [], [[]], {}, {"x": 1}, [None], ["A", "A"],
]  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(snapshots())
def test_round_trip_is_exact(obj):
    snapshot = Snapshot.from_dict(obj)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert Snapshot.from_json(json.dumps(obj)) == snapshot
    assert snapshot.to_dict() == obj


def containers(value: Any, found: list[Any]) -> list[Any]:
    """Collects every non-empty dict and list inside a value."""
    if isinstance(value, dict | list) and value:
        found.append(value)
        for part in value.values() if isinstance(value, dict) else value:
            containers(part, found)
    return found


def mangle(obj: Any, rng: random.Random) -> None:
    """Drops, renames, retypes, negates, doubles or swaps something at a random place."""
    found = containers(obj, [])
    if not found:
        return
    place = rng.choice(found)
    key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    kind = rng.choice(["drop", "rename", "retype", "retype", "negate", "double", "swap", "graft"])
    value = place[key]
    if kind == "drop":
        del place[key]
    elif kind == "rename" and isinstance(place, dict):
        place[rng.choice([f"{key}x", "", "a\nb", "` - at `$.q", "\ud800"])] = place.pop(key)
    elif kind == "retype":
        place[key] = copy.deepcopy(rng.choice(JUNK))
    elif kind == "negate" and isinstance(value, int | float):
        place[key] = -value
    elif kind == "double" and isinstance(place, list):
        place.append(copy.deepcopy(value))
    elif kind == "swap" and isinstance(place, list):
        rng.shuffle(place)
    elif kind == "graft":
        other = rng.choice(found)
        place[key] = copy.deepcopy(rng.choice(list(other.values()) if isinstance(other, dict) else other))


def load_or_explain(obj: Any) -> bool:
    """Loads a snapshot and takes it back, or checks the message; tells whether it loaded."""
    try:
        snapshot = Snapshot.from_dict(obj)
    except InputError as error:
        message = str(error)
        assert message.startswith("$"), message
        assert ": " in message
        assert message.isprintable(), message
        assert len(message) < 500, message
        return False
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    for request in snapshot.requests:
        assert snapshot.reserved_tokens(request) >= 1
    return True


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_mangled_snapshot_loads_or_is_one_line(seed, times):
    rng = random.Random(seed)
    obj = example() if rng.random() < 0.5 else random_snapshot(seed % 50)
    for _ in range(times):
        mangle(obj, rng)
    load_or_explain(obj)


def test_mangling_reaches_both_ends():
    results = []
    for seed in range(300):
        obj = example()
        mangle(obj, random.Random(seed))
        results.append(load_or_explain(obj))
    assert 30 < sum(results) < 270


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32))
def test_mangled_text_loads_or_is_one_line(seed):
    rng = random.Random(seed)
    text = bytearray(json.dumps(example()).encode())
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(text))
        kind = rng.randrange(4)
        if kind == 0:
            del text[at : at + rng.randint(1, 40)]
        elif kind == 1:
            text[at] = rng.randrange(256)
        elif kind == 2:
            text[at:at] = rng.choice([b'"', b"{", b"]", b"-", b"9" * 5000, b"e9", b"NaN", b"\xff", b"\\ud800"])
        else:
            text[at:] = b""
        if not text:
            break
    try:
        Snapshot.from_json(bytes(text), "f.json")
    except InputError as error:
        assert str(error).startswith("f.json: $")
        assert str(error).isprintable()
