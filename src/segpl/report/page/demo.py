"""A result as one HTML file that asks for nothing from outside: no script, font or picture."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segpl.files import write_text
from segpl.report.figures import (
    MEANINGS,
    OverlayCase,
    curves_figure,
    overlay,
    threshold_figure,
)
from segpl.report.page.html import svg, templates
from segpl.report.runs import RunSummary
from segpl.report.tables import case_table, comparison_table

WIDEST = 256  # pixels of a picture's longer side; larger slices are thinned out


@dataclass(frozen=True, slots=True)
class _Picture:
    caption: str
    source: str  # data: address


def write_page(
    path: Path,
    *,
    title: str,
    summary: list[str],  # paragraphs
    runs: list[RunSummary],
    overlays: list[OverlayCase],
    data: str,  # what was trained and tested on
    command: str,  # repeats it
) -> None:
    terms = list(dict.fromkeys(term for run in runs for term in run.terms))
    threshold = threshold_figure(runs)
    html = (
        templates()
        .get_template("demo.html")
        .render(
            title=title,
            summary=summary,
            table=comparison_table(runs),
            cases=case_table(runs, "iou"),
            colors=MEANINGS,
            overlays=[(case.name, _pictures(case)) for case in overlays],
            curves=[svg(curves_figure(runs, term), f"{term} over training") for term in terms],
            threshold=svg(threshold, "threshold over training") if threshold else None,
            data=data,
            command=command,
        )
    )
    write_text(path, html)


def png_address(picture: NDArray[np.uint8]) -> str:
    """The picture itself, as an address for `src`."""
    step = -(-max(picture.shape[:2]) // WIDEST)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture[::step, ::step])).save(
        buffer, "png", optimize=True
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _pictures(case: OverlayCase) -> list[_Picture]:
    nothing: NDArray[Any] = np.zeros_like(case.truth)
    return [
        _Picture("image", png_address(overlay(case.image, nothing, nothing))),
        *(
            _Picture(method, png_address(overlay(case.image, prediction, case.truth)))
            for method, prediction in case.predictions.items()
        ),
    ]
