"""The compiler decorator of every kernel, and the cache that its results live in."""

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config, event

__all__ = ["cache_dir", "i64", "inner", "kernel", "lean"]

# To 64 bits: numba compiles a function anew for each width of integer, and for each Python constant, that it is given.
i64: Any = np.int64
F = TypeVar("F", bound=Callable[..., Any])
_HERE = Path(__file__).resolve().parent


def _sources_key() -> str:
    """Returns a key that changes when any kernel, numba or Python does."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def cache_dir() -> Path:
    """Returns the folder of the compiled kernels; a temporary one where the home folder cannot be written."""
    base = os.environ.get("TOPAS_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    folder = root / "topas-env" / _sources_key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"topas-env-{os.getuid()}" / _sources_key()
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _compile(function: F, **options: bool) -> F:
    # Any: numba's types know neither its settings nor the options of wrappers and reference counts.
    settings: Any = config
    njit: Any = numba.njit
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_dir())
    options.setdefault("_nrt", True)  # said aloud: without, what a lean function calls first would be lean as well
    try:
        compiled: F = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    finally:
        settings.CACHE_DIR = before
    return compiled


def kernel(function: F) -> F:
    """Compiles a function with numba, without the interpreter lock, cached under the hash of all kernel sources.

    Numba's own cache looks at the file of a function alone, so a change in a function that it calls from another
    file would go unnoticed. The cache folder is set for this one function; numba's setting is left as it was.
    """
    return _compile(function)


def inner(function: F) -> F:
    """Compiles a function that only kernels call: as `kernel`, without the wrappers that Python would call it by.

    Unpacking a tuple of thirty arrays takes longer to compile than most functions here.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def lean(function: F) -> F:
    """Compiles as `inner` does, without reference counts: for functions that make no new array (slices are fine).

    A tuple of forty arrays costs eighty counter updates a call otherwise. This made the simulator three times as fast.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


class _Notice(event.Listener):
    """Says once a process, on standard error, that a kernel is being compiled and not read from the cache."""

    def __init__(self) -> None:
        self.told = False

    def on_start(self, event: Any) -> None:
        """Called before a function is compiled."""
        if not self.told and event.data["dispatcher"].py_func.__module__.startswith("topas_env."):
            self.told = True
            words = "topas-env: compiling this part of the simulator, once after installation (up to a minute) ..."
            print(words, file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Called after it."""


_events: Any = event  # numba has no types
_events.register("numba:compile", _Notice())
