"""Stand-in for SGLang's kernels: every name imports; a call raises but for the few that n-gram drafts need."""

import importlib
from typing import Any

from topas_absent import install

from sgl_kernel import _speculative

__version__ = "0.4.10"


def _refuse(name: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError(f"{name.__qualname__} needs a GPU: this is a stand-in for sgl_kernel")


_real = {name: getattr(_speculative, name) for name in _speculative.__all__}
install(__name__, _refuse, **_real)
for _name, _function in _real.items():
    setattr(importlib.import_module(f"{__name__}.speculative"), _name, _function)
