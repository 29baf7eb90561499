"""What a comparison found, in sentences."""

import math
from collections.abc import Sequence

from topas_env.compare import BASELINES, Interval, PointSummary, Row

__all__ = ["headline", "representative"]


def representative(points: Sequence[PointSummary]) -> PointSummary:
    """Returns the point that the detailed pictures show: the highest rate at which the best policy still keeps up.

    A point keeps up where its utilisation is below 0.95; without such a point, the one with the smallest utilisation.
    """
    usable = [point for point in points if point.rows] or list(points)
    calm = [point for point in usable if not point.utilisation >= 0.95]
    if calm:
        return max(calm, key=lambda point: point.point.arrival_rate or 0.0)
    return min(usable, key=lambda point: point.utilisation)


def headline(points: Sequence[PointSummary]) -> str:
    """Returns a sentence about the points of one workload: who is fastest, by how much, and how sure that is.

    Args:
        points: of one workload and profile.
    """
    usable = [point for point in points if point.rows]
    if not usable:
        return "No seed has been finished by every policy yet."
    point = representative(usable)
    best = min(point.rows, key=lambda row: row.mean_jct_s.value)
    where = point.point.label()
    if not point.best_mean:
        return f"{where}: {best.policy} has the lowest mean JCT, {best.mean_jct_s.value:.1f} s."
    others = [row for row in point.rows if row.policy.split()[0] not in BASELINES]
    if not others:
        return f"{where}: {best.policy} has the lowest mean JCT of the baselines, {best.mean_jct_s.value:.1f} s."
    row = min(others, key=lambda other: other.mean_jct_s.value)
    text = f"{where}: {_against(row, point.best_mean)}"
    clear = [_sign(r) for p in usable for r in p.rows if r.policy == row.policy]
    if len(usable) > 1:
        text += (
            f" Over all {len(usable)} points its mean JCT is clearly lower at {clear.count(-1)} "
            f"and clearly higher at {clear.count(1)}."
        )
    return text


def _sign(row: Row) -> int:
    return row.mean_difference.sign if row.mean_difference is not None else 0


def _against(row: Row, baseline: str) -> str:
    difference = row.mean_difference
    assert difference is not None
    size = f"{abs(difference.value):.1f}%"
    direction = "below" if difference.value < 0 else "above"
    text = f"the mean JCT of {row.policy} is {size} {direction} the best baseline's ({baseline})"
    if math.isnan(difference.low):
        return text + "; one seed, so no interval."
    if difference.sign == 0:
        return text + f", which may be chance (95% interval {_ends(difference)})."
    return text + f" (95% interval {_ends(difference)})."


def _ends(interval: Interval) -> str:
    return f"{interval.low:+.1f} to {interval.high:+.1f}%"
