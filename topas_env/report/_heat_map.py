"""Heat maps of what policies gain and lose."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topas_env.compare import Interval
from topas_env.report._style import figure, svg_text

__all__ = ["heat_map"]


def heat_map(
    titles: Sequence[str],
    cells: Sequence[Sequence[Sequence[Interval | None]]],
    rows: Sequence[str],
    columns: Sequence[str],
    axes_names: tuple[str, str],
    alt: str,
    *,
    difference: bool = False,
) -> str:
    """Returns heat maps side by side of per cent by which a policy is below (blue) or above (red) the best baseline.

    A value in brackets has an interval with zero in it. Colours end at -60 and 60.

    Args:
        titles: One for each map.
        cells: Of each map the rows of cells; None where there was no run.
        rows: Labels of the rows.
        columns: Labels of the columns.
        axes_names: What rows and columns are.
        alt: What it shows.
        difference: Whether the cells are differences (negative is below), not reductions (positive is below).
    """
    colours, label = ("RdBu_r", "% against best baseline") if difference else ("RdBu", "% below best baseline")
    wide = max(len(name) for name in rows)
    with figure(
        (0.62 * len(columns) + 0.09 * wide) * len(titles) + 1.2, 0.33 * len(rows) + (1.5 if len(columns) < 6 else 1.3)
    ) as made:
        axes = np.atleast_1d(made.subplots(1, len(titles)))
        image = None
        for axis, title, part in zip(axes, titles, cells, strict=True):
            image = axis.imshow(_matrix(part), cmap=colours, vmin=-60, vmax=60, aspect="auto")
            for y, row in enumerate(part):
                for x, cell in enumerate(row):
                    if cell is not None:
                        text = f"{cell.value:.0f}".replace("-0", "0").replace("-", "−")
                        dark = abs(cell.value) > 40
                        axis.text(
                            x, y, text if cell.sign else f"({text})", ha="center", va="center", fontsize=7.5,
                            color="white" if dark else "black",
                        )  # fmt: skip
            axis.set_xticks(range(len(columns)), columns, rotation=30 if max(map(len, columns)) > 6 else 0)
            axis.set_yticks(range(len(rows)), rows)
            axis.set_xlabel(axes_names[1])
            axis.grid(visible=False)
            axis.set_title(title)
        axes[0].set_ylabel(axes_names[0])
        assert image is not None
        made.colorbar(image, ax=list(axes), label=label, shrink=0.9)
        return svg_text(made, alt)


def _matrix(part: Sequence[Sequence[Interval | None]]) -> NDArray[np.float64]:
    return np.array([[np.nan if cell is None else cell.value for cell in row] for row in part], np.float64)
