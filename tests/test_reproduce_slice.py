"""A slice of the reproduction against values stored from the same code.

The values say nothing about right or wrong. A change of physics, of a policy or of a workload changes them, so that it
is seen in the diff of the stored file. After a change that is meant, `python tests/test_reproduce_slice.py` stores new
ones.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from topas_env.reproduce import slice_values

STORED = Path(__file__).parent / "data" / "reproduce_slice.json"


def test_the_slice_gives_the_stored_values() -> None:
    """To a millionth: the same decisions, whatever the last bits of a sum on another machine."""
    stored, found = json.loads(STORED.read_text()), slice_values()
    assert list(found) == list(stored)
    differing = {name: (found[name], stored[name]) for name in stored if not same(found[name], stored[name])}
    assert not differing


def same(found: dict[str, Any], stored: dict[str, Any]) -> bool:
    return all(found[name] == pytest.approx(value, rel=1e-6) for name, value in stored.items())


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in slice_values().items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
