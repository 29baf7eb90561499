"""Which SGLang this is, and which versions the bridge is tested with."""

import importlib.metadata

__all__ = ["OLDEST", "TESTED", "sglang_version", "version_tuple"]

OLDEST = (0, 5, 16)
"""The first version with the plugin system and the two-argument `get_new_batch_prefill`."""
TESTED = ("0.5.18", "0.5.23")


def sglang_version() -> str:
    """Returns the installed version, `none` without one."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def version_tuple(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, (0, 5, 23) for `0.5.23.post1`."""
    numbers: list[int] = []
    for part in text.split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
