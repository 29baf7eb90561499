"""How numbers and verdicts are written."""

import math

from topas_env.compare import Interval

__all__ = ["ends", "number", "ours", "percent", "signed", "verdict"]


def number(value: float) -> str:
    """Returns three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ends(interval: Interval) -> str:
    """Returns the interval in brackets; nothing where there is none."""
    if math.isnan(interval.low):
        return ""
    return f"({interval.low:.1f} to {interval.high:.1f})"


def ours(policy: str) -> str:
    """Returns the name of a policy that is not the paper's, said to be so."""
    return f"{policy} (ours)"


def percent(interval: Interval) -> str:
    """Returns a reduction in per cent with its interval."""
    return f"{interval.value:.1f}% {ends(interval)}".strip()


def signed(interval: Interval) -> str:
    """Returns a difference in per cent with its sign and its interval."""
    if math.isnan(interval.low):
        return f"{interval.value:+.1f}%"
    return f"{interval.value:+.1f}% ({interval.low:+.1f} to {interval.high:+.1f})"


def verdict(interval: Interval, above: str, below: str) -> str:
    """Returns what an interval says: the word for above zero, the one for below, or that it says nothing."""
    if math.isnan(interval.low):
        return "one seed, no interval"
    return {1: f"clearly {above}", -1: f"clearly {below}", 0: "no clear difference"}[interval.sign]
