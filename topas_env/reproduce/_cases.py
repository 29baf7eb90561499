"""Every run of the reproduction: where, which policy, which seed; section by section, the important ones first."""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from topas_env.compare import LITERATURE
from topas_env.reproduce._paper import ABLATION_RATE, BASELINES, OVERHEAD_RATE, RATES
from topas_env.reproduce._settings import CHARGE, Options, Setting, balanced_rate, bare, charged

__all__ = [
    "ENGINES",
    "ENUMERATED",
    "LITERATURE",
    "LITERATURE_STEP",
    "LOADS",
    "OURS",
    "OUTPUTS",
    "SECTIONS",
    "SHARES",
    "SWEPT",
    "WEIGHTS",
    "Case",
    "PolicyOptions",
    "Setting",
    "enumeration_settings",
    "section_cases",
]

MORE = ("srpt", "gated-lpm")
OURS = ("rollout", "learned", "hold-many", "tuned")
"""What is not the paper's."""

ENUMERATED = (0, 2, 4, 8, 10)  # M; 6 is the default
SHARES = (0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.45)
LOADS = (0.30, 0.45, 0.60, 0.75)
OUTPUTS = (0.5, 1.0, 1.5, 2.0)
SWEPT = ("chain-3", "dag-4")
WEIGHTS = ((0.0, 0.3, 1.0, 3.0, 10.0), (0.0, 0.5, 2.0, 8.0))  # beta, rho
LITERATURE_STEP = 2  # the third of the four rates
ENGINE_STEP = 2

ENGINES: dict[str, tuple[Options, Options, Options]] = {
    "as in the main run": ({}, CHARGE, {}),
    "no host tier": ({"host_tier": "none"}, CHARGE, {}),
    "eager eviction": ({"eviction": "eager"}, CHARGE, {}),
    "reserve 0.1": ({"reserve_ratio": 0.1}, CHARGE, {}),
    "reserve 0.7": ({"reserve_ratio": 0.7}, CHARGE, {}),
    "reserve 1.0": ({"reserve_ratio": 1.0}, CHARGE, {}),
    "mixed prefill and decode": ({"mixed_chunk": True}, CHARGE, {}),
    "pool of 39,000, same rate": ({"kv_budget_tokens": 39000, "decode_s_per_token": 0.0536}, CHARGE, {}),
    "rebuild by decode": ({"rebuild": "decode"}, {}, {}),
    "told prefill": ({}, {}, {}),
    "told prefill, K = 1": ({}, {}, {"K": 1}),
    "told prefill, K = 2": ({}, {}, {"K": 2}),
    "told prefill, K = 4": ({}, {}, {"K": 4}),
    "told prefill, K = 8": ({}, {}, {"K": 8}),
}
"""Rows of the one-at-a-time sweep: what differs in the engine, in what policies are told, and in TOPAS."""

