from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.textpath import TextPath

from segpl.report.curves import curve_figure
from segpl.report.page.html import svg

TEXT = "{http://www.w3.org/2000/svg}text"
TURNED = re.compile(r"rotate\(-90(\.0)? ")


def boxes(drawing: str) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, right and bottom of every text, from the outlines of its letters."""
    found = {}
    for text in ElementTree.fromstring(drawing).iter(TEXT):
        words, style = text.text or "", text.get("style", "")
        size = float(re.search(r"([\d.]+)px", style)[1])
        letters = TextPath((0, 0), words, size=size).get_extents()  # its y points up
        anchor = re.search(r"text-anchor: (\w+)", style)
        shift = {"middle": 0.5, "end": 1.0}.get(anchor[1] if anchor else "", 0.0) * letters.width
        along = (letters.x0 - shift, letters.x1 - shift)
        x, y = float(text.get("x")), float(text.get("y"))
        if TURNED.search(text.get("transform", "")):
            found[words] = (x - letters.y1, y - along[1], x - letters.y0, y - along[0])
        else:
            found[words] = (x + along[0], y - letters.y1, x + along[1], y - letters.y0)
    return found


@pytest.mark.parametrize(("highest", "lowest"), [(3.386, 0.02), (0.0177, 0.0)])
def test_all_text_of_a_curve_is_inside_the_figure(highest, lowest):
    """The numbers at the ticks must be those that the layout has made room for."""
    log = {"step": list(range(10)), "kl": list(np.linspace(highest, lowest, 10))}
    drawing = svg(curve_figure({"segpl-vi": [log]}, "kl", "KL of the threshold"), "a curve")
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups())
    found = boxes(drawing)
    assert "KL of the threshold" in found
    for words, (left, top, right, bottom) in found.items():
        assert min(left, top) >= 0, words
        assert right <= width, words
        assert bottom <= height, words
