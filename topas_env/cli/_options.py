"""What the options have in common: lists, `KEY=VALUE`, seeds."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from topas_env._errors import InputError
from topas_env.compare import Scalar

__all__ = ["make_folder", "parse_assignments", "parse_list", "parse_numbers", "parse_seeds"]

_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}


def make_folder(path: Path) -> None:
    """Makes the folder of results, before the work that they come from.

    Raises:
        InputError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None


def parse_list(values: Iterable[str]) -> list[str]:
    """Returns the items of a repeatable option, each value of which may hold several with commas between."""
    items = [item.strip() for value in values for item in value.split(",")]
    return list(dict.fromkeys(item for item in items if item))


def parse_numbers(values: Iterable[str], option: str) -> list[float]:
    """Returns the numbers of a repeatable option.

    Raises:
        InputError: for one that is no positive finite number.
    """
    numbers = []
    for item in parse_list(values):
        try:
            number = float(item)
        except ValueError:
            raise InputError(f"{option}: {item!r} is not a number") from None
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{option}: {item} is not positive and finite")
        numbers.append(number)
    return numbers


def parse_seeds(text: str) -> list[int]:
    """Returns seeds from `5` (0 to 4), `10:15` (10 to 14) or `1,2,7`.

    Raises:
        InputError: for anything else, or for no seed at all.
    """
    try:
        if ":" in text:
            first, last = (int(part) for part in text.split(":"))
        elif "," in text:
            seeds = list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
            first, last = 0, 0
        else:
            first, last = 0, int(text)
    except ValueError:
        raise InputError(f"--seeds: {text!r} is none of N, FIRST:LAST and A,B,C") from None
    if ":" in text or "," not in text:
        if last - first > 100_000:
            raise InputError(f"--seeds: {text} are more than 100000")
        seeds = list(range(first, last))
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32:
        raise InputError(f"--seeds: {text!r} gives no seed between 0 and 4294967295")
    return seeds


def parse_assignments(values: Iterable[str], option: str = "--set") -> dict[str, Scalar]:
    """Returns what a repeatable `KEY=VALUE` sets; a value is a number, true, false, null, or text.

    Raises:
        InputError: for a value without `=`, an empty or repeated key, or a number that is not finite.
    """
    found: dict[str, Scalar] = {}
    for text in values:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"{option}: expected KEY=VALUE, got {text!r}")
        if key in found:
            raise InputError(f"{option}: {key} is set twice")
        found[key] = _scalar(value.strip(), f"{option} {key}")
    return found


def _scalar(text: str, where: str) -> Scalar:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = float(text) if text.lower().lstrip("+-") in {"nan", "inf", "infinity"} else text
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {text} is not finite")
    return value if isinstance(value, bool | int | float | str) else text
