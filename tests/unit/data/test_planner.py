from __future__ import annotations

import math
from pathlib import Path

import pytest

from segpl.data.case import Case, Dataset
from segpl.data.fingerprint import ChannelStatistics, Fingerprint
from segpl.data.inspect import Inspection
from segpl.data.plan import Plan
from segpl.data.planner import (
    Resources,
    check_sizes,
    choose_kernels,
    choose_normalization,
    choose_strides,
    derive_plan,
    fit_to_memory,
    shrink_box,
    thick_slice_axis,
)
from segpl.data.spacing import median_spacing, reorient_fingerprint
from segpl.errors import InputError

PLENTY = Resources(2**36, accelerated=False)
FAST = Resources(100 * 2**30, accelerated=True)
CT = tuple(float(value) for value in range(-100, 101))


def statistics(*, low: float = 0.0, zeros: float = 0.0) -> ChannelStatistics:
    return ChannelStatistics(low, 1000, low, 90, 900, zeros)


def fingerprint(
    shape: tuple[int, ...],
    *,
    spacing: tuple[float, ...] = (),
    orientation: str | None = None,
    channel: ChannelStatistics | None = None,
    foreground: tuple[tuple[float, ...], ...] = (),
    case: str = "a",
    chords: dict[int, tuple[float, ...]] | None = None,
) -> Fingerprint:
    return Fingerprint(
        case,
        shape,
        spacing or (1.0,) * len(shape),
        orientation,
        (channel or statistics(),),
        None,
        foreground,
        chords or {},
    )


def inspection(*prints: Fingerprint, channels: tuple[str, ...] = ()) -> Inspection:
    named = {f"case-{n}": entry for n, entry in enumerate(prints)}
    cases = tuple(Case(name, (Path(f"{name}.nii.gz"),)) for name in named)
    dataset = Dataset(Path("scans"), "folders", cases, channels, {"background": 0, "organ": 1})
    return Inspection(dataset, len(prints[0].shape), {"background": 0, "organ": 1}, named, ())


def plan_for(*prints: Fingerprint, resources: Resources = PLENTY) -> Plan:
    return derive_plan(inspection(*prints), resources)


def factors(plan: Plan) -> list[int]:
    return [math.prod(row[axis] for row in plan.strides) for axis in range(plan.dims)]


def test_thin_axis_is_not_halved():
    plan = plan_for(fingerprint((64, 64, 6)))
    assert all(row[2] == 1 for row in plan.strides)
    assert all(row[:2] == (2, 2) for row in plan.strides)


def test_halving_leaves_at_least_four_voxels():
    assert choose_strides((16, 8), (1, 1)) == ((2, 2), (2, 1))
    assert choose_strides((7, 7), (1, 1)) == ()


def test_no_axis_is_halved_more_than_four_times():
    assert choose_strides((512, 512), (1, 1)) == ((2, 2),) * 4


def test_coarse_axis_is_halved_once_the_others_are_as_coarse():
    rows = choose_strides((64, 64, 64), (1.0, 1.0, 5.0))
    assert [row[2] for row in rows] == [1, 1, 2, 2]
    assert all(row[:2] == (2, 2) for row in rows)


def test_axis_twice_as_coarse_is_halved_with_the_others():
    assert choose_strides((32, 32), (1.0, 2.0))[0] == (2, 2)


@pytest.mark.parametrize("shape", [(35, 51, 37), (70, 33, 19), (101, 97), (565, 584), (20, 20, 3)])
@pytest.mark.parametrize("is_accelerated", [True, False])
def test_patch_is_a_multiple_of_its_strides(shape, is_accelerated):
    plan = plan_for(fingerprint(shape), resources=Resources(2**34, is_accelerated))
    for side, factor in zip(plan.patch, factors(plan), strict=True):
        assert side % factor == 0


def test_patch_of_small_images_holds_them_whole():
    plan = plan_for(fingerprint((35, 30, 36)))
    assert all(side >= size for side, size in zip(plan.patch, (35, 30, 36), strict=True))


def test_patch_of_large_images_keeps_their_proportions():
    plan = plan_for(fingerprint((400, 400, 40)))
    assert math.prod(plan.patch) <= 1.5 * 48**3
    assert plan.patch[0] == plan.patch[1]
    assert plan.patch[2] == 40


