from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from segpl.report.pictures.thresholds import (
    density,
    drawn,
    examples_of,
    family_figure,
    picture_of,
    write_pictures,
)
from segpl.threshold.base import FAMILIES
from segpl.threshold.normal import Normal

IMAGES = Path(__file__).parents[3] / "docs" / "images"
every_family = pytest.mark.parametrize("name", FAMILIES.names)


def lines_of(name: str) -> list[list[np.ndarray]]:
    """Heights of the curves of each panel."""
    return [[line.get_ydata() for line in axes.lines] for axes in family_figure(name).axes]


def test_density_is_that_of_torch():
    edges = torch.arange(101).double() / 100
    ours = density(Normal(torch.tensor(0.6).double(), 2 * torch.tensor(0.1).double().log()), edges)
    theirs = torch.distributions.Normal(0.6, 0.1).log_prob(edges[:-1] + 0.005).exp()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)


@every_family
def test_areas_are_what_a_family_puts_inside_the_panel(name):
    for heights in lines_of(name)[0]:
        assert heights.min() >= 0
        assert heights.sum() / 100 == pytest.approx(1, abs=2e-3)


@every_family
def test_posteriors_lie_on_both_sides_of_the_prior_and_one_is_narrower(name):
    prior, down, up, *_ = (example.threshold for example in examples_of(name))
    assert down.mean.item() < prior.mean.item() - 0.1
    assert up.mean.item() > prior.mean.item() + 0.1
    assert down.std.item() < prior.std.item() - 0.02


@every_family
def test_soft_labels_are_half_at_the_median_and_hard_ones_jump_at_the_mean(name):
    _, labels, _ = lines_of(name)
    *soft, hard = labels
    for example, heights in zip(examples_of(name), soft, strict=True):
        draws = [
            example.threshold.sample(torch.Generator().manual_seed(seed)).item()
            for seed in range(400)
        ]
        assert heights[round(500 * float(np.median(draws)))] == pytest.approx(0.5, abs=0.12)
    assert hard.tolist() == [0.0] * 301 + [1.0] * 200


@every_family
def test_weights_are_alike_for_foreground_and_background(name):
    for heights in lines_of(name)[2]:
        assert heights == pytest.approx(heights[::-1], abs=1e-6)
        assert heights.argmin() in range(200, 301)


@every_family
def test_every_curve_is_named_in_words(name):
    (legend,) = family_figure(name).legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words[0] == "prior (0.60 ± 0.10)"
    assert words[-1] == "hard: a single threshold of 0.6"
    assert len(words) == len(lines_of(name)[1])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    paths = write_pictures(tmp_path_factory.mktemp("images"))
    return {path.name: path for path in paths}


@every_family
def test_picture_of_the_documentation_is_the_one_that_is_drawn(name, written):
    """Within what another version of matplotlib may draw otherwise; if not: make docs-images."""
    path = IMAGES / picture_of(name)
    shown, new = (
        np.asarray(Image.open(one).convert("L"), float) for one in (path, written[path.name])
    )
    assert shown.shape == new.shape
    assert np.abs(shown - new).mean() < 0.1
    assert path.stat().st_size < 100_000


def test_picture_is_the_same_each_time(written):
    again = drawn("categorical")
    assert again.tobytes() == Image.open(written[picture_of("categorical")]).tobytes()
