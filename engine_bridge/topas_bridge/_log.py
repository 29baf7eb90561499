"""Snapshots and decisions on disk, for `topas explain` and for bug reports."""

import itertools
import os
from pathlib import Path

import msgspec

from topas_bridge._config import BridgeConfig
from topas_bridge._guard import Fault
from topas_bridge._scoring import Answer
from topas_env import Snapshot

__all__ = ["DecisionLog"]

_LIMIT = 100_000  # lines of one process's decision log


class DecisionLog:
    """Writes into `dump_dir`; nothing without one. Names come from here alone, never from a request."""

    def __init__(self, config: BridgeConfig) -> None:
        self._folder = None if config.dump_dir is None else Path(config.dump_dir)
        self._log = config.log_decisions
        self._lines = 0
        self._serial = itertools.count()
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, snapshot: Snapshot, answer: Answer | Fault, seconds: float) -> None:
        """Appends one decision: snapshots.jsonl for `topas explain`, decisions.jsonl line by line beside it."""
        if self._folder is None or not self._log or self._lines >= _LIMIT:
            return
        self._lines += 1
        decided = answer.decision.to_dict() if isinstance(answer, Answer) else {"fault": answer.kind}
        line = {"time_s": snapshot.time_s, "decision_ms": seconds * 1e3, **decided}
        with (self._folder / "snapshots.jsonl").open("ab") as file:
            file.write(snapshot.to_json() + b"\n")
        with (self._folder / "decisions.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def dump(self, snapshot: Snapshot) -> Path | None:
        """Writes one snapshot to a file of its own and returns its path; None without a folder."""
        if self._folder is None:
            return None
        path = self._folder / f"snapshot-{os.getpid()}-{next(self._serial)}.json"
        path.write_bytes(snapshot.to_json())
        return path
