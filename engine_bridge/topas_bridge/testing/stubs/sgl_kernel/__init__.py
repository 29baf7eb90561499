"""Stand-in for SGLang's kernels: every name imports, a call raises."""

from typing import Any

from topas_absent import install

__version__ = "0.4.10"


def _refuse(name: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError(f"{name.__qualname__} needs a GPU: this is a stand-in for sgl_kernel")


install(__name__, _refuse)