PolicyOptions = tuple[str, Options]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulation.

    Attributes:
        setting: Workload, rate and engine.
        policy: Registered name.
        options: Keyword arguments of `make_policy`.
        seed: Of the trace and of the policy.
    """

    setting: Setting
    policy: str
    options: Options
    seed: int


def _cases(settings: Sequence[Setting], policies: Sequence[PolicyOptions], seeds: Sequence[int]) -> list[Case]:
    """Returns the runs seed by seed, those of one setting and seed side by side."""
    return [
        Case(setting, policy, dict(options), seed)
        for seed, setting, (policy, options) in itertools.product(seeds, settings, policies)
    ]


def _plain(names: Sequence[str]) -> list[PolicyOptions]:
    return [(name, {}) for name in names]


def main_settings(tasks: int, **overrides: bool | float | str | None) -> list[Setting]:
    """Returns the operating points of figures 3 and 4."""
    return [Setting(w, rate, num_tasks=tasks, overrides=overrides) for w, rates in RATES.items() for rate in rates]


def share_settings(tasks: int, **overrides: bool | float | str | None) -> list[Setting]:
    """Returns the points of the sweep over prefix share and load, at rates that give equal utilisation."""
    return [
        balanced_rate(Setting(w, 1.0, prefix_share=share, num_tasks=tasks, overrides=overrides), load)
        for w, share, load in itertools.product(SWEPT, SHARES, LOADS)
    ]


def output_settings(tasks: int) -> list[Setting]:
    """Returns the points of the sweep over output length and load."""
    return [
        balanced_rate(Setting(w, 1.0, output_scale=scale, num_tasks=tasks), load)
        for w, scale, load in itertools.product(SWEPT, OUTPUTS, LOADS)
    ]


def weight_settings(tasks: int) -> list[Setting]:
    """Returns the points at which beta and rho are swept."""
    return [Setting(w, RATES[w][ENGINE_STEP], num_tasks=tasks) for w in ("dag-4", "metagpt-tl")]


def engine_settings(tasks: int) -> list[tuple[str, Setting, Options]]:
    """Returns row, point and options of TOPAS of the one-at-a-time sweep."""
    return [
        (name, Setting(w, rates[ENGINE_STEP], num_tasks=tasks, overrides=engine, believed=told), options)
        for w, rates in RATES.items()
        for name, (engine, told, options) in ENGINES.items()
    ]


def _with_topas(
    settings: Sequence[Setting], others: Sequence[str], seeds: Sequence[int], *, prefill: bool = True
) -> list[Case]:
    """Returns the runs of some baselines, and of TOPAS as equation 9 charges it and as the engine does."""
    cases = _cases(settings, _plain(others), seeds)
    cases += _cases([charged(setting) for setting in settings], _plain(["topas"]), seeds)
    return cases + (_cases(settings, _plain(["topas"]), seeds) if prefill else [])


def _main(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _with_topas(main_settings(tasks), [*BASELINES, *MORE], seeds)


def _no_tier(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _with_topas(main_settings(tasks, host_tier="none"), BASELINES, seeds, prefill=False)


def _keep(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks), _plain(["topas-keep"]), seeds)


def _ablation(tasks: int, seeds: Sequence[int]) -> list[Case]:
    at = Setting("metagpt-tl", ABLATION_RATE, num_tasks=tasks)
    return _cases([charged(at), at], _plain(["topas-base", "topas-reuse", "topas-aging", "topas"]), seeds)


def enumeration_settings(tasks: int) -> list[Setting]:
    """Returns the points at which M is swept: few agents, ten agents, five agents of which some are idle."""
    return [Setting(w, RATES[w][ENGINE_STEP], num_tasks=tasks) for w in ("chain-3", "dag-10-wide", "metagpt-tl")]


def _enumeration(tasks: int, seeds: Sequence[int]) -> list[Case]:
    policies: list[PolicyOptions] = _plain(["topas"])
    policies += [("topas", {"M": m}) for m in ENUMERATED]
    return _cases([charged(s) for s in enumeration_settings(tasks)], policies, seeds)


def _ours(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks), _plain(OURS), seeds)


def _overhead(tasks: int, seeds: Sequence[int]) -> list[Case]:
    setting = Setting("metagpt-sop", OVERHEAD_RATE, num_tasks=tasks, decision_time="measured")
    return _cases([charged(setting)], _plain(["topas"]), seeds[:1])


def _share(tasks: int, seeds: Sequence[int]) -> list[Case]:
    cases = _with_topas(share_settings(tasks), BASELINES, seeds)
    return cases + _with_topas(share_settings(tasks, host_tier="none"), BASELINES, seeds, prefill=False)


def _output(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _with_topas(output_settings(tasks), BASELINES, seeds, prefill=False)


def _weights(tasks: int, seeds: Sequence[int]) -> list[Case]:
    pairs: list[PolicyOptions] = [("topas", {"beta": b, "rho": r}) for b, r in itertools.product(*WEIGHTS)]
    settings = weight_settings(tasks)
    return _cases(settings, _plain(BASELINES), seeds) + _cases([charged(s) for s in settings], pairs, seeds)


def _engine(tasks: int, seeds: Sequence[int]) -> list[Case]:
    cases: list[Case] = []
    for _, setting, options in engine_settings(tasks):
        cases += _cases([bare(setting)], _plain(BASELINES), seeds)
        cases += _cases([setting], [("topas", options)], seeds)
    return cases


def _literature(tasks: int, seeds: Sequence[int]) -> list[Case]:
    settings = [Setting(w, rates[LITERATURE_STEP], num_tasks=tasks) for w, rates in RATES.items()]
    return _with_topas(settings, [*BASELINES, *MORE, *LITERATURE, "topas-keep"], seeds)


SECTIONS: dict[str, Callable[[int, Sequence[int]], list[Case]]] = {
    "main": _main,
    "ablation": _ablation,
    "overhead": _overhead,
    "no-tier": _no_tier,
    "engine": _engine,
    "share": _share,
    "weights": _weights,
    "output": _output,
    "keep": _keep,
    "literature": _literature,
    "enumeration": _enumeration,
    "ours": _ours,
}
"""The parts of the reproduction, in the order in which they run."""


def section_cases(names: Sequence[str], tasks: int, seeds: Sequence[int]) -> list[Case]:
    """Returns the runs of some sections, each run once.

    Args:
        names: Keys of `SECTIONS`.
        tasks: Tasks a run.
        seeds: Seeds of the traces.
    """
    found: dict[bytes, Case] = {}
    for name in names:
        for case in sorted(SECTIONS[name](tasks, seeds), key=lambda case: case.seed):
            found.setdefault(msgspec.json.encode(case, order="sorted"), case)
    return list(found.values())
