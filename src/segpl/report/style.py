"""What the figures of a report share: dashes, safe names and a legend."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from segpl.report.figures import INK
from segpl.report.seed_curves import DASHES

LONGEST = 48  # characters of a name in a legend


def dash(index: int) -> Any:
    """As in curves over seeds: colors come again after six lines, and then with another dash."""
    return DASHES[index % len(DASHES)]


def shown_name(name: str) -> str:
    """A name that matplotlib takes for a name: a dollar sign begins no formula in it."""
    cut = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    # a leading underscore would hide it from a legend
    return ("\u200b" if cut.startswith("_") else "") + cut.replace("$", r"\$")


def legend(axes: Axes) -> None:
    """Below the panel, where it covers no curve."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            names,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.22),
            ncols=min(3, len(names)) if max(map(len, names)) < 18 else 1,
            handlelength=2.6,
        )
