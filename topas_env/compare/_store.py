"""Finished runs as JSON lines: appended and flushed one by one, read again whole."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from topas_env._errors import InputError

__all__ = ["Record", "ResultFile", "read_results"]

Record = dict[str, Any]
_REQUIRED = ("key", "policy", "workload", "seed", "point", "mean_jct_s", "p99_jct_s")


def read_results(path: Path, *, strict: bool = True) -> list[Record]:
    """Returns the records of a file of results, the last one where a key occurs twice.

    A last line that a kill cut short is left out.

    Args:
        path: the file, or a folder that holds `results.jsonl`.
        strict: whether a bad line is an error; else it is left out.

    Raises:
        InputError: where there is no such file, no record in it, or a line is not a record.
    """
    if path.is_dir():
        path = path / "results.jsonl"
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        problem = ""
        record: Any = None
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
        if not problem:
            problem = _problem(record)
        if problem and number == len(lines):
            break  # cut short
        if problem and strict:
            raise InputError(f"{path}:{number}: {problem}")
        if not problem:
            records[record["key"]] = record
    if strict and not records:
        raise InputError(f"{path}: there is no finished run in it")
    return list(records.values())


def _problem(record: Any) -> str:
    if not isinstance(record, dict):
        return f"$: expected an object, got {type(record).__name__}"
    for field in _REQUIRED:
        if field not in record:
            return f"$.{field}: is missing; is this a file of topas compare?"
    for field in ("key", "policy", "workload"):
        if not isinstance(record[field], str):
            return f"$.{field}: expected text, got {record[field]!r}"
    for field in ("seed", "mean_jct_s", "p99_jct_s"):
        if isinstance(record[field], bool) or not isinstance(record[field], int | float):
            return f"$.{field}: expected a number, got {record[field]!r}"
    if not isinstance(record["point"], dict):
        return f"$.point: expected an object, got {record['point']!r}"
    return ""


class ResultFile:
    """A file that finished runs are appended to; what an earlier run left in it stays.

    Attributes:
        path: the file.
        known: the records that were in it, by key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Record] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self.known = {record["key"]: record for record in read_results(path, strict=False)}
            self._file = path.open("ab+")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, record: Record) -> None:
        """Writes a record and flushes, so that an interrupt loses nothing that is finished."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def __enter__(self) -> "ResultFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