def test_less_memory_takes_crops_from_the_batch_first_and_then_from_the_patch():
    shapes, spacing = [(200, 200, 200)], (1.0, 1.0, 1.0)
    plans = [
        fit_to_memory(shapes, spacing, 8, Resources(2**power, accelerated=True))
        for power in range(36, 24, -1)
    ]
    batches = [batch for _, _, batch in plans]
    voxels = [math.prod(patch) for patch, _, _ in plans]
    assert voxels == sorted(voxels, reverse=True)
    assert voxels[-1] < voxels[0]
    first_small_batch = next(n for n, batch in enumerate(batches) if batch < batches[0])
    first_small_patch = next(n for n, count in enumerate(voxels) if count < voxels[0])
    assert first_small_batch < first_small_patch
    assert min(batches) == 1


def test_hardly_any_memory_still_gives_a_plan():
    plan = plan_for(fingerprint((100, 100, 100)), resources=Resources(1, accelerated=False))
    assert plan.batch == 1
    assert math.prod(plan.patch) <= 16**3


@pytest.mark.parametrize("smallest", [9, 11, 13, 17, 21, 33])
def test_derived_plan_takes_the_smallest_image_that_it_was_derived_from(smallest):
    """A side rounded up to a multiple of its strides must not outgrow what is allowed."""
    prints = [fingerprint((40, 40, smallest)), *[fingerprint((40, 40, 40))] * 2]
    check_sizes(plan_for(*prints), prints)


def test_spacing_is_the_median_of_the_images():
    prints = [fingerprint((9, 9), spacing=(s, 2 * s)) for s in (0.5, 0.7, 3.0)]
    assert median_spacing(prints) == (0.7, 1.4)


@pytest.mark.parametrize(
    ("stored", "shape"),
    [("RAS", (10, 20, 30)), ("LPI", (10, 20, 30)), ("PIR", (30, 10, 20)), ("SRA", (20, 30, 10))],
)
def test_axes_are_put_in_the_order_of_the_orientation(stored, shape):
    """By letter: the size along R or L comes first, then A or P, then S or I."""
    spacing = tuple(float(size) for size in (10, 20, 30))
    result = reorient_fingerprint(
        fingerprint((10, 20, 30), spacing=spacing, orientation=stored), "RAS"
    )
    assert result.shape == shape
    assert result.spacing == tuple(map(float, shape))


def test_plan_is_made_for_turned_images():
    """Stored with the thin axis first, which is the last one after turning."""
    plan = plan_for(fingerprint((6, 64, 64), orientation="SRA"))
    assert plan.orientation == "RAS"
    assert plan.patch[2] == 6


def test_images_of_unknown_orientation_are_kept_as_stored():
    plan = plan_for(fingerprint((6, 64, 64), orientation="SRA"), fingerprint((6, 64, 64)))
    assert plan.orientation is None
    assert plan.patch[0] == 6


def test_pictures_have_no_orientation():
    assert plan_for(fingerprint((64, 64), orientation=None)).orientation is None


@pytest.mark.parametrize("name", ["CT", "ct", "low-dose CT", "CT_portal"])
def test_ct_is_known_by_the_name_of_its_channel(name):
    rule = choose_normalization(name, 0, [fingerprint((9, 9, 9), foreground=(CT,))])
    assert rule.kind == "ct"


@pytest.mark.parametrize("name", ["T2", "contrast", "active"])
def test_ct_inside_of_a_word_is_no_ct(name):
    rule = choose_normalization(name, 0, [fingerprint((9, 9, 9), foreground=(CT,))])
    assert rule.kind == "zscore"


def test_ct_is_known_by_numbers_like_hounsfield_units():
    air = fingerprint((9, 9, 9), channel=statistics(low=-1000), foreground=(CT,))
    assert choose_normalization("channel-0", 0, [air]).kind == "ct"


def test_ct_is_clipped_to_percentiles_of_the_foreground():
    """Of -100 to 100 the 0.5 and 99.5 percentiles are -99 and 99; the mean is 0."""
    rule = choose_normalization("CT", 0, [fingerprint((9, 9, 9), foreground=(CT,))])
    assert (rule.low, rule.high) == (pytest.approx(-99), pytest.approx(99))
    assert rule.mean == pytest.approx(0, abs=1e-9)
    assert rule.std == pytest.approx(58.0, abs=0.1)


@pytest.mark.parametrize("foreground", [(), ((),), ((5.0,) * 3,), ((5.0,) * 50,)])
def test_ct_without_enough_foreground_is_normalized_by_case(foreground):
    rule = choose_normalization("CT", 0, [fingerprint((9, 9, 9), foreground=foreground)])
    assert rule.kind == "zscore"


def test_image_that_is_mostly_zero_is_normalized_where_it_is_not():
    brain = fingerprint((9, 9, 9), channel=statistics(zeros=0.6))
    assert choose_normalization("T1", 0, [brain]).kind == "zscore-nonzero"


