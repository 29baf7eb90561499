"""SGLang's own scheduler as a baseline: what an engine does without a policy.

On a simulated engine SGLang itself admits then (`_core/own_pass.py`), and what it does is more than an order: it stops
trying while its pool is full, reserves all that a new request asked for, and requests that are admitted together each
compute a prefix that is missing. `decide`, which `topas explain` shows, is the order alone. `topas serve` and
`topas bench` start SGLang without the plugin for these names.
"""

from typing import Any

from numpy.typing import NDArray

from topas_env._core.choice import default_params
from topas_env._core.codes import CODES
from topas_policies._baselines import FCFS, LPM

__all__ = ["SGLangFCFS", "SGLangLPM"]


class SGLangFCFS(FCFS):
    """SGLang alone with its default schedule policy, fcfs."""

    name = "sglang-fcfs"
    sglang_order = "fcfs"

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code of fcfs; None for a subclass."""
        return (CODES["fcfs"], default_params()) if type(self) is SGLangFCFS else None


class SGLangLPM(LPM):
    """SGLang alone with its schedule policy lpm: requests of a prefix that is missing go last, all but one."""

    name = "sglang-lpm"
    sglang_order = "lpm"

    def compiled(self) -> tuple[int, NDArray[Any]] | None:
        """Returns the code of lpm; None for a subclass."""
        return (CODES["lpm"], default_params()) if type(self) is SGLangLPM else None
