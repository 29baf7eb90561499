"""Colours, markers and sizes of the report's pictures; safe for colour-blind readers (Okabe and Ito's palette)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["AGENT_COLOURS", "HATCHES", "figure", "line_style", "svg_text"]

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C564B", "#7F7F7F", "#B8A800")
_EMPHASIS = ("#D55E00", "#000000")
AGENT_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
HATCHES = ("", "///", "...", "xx", "\\\\\\")
_MARKERS = "ovs^Dpv<>hX*"
_DASHES = ("-", "--", "-.", ":")
_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "topas",
    "hatch.linewidth": 0.6,
    "path.simplify": True,
}


def line_style(policy: str, policies: Sequence[str]) -> dict[str, Any]:
    """Returns colour, marker and dashes of a policy; colour is never all that tells two policies apart.

    Args:
        policy: one of `policies`.
        policies: all of them. The ones that are no baselines get the two strongest colours and wide lines.
    """
    from topas_env.compare import BASELINES

    plain = [name for name in policies if name in BASELINES]
    if policy in plain:
        place = plain.index(policy)
        colour, width = _COLOURS[place % len(_COLOURS)], 1.3
    else:
        place = [name for name in policies if name not in BASELINES].index(policy)
        colour, width = _EMPHASIS[place % len(_EMPHASIS)], 2.2
    number = list(policies).index(policy)
    return {
        "color": colour,
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[(place // 2) % len(_DASHES)],
        "linewidth": width,
        "markersize": 4.5,
    }


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """Gives a figure of the report's style; sizes in inches. It is not one of pyplot's, so nothing is left open."""
    with mpl.rc_context(_SETTINGS):
        made = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(made)
        yield made


def svg_text(made: Figure, label: str) -> str:
    """Returns the figure as an `<svg>` element that scales with its place in the page.

    Args:
        made: the figure.
        label: what it shows, for those who cannot see it.
    """
    from html import escape

    buffer = StringIO()
    made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="none")
    text = buffer.getvalue()
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text[text.index("<svg") :])  # a hundredth of a point is enough
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label, quote=True)}" ', 1)
