"""Checks of parameters that people give by hand."""

import math
from typing import Any

from topas_env._errors import InputError

__all__ = ["count", "flag", "one_of", "weight"]


def count(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Returns a whole number within bounds.

    Raises:
        InputError: It is none.
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < least or (most is not None and value > most):
        raise InputError(f"parameter {name}: {value!r} is not a whole number {bounds}")
    return int(value)


def weight(name: str, value: Any) -> float:
    """Returns a finite number that is not negative.

    Raises:
        InputError: It is none.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InputError(f"parameter {name}: {value!r} is not a finite number of at least 0")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Returns true or false.

    Raises:
        InputError: It is neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"parameter {name}: {value!r} is not true or false")
    return value


def one_of(name: str, value: Any, words: tuple[str, ...]) -> str:
    """Returns one of several words.

    Raises:
        InputError: It is none of them.
    """
    if value not in words:
        raise InputError(f"parameter {name}: {value!r} is not one of {', '.join(words)}")
    return str(value)