def test_channels_keep_the_names_of_the_dataset():
    found = inspection(fingerprint((16, 16, 16)), channels=("T1w",))
    assert derive_plan(found, PLENTY).channels == ("T1w",)
    assert plan_for(fingerprint((16, 16, 16))).channels == ("channel-0",)


def test_every_choice_has_a_reason():
    plan = plan_for(fingerprint((64, 64, 64)))
    assert {"spacing", "patch", "strides", "width", "batch"} <= set(plan.reasons)


@pytest.mark.parametrize(
    ("shape", "resources", "width", "lr"),
    [
        ((40, 40, 40), PLENTY, 8, 0.01),
        ((40, 40, 40), FAST, 32, 0.0025),
        ((40, 40), PLENTY, 16, 0.01),
        ((40, 40), FAST, 32, 0.005),
    ],
)
def test_network_is_wide_with_an_accelerator_and_learns_as_much_more_slowly(
    shape, resources, width, lr
):
    plan = plan_for(fingerprint(shape), resources=resources)
    assert (plan.width, plan.lr) == (width, pytest.approx(lr))
    assert {"width", "lr"} <= set(plan.reasons)


@pytest.mark.parametrize(
    ("shape", "resources", "voxels", "crops"),
    [
        ((300, 300, 300), PLENTY, 48**3, 2),
        ((300, 300, 300), FAST, 64**3, 4),
        ((900, 900), PLENTY, 192**2, 2),
        ((900, 900), FAST, 384**2, 4),
    ],
)
def test_crops_of_large_images_are_as_large_as_the_machine_is_fast(shape, resources, voxels, crops):
    plan = plan_for(fingerprint(shape), resources=resources)
    assert 0.8 * voxels <= math.prod(plan.patch) <= 1.2 * voxels
    assert plan.batch == crops


@pytest.mark.parametrize(("resources", "least", "most"), [(PLENTY, 1.4, 1.4), (FAST, 1.1, 1.3)])
def test_large_organ_is_planned_on_a_coarser_grid_and_a_vessel_is_not(resources, least, most):
    """The sizes are those of PROMISE12; axes are stored in another order than planned."""
    scan = {"shape": (23, 256, 256), "spacing": (3.0, 0.7, 0.7), "orientation": "SRA"}
    plan = plan_for(fingerprint(**scan, chords={1: (27.0, 40.0, 30.0)}), resources=resources)
    assert plan.spacing == (plan.spacing[0], plan.spacing[0], 3.0)
    assert least <= plan.spacing[0] <= most
    assert "(0.7 x 0.7 x 3), coarsened" in plan.reasons["spacing"]
    vessel = plan_for(fingerprint(**scan, chords={1: (27.0, 2.0, 2.0)}), resources=resources)
    assert vessel.spacing == (0.7, 0.7, 3.0)
    assert "coarsened" not in vessel.reasons["spacing"]


def test_image_far_smaller_than_the_patch_is_refused_by_name():
    plan = plan_for(fingerprint((40, 40, 40)))
    small = fingerprint((40, 40, 10), case="tiny")
    expected = r"case tiny: the image is smaller than half the patch: 40x40x10.*Use 20 or less"
    with pytest.raises(InputError, match=expected):
        check_sizes(plan, [small])


def test_thick_slices_are_not_mixed_until_the_others_are_as_coarse():
    strides = ((2, 2, 1), (2, 2, 1), (2, 2, 2))
    rows = choose_kernels(strides, (0.7, 0.7, 3.0), (64, 64, 16))
    assert rows == ((3, 3, 1), (3, 3, 1), (3, 3, 3), (3, 3, 3))


def test_axis_twice_as_coarse_is_mixed_with_the_others():
    assert choose_kernels(((2, 2, 2),), (1.0, 1.0, 2.0), (16, 16, 16)) == ((3, 3, 3),) * 2


@pytest.mark.parametrize(
    ("patch", "spacing"),
    [
        ((128, 128, 16), (1.0, 1.0, 1.0)),
        ((128, 128, 6), (1.0, 1.0, 1.0)),
        ((128, 128, 6), (1.0, 1.0, 0.4)),
        ((128, 128, 8), (1.5, 1.5, 3.0)),
    ],
)
def test_few_slices_do_not_keep_the_others_from_being_mixed(patch, spacing):
    """Where thin axes are not halved, the wide ones become the coarse ones."""
    strides = choose_strides(patch, spacing)
    assert {row[:2] for row in choose_kernels(strides, spacing, patch)} == {(3, 3)}


def test_axis_that_was_mixed_stays_mixed():
    strides = choose_strides((128, 128, 12), (1.4, 1.4, 5.0))
    rows = choose_kernels(strides, (1.4, 1.4, 5.0), (128, 128, 12))
    assert rows == ((3, 3, 1), (3, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))


