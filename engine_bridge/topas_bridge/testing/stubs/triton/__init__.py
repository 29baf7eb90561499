"""Stand-in for triton: a decorator of kernels returns the function, nothing can be launched."""

from typing import Any

from topas_absent import install

__version__ = "3.6.0"


def _decorate(name: Any, *args: Any, **kwargs: Any) -> Any:
    if ".driver." in name.__qualname__:
        raise RuntimeError("there is no GPU: this is a stand-in for triton")
    if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], type):
        return args[0]
    if name.__qualname__.rsplit(".", 1)[-1] in ("jit", "autotune", "heuristics", "custom_op", "jit_kernel"):
        return lambda function: function
    return name


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length() if n > 0 else 1


install(__name__, _decorate, cdiv=_cdiv, next_power_of_2=_next_power_of_2)
