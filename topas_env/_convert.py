"""From plain JSON values to records, with errors that name file, path and value on one line."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from topas_env._errors import InputError

__all__ = ["convert", "decode_json", "fail", "in_source", "member", "show", "suggest"]

T = TypeVar("T")
_AT = re.compile(r"(?s)(.*) - at `(?:key` in `)?(\$[\w.\[\]]*)`")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def show(value: object, limit: int = 60) -> str:
    """Returns a value as JSON on one line of ASCII, cut after `limit` characters."""
    if isinstance(value, list | tuple | set | frozenset) and len(value) > limit:
        value = list(value)[:limit]
    try:
        text = json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(type(value).__name__)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean ...?` with the known names that look like `name`, or all of them if none does."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(names)}" if names else ""


def fail(path: str, problem: str, value: object) -> NoReturn:
    """Raises the error of one faulty value.

    Raises:
        InputError: Always: `PATH: PROBLEM, got VALUE`.
    """
    raise InputError(f"{path}: {problem}, got {show(value)}")


def in_source(source: str, error: InputError) -> InputError:
    """Returns the error with the name of the file in front, if there is one."""
    return InputError(f"{source}: {error}") if source else error


def decode_json(data: bytes | str, source: str = "") -> Any:
    """Decodes JSON text; numbers that JSON cannot hold (NaN, 1e999) come back as floats for the rules to refuse.

    Raises:
        InputError: Malformed text, with line and column.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
    except UnicodeError:
        problem = "not JSON: the text is not UTF-8"
    except RecursionError:
        problem = "not JSON: nested too deeply"
    except ValueError:  # an integer of thousands of digits
        problem = "not JSON: a number is too long"
    raise in_source(source, InputError(f"$: {problem}"))


def convert(obj: Any, record: type[T], path: str = "$") -> T:
    """Converts plain dicts and lists into a record; nothing is coerced, unknown fields are refused.

    Args:
        obj: The plain value.
        record: The type to make.
        path: JSON path of the value, for messages.

    Raises:
        InputError: One line with the path of the first fault and its value.
    """
    try:
        return msgspec.convert(obj, record)
    except msgspec.ValidationError as error:
        message = str(error)
    except UnicodeEncodeError:
        message = ""
    if not message:
        where, text = _lone_surrogate(obj, path) or (path, "")
        fail(where, "must be valid Unicode", text)
    raise _explain(message, obj, record, path) from None


def _explain(message: str, obj: Any, record: Any, root: str) -> InputError:
    """Turns msgspec's message, which has a path and no value, into ours."""
    match = _AT.fullmatch(message)
    problem, where = (match[1], match[2][1:]) if match else (message, "")
    try:
        value, kind, path = _follow(obj, record, root, where)
    except (KeyError, IndexError, TypeError, AttributeError):  # a field's name that looks like msgspec's own words
        problem, (value, kind, path) = message, (obj, record, root)
    unknown, missing = _UNKNOWN.fullmatch(problem), _MISSING.fullmatch(problem)
    if unknown:
        name = unknown[1]
        fields = kind.__struct_fields__ if hasattr(kind, "__struct_fields__") else ()
        given = value.get(name) if isinstance(value, dict) else None
        return InputError(f"{member(path, name)}: unknown field, got {show(given)}{suggest(name, fields)}")
    if missing:
        return InputError(f"{member(path, missing[1])}: missing field, got {show(value)}")
    if " - at `key` in `" in message and isinstance(value, dict):
        value = next((key for key in value if not isinstance(key, str)), value)
        return InputError(f"{path}: a key must be a string, got {show(value)}")
    if problem.startswith("Invalid enum value"):
        problem = "must be one of " + ", ".join(show(option) for option in _options(kind))
    elif problem.startswith("Expected"):
        problem = problem.replace("`", "").replace("Expected", "expected").split(", got")[0]
    return InputError(f"{path}: {' '.join(problem.split())}, got {show(value)}")


def _lone_surrogate(value: Any, path: str) -> tuple[str, str] | None:
    """Finds a string that UTF-8 cannot hold; returns the path of it, or of the object whose key it is, and itself."""
    if isinstance(value, str):
        return None if value.isascii() or not re.search("[\ud800-\udfff]", value) else (path, value)
    if isinstance(value, dict):
        parts = [(path, key) for key in value] + [(member(path, str(key)), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    else:
        return None
    return next((found for where, part in parts if (found := _lone_surrogate(part, where))), None)


def member(path: str, name: str) -> str:
    """Returns the path of a member, quoted where its name is not a plain word."""
    return f"{path}.{name}" if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"{path}[{show(name)}]"


def _follow(value: Any, kind: Any, path: str, where: str) -> tuple[Any, Any, str]:
    """Walks a path of msgspec's; returns the value there, its type and the path in full."""
    for name, index in _STEP.findall(where):
        kind = _part(kind, name)
        if name:
            value, path = value[name], member(path, name)
        elif index == "...":  # msgspec does not say which key
            key = next((k for k, v in value.items() if not _is_float(v)), next(iter(value), ""))
            value, path = value.get(key), member(path, str(key))
        else:
            value, path = list(value)[int(index)], f"{path}[{index}]"
    return value, kind, path


def _is_float(value: Any) -> bool:
    """Tells whether msgspec takes a value as a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and float(value) is not None
    except OverflowError:
        return False


def _part(kind: Any, name: str) -> Any:
    """Returns the type of a member of a record, or of the items of a list or dict."""
    if get_origin(kind) in (Union, UnionType):
        kind = next((part for part in get_args(kind) if part is not type(None)), Any)
    if name and hasattr(kind, "__struct_fields__"):
        return next((f.type for f in msgspec.structs.fields(kind) if f.encode_name == name), Any)
    arguments = [part for part in get_args(kind) if part is not Ellipsis]
    return arguments[-1] if arguments else Any


def _options(kind: Any) -> tuple[Any, ...]:
    """Returns the allowed values of a Literal type."""
    return get_args(kind) if get_origin(kind) is Literal else ()