def test_derived_plan_has_a_kernel_for_every_level():
    plan = plan_for(fingerprint((64, 64, 12), spacing=(0.7, 0.7, 3.0)))
    assert len(plan.kernels) == len(plan.strides) + 1
    assert plan.kernels[0] == (3, 3, 1)


@pytest.mark.parametrize("resources", [PLENTY, FAST])
@pytest.mark.parametrize("shape", [(32, 32, 8), (160, 160, 9), (160, 160, 60)])
def test_patch_is_one_slice_where_slices_are_very_thick(shape, resources):
    """Twenty times as thick as the voxels within: four halvings bring these to 6.4 mm of 8."""
    plan = plan_for(fingerprint(shape, spacing=(0.4, 0.4, 8.0)), resources=resources)
    assert plan.patch == (*shape[:2], 1)
    assert {row[2] for row in plan.strides} == {row[2] for row in plan.kernels} == {1}
    assert {row[:2] for row in plan.kernels} == {(3, 3)}
    assert plan.batch == (8 if resources.accelerated else 4)
    assert "a single slice, because slices are 20 times as far apart" in plan.reasons["patch"]


def test_axes_are_sliced_where_they_lie():
    plan = plan_for(fingerprint((64, 9, 64), spacing=(0.4, 8.0, 0.4)))
    assert plan.patch == (64, 1, 64)


@pytest.mark.parametrize(
    ("spacing", "axis"),
    [
        ((0.7, 0.7, 3.0), None),  # mixed on three levels of five
        ((0.5, 0.5, 8.0), None),  # halved three times these are 4: two levels mix
        ((0.5, 0.5, 8.1), 2),  # the deepest level alone
        ((0.5, 0.5, 50.0), 2),  # no level
        ((9.0, 0.5, 0.5), 0),
        ((0.4, 0.4, 0.4), None),
        ((0.4, 8.0, 8.0), None),  # a line is no slice
        ((0.1, 5.0), None),
    ],
)
def test_slices_are_told_by_the_spacing_alone(spacing, axis):
    assert thick_slice_axis(spacing) == axis


def test_few_voxels_do_not_make_slices():
    """Of 8x8x6 voxels a network mixes these on its deepest level alone: it has but two."""
    plan = plan_for(fingerprint((8, 8, 6), spacing=(1.0, 1.0, 3.0)))
    assert [row[2] for row in plan.kernels] == [1, 3]
    assert plan.patch[2] == 6


def test_axis_of_one_voxel_is_never_mixed_and_does_not_count_as_fine():
    plan = plan_for(fingerprint((64, 64, 1), spacing=(1.0, 1.0, 0.1)))
    assert plan.patch[2] == 1
    assert set(plan.kernels) == {(3, 3, 1)}
    assert choose_kernels((), (1.0, 1.0, 0.1), (7, 7, 1)) == ((3, 3, 1),)


def test_less_memory_takes_slices_from_the_batch():
    shapes, spacing = [(512, 512, 9)], (0.4, 0.4, 8.0)
    batches = [
        fit_to_memory(shapes, spacing, 32, Resources(gib * 2**30, accelerated=True), 2)[2]
        for gib in (100, 10, 3)
    ]
    assert batches == [8, 3, 1]


def test_slices_are_made_coarser_where_a_slice_is_large_and_not_for_being_many():
    def spacing_of(shape: tuple[int, ...]) -> tuple[float, ...]:
        scan = fingerprint(shape, spacing=(0.4, 0.4, 8.0), chords={1: (60.0, 60.0, 60.0)})
        return plan_for(scan).spacing

    assert spacing_of((200, 200, 300)) == (0.4, 0.4, 8.0)
    coarse = spacing_of((400, 400, 9))
    assert coarse[0] == pytest.approx(0.4 * 400 / 272, rel=0.03)  # two patches of 192x192
    assert coarse == (coarse[0], coarse[0], 8.0)
    assert thick_slice_axis(coarse) is None  # and still a slice is the patch
    large = fingerprint((400, 400, 9), spacing=(0.4, 0.4, 8.0), chords={1: (60.0, 60.0, 60.0)})
    assert plan_for(large).patch[2] == 1


def test_equal_sides_are_cut_alike():
    first, second, third = shrink_box((128, 128, 24), 48**3)
    assert first == second < 128
    assert third == 24


def test_networks_that_need_thickness_get_no_slices():
    thick = inspection(fingerprint((64, 64, 16), spacing=(0.4, 0.4, 8.0)))
    assert derive_plan(thick, PLENTY).patch[2] == 1
    assert derive_plan(thick, PLENTY, slices=False).patch[2] > 1
