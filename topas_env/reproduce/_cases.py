"""Every run of the reproduction: where, which policy, which seed; section by section, the important ones first."""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from topas_env.reproduce._paper import ABLATION_RATE, BASELINES, OVERHEAD_RATE, RATES
from topas_env.reproduce._settings import Options, Setting, balanced_rate

__all__ = [
    "CHARGE",
    "ENGINES",
    "LITERATURE",
    "LITERATURE_STEP",
    "LOADS",
    "OUTPUTS",
    "SECTIONS",
    "SHARES",
    "SWEPT",
    "WEIGHTS",
    "Case",
    "PolicyOptions",
    "Setting",
    "label",
    "section_cases",
]

LITERATURE = ("kvflow", "continuum", "infercept", "plas", "atlas", "lpm-bounded", "hrrn")
MORE = ("srpt", "gated-lpm")
SHARES = (0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.45)
LOADS = (0.30, 0.45, 0.60, 0.75)
OUTPUTS = (0.5, 1.0, 1.5, 2.0)
SWEPT = ("chain-3", "dag-4")
WEIGHTS = ((0.0, 0.3, 1.0, 3.0, 10.0), (0.0, 0.5, 2.0, 8.0))  # beta, rho
LITERATURE_STEP = 2  # the third of the four rates
ENGINE_STEP = 2

CHARGE: Options = {"rebuild": "decode"}
"""What the paper's score is told: it charges lost tokens at decode speed, whatever the engine does (equation 9)."""

ENGINES: dict[str, tuple[Options, Options, Options]] = {
    "as in the main run": ({}, {}, {}),
    "no host tier": ({"host_tier": "none"}, {}, {}),
    "eager eviction": ({"eviction": "eager"}, {}, {}),
    "rebuild by decode": ({"rebuild": "decode"}, {}, {}),
    "prefill, charged as decode": ({}, CHARGE, {}),
    "reserve 0.1": ({"reserve_ratio": 0.1}, {}, {}),
    "reserve 0.7": ({"reserve_ratio": 0.7}, {}, {}),
    "reserve 1.0": ({"reserve_ratio": 1.0}, {}, {}),
    "mixed prefill and decode": ({"mixed_chunk": True}, {}, {}),
    "pool of 39,000, same rate": ({"kv_budget_tokens": 39000, "decode_s_per_token": 0.0536}, {}, {}),
    "TOPAS with K = 1": ({}, {}, {"K": 1}),
    "TOPAS with K = 2": ({}, {}, {"K": 2}),
    "TOPAS with K = 4": ({}, {}, {"K": 4}),
    "TOPAS with K = 8": ({}, {}, {"K": 8}),
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


def label(policy: str, options: Options) -> str:
    """Returns the policy's name with its options."""
    return policy + "".join(f" {key}={value}" for key, value in options.items())


def _cases(settings: Sequence[Setting], policies: Sequence[PolicyOptions], seeds: Sequence[int]) -> list[Case]:
    """Returns the runs seed by seed, those of one setting and seed side by side."""
    return [
        Case(setting, policy, dict(options), seed)
        for seed, setting, (policy, options) in itertools.product(seeds, settings, policies)
    ]


def _plain(names: Sequence[str]) -> list[PolicyOptions]:
    return [(name, {}) for name in names]


def main_settings(
    tasks: int, *, believed: Options | None = None, **overrides: bool | float | str | None
) -> list[Setting]:
    """Returns the operating points of figures 3 and 4."""
    told = believed or {}
    return [
        Setting(w, rate, num_tasks=tasks, overrides=overrides, believed=told)
        for w, rates in RATES.items()
        for rate in rates
    ]


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


def _main(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks), _plain([*BASELINES, *MORE, "topas"]), seeds)


def _charge(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks, believed=CHARGE), _plain(["topas"]), seeds)


def _keep(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks), _plain(["topas-keep"]), seeds)


def _no_tier(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(main_settings(tasks, host_tier="none"), _plain([*BASELINES, "topas"]), seeds)


def _ablation(tasks: int, seeds: Sequence[int]) -> list[Case]:
    names = ("topas-base", "topas-reuse", "topas-aging", "topas")
    return _cases([Setting("metagpt-tl", ABLATION_RATE, num_tasks=tasks)], _plain(names), seeds)


def _overhead(tasks: int, seeds: Sequence[int]) -> list[Case]:
    setting = Setting("metagpt-sop", OVERHEAD_RATE, num_tasks=tasks, decision_time="measured")
    return _cases([setting], _plain(["topas"]), seeds[:1])


def _share(tasks: int, seeds: Sequence[int]) -> list[Case]:
    settings = share_settings(tasks) + share_settings(tasks, host_tier="none")
    return _cases(settings, _plain([*BASELINES, "topas"]), seeds)


def _output(tasks: int, seeds: Sequence[int]) -> list[Case]:
    return _cases(output_settings(tasks), _plain([*BASELINES, "topas"]), seeds)


def _weights(tasks: int, seeds: Sequence[int]) -> list[Case]:
    pairs: list[PolicyOptions] = [("topas", {"beta": b, "rho": r}) for b, r in itertools.product(*WEIGHTS)]
    return _cases(weight_settings(tasks), [*_plain(BASELINES), *pairs], seeds)


def _engine(tasks: int, seeds: Sequence[int]) -> list[Case]:
    found: dict[bytes, Case] = {}
    for (_, setting, options), seed in itertools.product(engine_settings(tasks), seeds):
        for case in _cases([setting], [*_plain(BASELINES), ("topas", options)], [seed]):
            found.setdefault(msgspec.json.encode(case), case)
    return sorted(found.values(), key=lambda case: (case.seed, msgspec.json.encode(case.setting)))


def _literature(tasks: int, seeds: Sequence[int]) -> list[Case]:
    settings = [Setting(w, rates[LITERATURE_STEP], num_tasks=tasks) for w, rates in RATES.items()]
    return _cases(settings, _plain([*BASELINES, *MORE, *LITERATURE, "topas-keep", "topas"]), seeds)


SECTIONS: dict[str, Callable[[int, Sequence[int]], list[Case]]] = {
    "main": _main,
    "ablation": _ablation,
    "overhead": _overhead,
    "charge": _charge,
    "keep": _keep,
    "no-tier": _no_tier,
    "engine": _engine,
    "share": _share,
    "weights": _weights,
    "output": _output,
    "literature": _literature,
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
        for case in SECTIONS[name](tasks, seeds):
            found.setdefault(msgspec.json.encode(case, order="sorted"), case)
    return list(found.values())
