"""Policies that live in a file or a module of the user's."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from topas_env._errors import InputError

__all__ = ["import_plugins"]


def import_plugins(plugins: Iterable[str]) -> None:
    """Imports modules or Python files that call `register_policy`.

    Args:
        plugins: dotted module names, or paths that end in `.py`.

    Raises:
        InputError: for one that is not there or that raises; the message has its error.
    """
    for plugin in plugins:
        try:
            if plugin.endswith(".py"):
                _import_file(Path(plugin))
            else:
                importlib.import_module(plugin)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"--plugin {plugin}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    name = "topas_plugin_" + path.stem
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return
    if not path.is_file():
        raise InputError(f"--plugin {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
