"""Stand-ins for packages that exist only beside CUDA, so that SGLang's modules import on a machine without a GPU.

Every name of such a package imports and is an `Absent` class: it can be a base class, an annotation, an argument or an
exception. What a call does differs: a kernel raises, a decorator of kernels returns the function.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

_PACKAGES: dict[str, Callable[..., Any]] = {}


class _AbsentType(type):
    """Makes a class answer every attribute, call and subscript, since modules use these while they are imported."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _absent(f"{cls.__qualname__}.{name}", cls._on_call)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_on_call" not in cls.__dict__:  # somebody's subclass of an absent class
            return super().__call__(*args, **kwargs)
        return cls._on_call(cls, *args, **kwargs)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _absent(name: str, on_call: Callable[..., Any]) -> Any:
    leaf = name.rsplit(".", 1)[-1]
    bases = (Exception,) if leaf.endswith(("Error", "Exception")) else ()
    if bases:
        return type(leaf, bases, {})
    made = _AbsentType(leaf, (), {"__module__": "topas_absent", "_on_call": staticmethod(on_call)})
    made.__qualname__ = name
    return made


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made = sys.modules.get(full) or _absent(full, _PACKAGES[self.__name__.partition(".")[0]])
        setattr(self, name, made)
        return made


class _Finder:
    """Finds the submodules of the packages that are stood in for."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if "." in name and name.partition(".")[0] in _PACKAGES:
            return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _AbsentModule(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        module.__path__ = []


def install(package: str, on_call: Callable[..., Any], **names: Any) -> None:
    """Turns the module `package`, which is being imported, into a stand-in.

    Args:
        package: Its name.
        on_call: What a call of any of its names does; it gets the name's class and the arguments.
        **names: Names with a meaning of their own.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    _PACKAGES[package] = on_call
    module = sys.modules[package]
    for name, value in names.items():
        setattr(module, name, value)
    module.__class__ = _AbsentModule
