"""Workloads from files and folders of the formats that `topas import` knows, told apart by their content."""

from pathlib import Path

from topas_env._errors import InputError
from topas_env._import_claude import import_sessions
from topas_env._import_requests import AZURE_HEADER, import_azure, import_mooncake
from topas_env._workload import Workload
from topas_env._workload_file import read_workload

__all__ = ["FORMATS", "import_workload"]

FORMATS = {
    "workload": "workload file, version 1 (.json, or .jsonl with a task a line)",
    "sessions": "recorded coding-agent sessions of kv-cache-tester (a .json each; a folder of them is one workload)",
    "mooncake": "Mooncake trace (.jsonl)",
    "azure": "Azure LLM inference trace (.csv)",
}
_HEAD_BYTES = 4096


def import_workload(path: str | Path) -> Workload:
    """Reads a file of any known format (`FORMATS`), or a folder of recorded sessions.

    Args:
        path: A file or a folder. In a folder the `.json` files directly in it are read, in the order of their names.

    Raises:
        InputError: One line with the file, the path in it and the value.
    """
    source = Path(path)
    if source.is_dir():
        try:
            files = sorted(entry for entry in source.iterdir() if entry.suffix == ".json" and entry.is_file())
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
        if not files:
            raise InputError(f"{source}: the folder holds no recorded session (.json)")
        return import_sessions(files, source.resolve().name)
    kind = _sniff(source)
    if kind == "sessions":
        return import_sessions([source], source.stem)
    if kind == "mooncake":
        return import_mooncake(source)
    if kind == "azure":
        return import_azure(source)
    return read_workload(source)


def _sniff(path: Path) -> str:
    """Returns the format of a file by its ending and first bytes; what fits no other is taken as a workload file."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if path.suffix == ".csv" or head.removeprefix(b"\xef\xbb\xbf").startswith(AZURE_HEADER.encode()):
        return "azure"
    if path.suffix == ".jsonl":
        first = head.lstrip().split(b"\n", 1)[0]
        return "mooncake" if b'"input_length"' in first or b'"timestamp"' in first else "workload"
    session = b'"hash_id_scope"' in head or b'"tool_tokens"' in head
    return "sessions" if session and b'"workflows"' not in head else "workload"
