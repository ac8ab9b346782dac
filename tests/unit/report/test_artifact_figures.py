from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from segpl.report.pictures.artifacts import (
    PICTURE,
    SEVERITIES,
    artifact_figure,
    examples,
    phantom_slice,
    write_picture,
)
from segpl.views.artifacts import ARTIFACTS

SHOWN = Path(__file__).parents[3] / "docs" / "images" / PICTURE


def test_picture_of_the_documentation_is_the_one_that_is_drawn(tmp_path):
    """Within what another version of matplotlib may draw otherwise; if not: make docs-images."""
    new = write_picture(tmp_path)
    old, drawn = (np.asarray(Image.open(path).convert("L"), float) for path in (SHOWN, new))
    assert old.shape == drawn.shape
    assert np.abs(old - drawn).mean() < 1
    assert SHOWN.stat().st_size < 150_000


def test_every_artifact_has_a_named_column_of_every_severity():
    figure = artifact_figure()
    assert sum(bool(axes.images) for axes in figure.axes) == 1 + len(ARTIFACTS) * len(SEVERITIES)
    assert sum(bool(axes.get_title()) for axes in figure.axes) == 1 + len(ARTIFACTS)


def test_examples_differ_more_and_more_from_the_scan():
    image = phantom_slice()
    for name in ARTIFACTS:
        distances = [(shown - image).norm().item() for shown in examples(image, name)]
        assert distances == sorted(distances)
        assert distances[0] > 0
