"""A small slice of the reproduction, whose values lie with the tests: a change of physics shows in their diff."""

from typing import Any

from topas_env.reproduce._cases import LITERATURE, Case
from topas_env.reproduce._micro import GANTT, gantt, table_1
from topas_env.reproduce._paper import BASELINES, RATES
from topas_env.reproduce._run import execute
from topas_env.reproduce._settings import Options, Setting, charged

__all__ = ["slice_values"]

_TASKS, _SEED = 40, 0
_FIGURES = (
    "mean_jct_s",
    "p99_jct_s",
    "duration",
    "mean_batch",
    "prefix_moves",
    "preemptions",
    "retractions",
    "decisions",
)
_ENGINES: dict[str, Options] = {
    "no tier": {"host_tier": "none"},
    "eager": {"eviction": "eager"},
    "decode": {"rebuild": "decode"},
    "mixed": {"mixed_chunk": True},
}


def slice_values() -> dict[str, Any]:
    """Runs the slice and returns its values by name, floats rounded to 9 significant digits.

    All workloads at their highest rate under the baselines and TOPAS, dag-4 on other engines and with other prefixes,
    the policies of the literature on few tasks, table I and figure 2.
    """
    values: dict[str, Any] = {}
    for w, rates in RATES.items():
        for policy in (*BASELINES, "srpt", "gated-lpm", "topas"):
            values[f"{w} {policy}"] = _run(Setting(w, rates[-1], num_tasks=_TASKS), policy)
    for name, overrides in _ENGINES.items():
        for policy in ("lpm", "topas"):
            setting = Setting("dag-4", RATES["dag-4"][-1], num_tasks=_TASKS, overrides=overrides)
            values[f"dag-4 {name} {policy}"] = _run(setting, policy)
    values["dag-4 charged topas"] = _run(charged(Setting("dag-4", RATES["dag-4"][-1], num_tasks=_TASKS)), "topas")
    other = Setting("dag-4", RATES["dag-4"][-1], num_tasks=_TASKS, prefix_share=0.2, output_scale=1.5)
    values["dag-4 other lengths topas"] = _run(other, "topas")
    for policy in (*LITERATURE, "topas-keep"):
        values[f"metagpt-tl {policy}"] = _run(Setting("metagpt-tl", RATES["metagpt-tl"][-1], num_tasks=8), policy)
    order = table_1(16)
    values["table I"] = {"batch": _rounded(list(order.batch)), "makespan_s": _rounded(list(order.makespan_s))}
    for policy in GANTT:
        chart = gantt(policy)
        values[f"figure 2 {policy}"] = {"makespan_s": chart.makespan_s, "mean_jct_s": chart.mean_jct_s}
    return values


def _run(setting: Setting, policy: str) -> dict[str, Any]:
    record = execute(Case(setting, policy, {}, _SEED))
    return {name: _rounded(record[name]) for name in _FIGURES}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
