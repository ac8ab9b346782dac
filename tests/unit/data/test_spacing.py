from __future__ import annotations

import math

import pytest

from segpl.data.fingerprint import Fingerprint
from segpl.data.spacing import (
    SMALLEST_CHORD,
    coarsen,
    median_shape,
    median_spacing,
    reorient_fingerprint,
    thinnest_chords,
)

SHAPE, SPACING = (256, 256, 23), (0.7, 0.7, 3.0)
ORGAN = {1: (30.0, 30.0, 30.0)}  # mm


def item(
    shape: tuple[int, ...] = SHAPE,
    spacing: tuple[float, ...] = SPACING,
    chords: dict[int, tuple[float, ...]] | None = None,
    orientation: str | None = None,
) -> Fingerprint:
    return Fingerprint("a", shape, spacing, orientation, (), None, (), chords or {})


def coarser(case: Fingerprint, voxels: int) -> tuple[float, ...]:
    return coarsen([case], median_spacing([case]), voxels)


@pytest.mark.parametrize(("shape", "spacing"), [(SHAPE, SPACING), ((900, 900), (0.1, 0.1))])
def test_large_image_is_coarsened_to_two_patches(shape, spacing):
    voxels = math.prod(shape) // 5
    case = item(shape, spacing, {1: (30.0,) * len(shape)})
    result = coarser(case, voxels)
    assert 1.9 * voxels <= math.prod(median_shape([case], result)) <= 2 * voxels
    assert result[0] == result[1] > spacing[0]
    assert result[2:] == spacing[2:]


def test_no_axis_is_coarsened_more_than_twice():
    assert coarser(item(chords=ORGAN), 1000) == (1.4, 1.4, 3.0)


def test_thinnest_class_keeps_six_voxels_along_every_axis():
    """A mean chord of 6 mm allows 1 mm. Vessels of 3 voxels allow no coarsening."""
    organs = ORGAN | {2: (6.0, 30.0, 30.0)}
    assert coarser(item(chords=organs), 1000) == (1.0, 1.0, 3.0)
    assert SMALLEST_CHORD == 6
    vessels = ORGAN | {2: (2.1, 2.1, 9.0)}
    assert coarser(item(chords=vessels), 1000) == SPACING


def test_nothing_is_coarsened_without_a_label():
    assert coarser(item(), 1000) == SPACING


def test_similar_axes_are_coarsened_together():
    result = coarser(item((256, 256, 256), (0.70, 0.72, 3.0), {1: (90.0,) * 3}), 1_000_000)
    assert result[0] / 0.70 == pytest.approx(result[1] / 0.72, rel=1e-4)
    assert result[0] > 0.75


def test_finest_axis_is_coarsened_first():
    case = item((100, 100, 100), (1.0, 1.2, 1.2), {1: (90.0,) * 3})
    assert coarser(case, 450_000) == (pytest.approx(1.12, abs=0.02), 1.2, 1.2)
    result = coarser(case, 200_000)
    assert result[1] == result[2] > 1.2
    assert result[0] == pytest.approx(result[1], rel=0.06)


def test_chord_of_a_class_is_its_median_over_cases():
    cases = [
        item(chords={1: (width, 50.0, 50.0), 2: (90.0, 8.0, 90.0)}) for width in (2.0, 20.0, 30.0)
    ]
    assert thinnest_chords([*cases, item()]) == (20.0, 8.0, 50.0)


def test_fingerprint_is_reoriented_with_its_chords():
    """Stored as S, R, A; each value names its axis."""
    case = item((3, 1, 2), (3.0, 1.0, 2.0), {5: (30.0, 10.0, 20.0)}, "SRA")
    result = reorient_fingerprint(case, "RAS")
    assert (result.shape, result.spacing) == ((1, 2, 3), (1.0, 2.0, 3.0))
    assert result.chords == {5: (10.0, 20.0, 30.0)}


def test_rare_class_counts():
    cases = [item(chords=ORGAN), item(chords=ORGAN), item(chords=ORGAN | {2: (3.0, 3.0, 3.0)})]
    assert thinnest_chords(cases) == (3.0, 3.0, 3.0)
