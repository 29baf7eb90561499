"""Policies by name: those that ship, those registered while running, those of other distributions."""

import difflib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, overload

import msgspec

from topas_env._errors import InputError

__all__ = ["PolicyInfo", "make_policy", "policy_info", "policy_names", "register_policy"]

ENTRY_POINT_GROUP = "topas_env.policies"
Factory = Callable[..., Any]
F = TypeVar("F", bound=Factory)
_factories: dict[str, Factory] = {}


class PolicyInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `topas policies` shows of one policy.

    Attributes:
        name: Its name in the registry.
        summary: First line of its docstring.
        parameters: Its named parameters and their defaults (None where one has to be given).
    """

    name: str
    summary: str
    parameters: dict[str, Any]


@overload
def register_policy(name: str, factory: F, *, replace: bool = ...) -> F: ...
@overload
def register_policy(name: str, factory: None = ..., *, replace: bool = ...) -> Callable[[F], F]: ...
def register_policy(name: str, factory: F | None = None, *, replace: bool = False) -> F | Callable[[F], F]:
    """Makes a policy known by name to `make_policy` and to every command of this process.

    Use it as a call, `register_policy("mine", MyPolicy)`, or as a decorator of the class, `@register_policy("mine")`.

    Args:
        name: Name to register; letters, digits, dots, dashes and underscores.
        factory: Class or function that returns a policy from its keyword arguments.
        replace: Whether a policy of that name may be replaced.

    Returns:
        The factory, unchanged.

    Raises:
        InputError: The name is taken or malformed.
    """
    if factory is None:
        return lambda decorated: register_policy(name, decorated, replace=replace)
    if not name or not all(c.isalnum() or c in "._-" for c in name):
        raise InputError(f"policy name {name!r}: use letters, digits, dots, dashes and underscores")
    if not replace and (name in _factories or name in _entry_points()):
        raise InputError(f"policy name {name!r} is taken; pass replace=True to replace it")
    _factories[name] = factory
    return factory


def policy_names() -> list[str]:
    """Returns the names that `make_policy` knows: those that ship first, then the others in sorted order."""
    return [*_factories, *sorted(name for name in _entry_points() if name not in _factories)]


def policy_info(name: str) -> PolicyInfo:
    """Returns the summary and the parameters of a policy.

    Raises:
        InputError: No such policy.
    """
    factory = _find(name)
    first_line = (inspect.getdoc(factory) or "").partition("\n")[0]
    defaults = {
        key: None if parameter.default is parameter.empty else parameter.default
        for key, parameter in _keywords(factory).items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    return PolicyInfo(name, first_line, defaults)


def make_policy(name: str, **params: Any) -> Any:
    """Returns a new policy.

    Args:
        name: A name of `policy_names()`, or `module:attribute` for a class or function that can be imported.
        **params: Parameters of that policy, by name.

    Returns:
        The policy: an object with `name`, `reset(*, seed)` and `decide(snapshot)`.

    Raises:
        InputError: No such policy, no such parameter, or a value that the policy refuses.
    """
    factory = _find(name)
    known = _keywords(factory)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for key in params:
            if key not in known:
                raise InputError(f"policy {name!r} has no parameter {key!r}{_hint(key, list(known), 'parameters')}")
    for key, parameter in known.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if required and key not in params:
            raise InputError(f"policy {name!r} needs the parameter {key!r}")
    policy = factory(**params)
    for attribute in ("name", "reset", "decide"):
        if not hasattr(policy, attribute):
            raise InputError(f"policy {name!r}: a {type(policy).__name__} has no {attribute!r}, so it is no policy")
    return policy


def _entry_points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _find(name: str) -> Factory:
    if name in _factories:
        return _factories[name]
    point = _entry_points().get(name)
    if point is None and ":" in name:
        point = EntryPoint(name, name, ENTRY_POINT_GROUP)
        if not importlib.util.find_spec(point.module.partition(".")[0]):
            raise InputError(f"policy {name!r}: no module {point.module!r}")
    if point is None:
        raise InputError(f"no policy {name!r}{_hint(name, policy_names(), 'policies')}")
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"policy {name!r} cannot be loaded from {point.value!r}: {error}") from error
    if not callable(factory):
        raise InputError(f"policy {name!r}: {point.value!r} is neither a class nor a function")
    return factory  # type: ignore[no-any-return]


def _keywords(factory: Factory) -> dict[str, inspect.Parameter]:
    """Returns the parameters that can be given by name, `**kwargs` included."""
    usable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return {key: p for key, p in inspect.signature(factory).parameters.items() if p.kind in usable}


def _hint(word: str, known: list[str], noun: str) -> str:
    """Returns the end of an error message: close matches, or all there is."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; {noun}: {', '.join(known) if known else 'none'}"
