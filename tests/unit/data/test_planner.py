from __future__ import annotations

import math
from dataclasses import replace
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
    padded_cases,
    shrink_box,
)
from segpl.data.spacing import median_spacing
from segpl.errors import InputError

CPU = Resources(2**36, accelerated=False)
GPU = Resources(100 * 2**30, accelerated=True)
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


def plan_for(*prints: Fingerprint, resources: Resources = CPU) -> Plan:
    return derive_plan(inspection(*prints), resources)


class TestStrides:
    @pytest.mark.parametrize(
        ("patch", "spacing", "rows"),
        [
            ((16, 8), (1, 1), ((2, 2), (2, 1))),  # four voxels remain
            ((7, 7), (1, 1), ()),
            ((512, 512), (1, 1), ((2, 2),) * 4),  # at most four times
            ((64, 64, 64), (1, 1, 5), ((2, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 2))),
            ((8, 8), (1, 2), ((2, 2),)),  # twice as coarse is similar enough
            ((64, 64, 6), (1, 1, 1), ((2, 2, 1),) * 4),
            ((12, 16, 16), (4, 1, 1), ((1, 2, 2), (2, 2, 2))),  # kept its twelve voxels at first
        ],
    )
    def test_axes_are_downsampled_while_they_are_long_and_fine_enough(self, patch, spacing, rows):
        assert choose_strides(patch, spacing) == rows


class TestKernels:
    def test_thick_slices_are_convolved_once_the_other_axes_are_as_coarse(self):
        strides = ((2, 2, 1), (2, 2, 1), (2, 2, 2))
        rows = choose_kernels(strides, (0.7, 0.7, 3.0), (64, 64, 16))
        assert rows == ((3, 3, 1), (3, 3, 1), (3, 3, 3), (3, 3, 3))
        plan = plan_for(fingerprint((64, 64, 16), spacing=(0.7, 0.7, 3.0)))
        assert plan.kernels[0] == (3, 3, 1)

    @pytest.mark.parametrize(
        ("patch", "spacing"),
        [
            ((128, 128, 16), (1.0, 1.0, 1.0)),
            ((128, 128, 6), (1.0, 1.0, 0.4)),
            ((128, 128, 8), (1.5, 1.5, 3.0)),
        ],
    )
    def test_few_slices_do_not_stop_convolutions_along_the_other_axes(self, patch, spacing):
        """Short axes are not downsampled, so the long ones become the coarse ones."""
        strides = choose_strides(patch, spacing)
        assert {row[:2] for row in choose_kernels(strides, spacing, patch)} == {(3, 3)}


class TestPatch:
    @pytest.mark.parametrize("shape", [(35, 51, 37), (70, 33, 19), (565, 584), (20, 20, 3)])
    @pytest.mark.parametrize("accelerated", [True, False])
    def test_sides_are_multiples_of_the_strides(self, shape, accelerated):
        plan = plan_for(fingerprint(shape), resources=Resources(2**34, accelerated))
        for axis, side in enumerate(plan.patch):
            assert side % math.prod(row[axis] for row in plan.strides) == 0
        assert len(plan.kernels) == len(plan.strides) + 1

    @pytest.mark.parametrize(("sides", "side"), [((30, 40, 64), 40), ((16, 40, 40), 32)])
    def test_patch_is_the_median_image_or_twice_the_smallest_one(self, sides, side):
        assert plan_for(*[fingerprint((one,) * 3) for one in sides]).patch == (side,) * 3

    def test_large_image_is_shrunk_along_its_longest_sides(self):
        plan = plan_for(fingerprint((400, 400, 40)))
        assert math.prod(plan.patch) <= 1.5 * 48**3
        assert plan.patch[0] == plan.patch[1]
        assert plan.patch[2] == 40
        first, second, third = shrink_box((128, 128, 24), 48**3)
        assert first == second < 128
        assert third == 24

    @pytest.mark.parametrize(
        ("shape", "resources", "voxels", "crops", "width", "lr"),
        [
            ((300, 300, 300), CPU, 48**3, 2, 8, 0.01),
            ((300, 300, 300), GPU, 64**3, 4, 32, 0.0025),
            ((900, 900), CPU, 192**2, 2, 16, 0.01),
            ((900, 900), GPU, 384**2, 4, 32, 0.005),
        ],
    )
    def test_accelerator_gets_larger_crops_and_a_wider_network(
        self, shape, resources, voxels, crops, width, lr
    ):
        plan = plan_for(fingerprint(shape), resources=resources)
        assert 0.8 * voxels <= math.prod(plan.patch) <= 1.2 * voxels
        assert (plan.batch, plan.width, plan.lr) == (crops, width, pytest.approx(lr))

    def test_less_memory_reduces_the_batch_before_the_patch(self):
        plans = [
            fit_to_memory([(200,) * 3], (1.0,) * 3, 8, Resources(2**power, accelerated=True))
            for power in range(36, 24, -1)
        ]
        batches = [batch for _, _, batch in plans]
        voxels = [math.prod(patch) for patch, _, _ in plans]
        assert voxels == sorted(voxels, reverse=True)
        first_small_batch = next(n for n, batch in enumerate(batches) if batch < batches[0])
        first_small_patch = next(n for n, count in enumerate(voxels) if count < voxels[0])
        assert first_small_batch < first_small_patch
        assert min(batches) == 1

    @pytest.mark.parametrize("smallest", [9, 11, 13, 17, 21, 33])
    def test_derived_plan_accepts_its_smallest_image(self, smallest):
        """A side rounded up to a multiple of its strides must not exceed twice the image."""
        prints = [fingerprint((40, 40, smallest)), *[fingerprint((40, 40, 40))] * 2]
        assert padded_cases(plan_for(*prints), prints) == {}

    @pytest.mark.parametrize(("others", "thin"), [(199, 1), (199, 15), (4, 1)])
    def test_a_few_thin_scans_do_not_shrink_the_patch(self, others, thin):
        usual = [fingerprint((40, 40, 40))] * others
        small = [fingerprint((40, 40, 6), case=f"thin{number}") for number in range(thin)]
        plan = plan_for(*usual, *small)
        assert plan.patch == plan_for(*usual).patch
        assert padded_cases(plan, [*usual, *small]) == {item.case: "40x40x6" for item in small}

    def test_many_thin_scans_do(self):
        prints = [*[fingerprint((40, 40, 40))] * 6, *[fingerprint((40, 40, 6))] * 4]
        plan = plan_for(*prints)
        assert plan.patch[2] <= 12
        assert padded_cases(plan, prints) == {}

    def test_image_smaller_than_half_the_patch_is_rejected(self):
        plan = plan_for(fingerprint((40, 40, 40)))
        expected = (
            r"case tiny: the image is smaller than half the patch: 40x40x10.*at most 40x40x20"
        )
        with pytest.raises(InputError, match=expected):
            padded_cases(plan, [fingerprint((40, 40, 10), case="tiny")])

    def test_image_too_large_after_resampling_is_rejected_with_the_limit(self):
        """One header of 100 mm among those of 1 mm."""
        plan = plan_for(*[fingerprint((40, 40, 40))] * 3)
        wrong = fingerprint((40, 40, 40), spacing=(100.0, 100.0, 100.0), case="wrong")
        expected = r"case wrong, .* 100 x 100 x 100 to .*64,000,000,000 values, but the limit is 1,"
        with pytest.raises(InputError, match=expected):
            check_sizes(plan, [wrong])

    def test_almost_no_memory_still_gives_a_plan(self):
        plan = plan_for(fingerprint((100, 100, 100)), resources=Resources(1, accelerated=False))
        assert plan.batch == 1
        assert math.prod(plan.patch) <= 16**3


class TestGrid:
    def test_plan_refers_to_reoriented_images_if_every_orientation_is_known(self):
        known, unknown = fingerprint((6, 64, 64), orientation="SRA"), fingerprint((6, 64, 64))
        plan = plan_for(known)
        assert (plan.orientation, plan.patch[2]) == ("RAS", 6)
        plan = plan_for(known, unknown)
        assert (plan.orientation, plan.patch[0]) == (None, 6)
        assert plan_for(fingerprint((64, 64))).orientation is None

    @pytest.mark.parametrize(("resources", "least", "most"), [(CPU, 1.4, 1.4), (GPU, 1.1, 1.3)])
    def test_large_organ_gets_a_coarser_grid_and_a_vessel_does_not(self, resources, least, most):
        """The sizes are those of PROMISE12, with axes stored in another order."""
        scan = {"shape": (23, 256, 256), "spacing": (3.0, 0.7, 0.7), "orientation": "SRA"}
        plan = plan_for(fingerprint(**scan, chords={1: (27.0, 40.0, 30.0)}), resources=resources)
        assert plan.spacing == (plan.spacing[0], plan.spacing[0], 3.0)
        assert least <= plan.spacing[0] <= most
        assert "(0.7 x 0.7 x 3), coarsened" in plan.reasons["spacing"]
        vessel = plan_for(fingerprint(**scan, chords={1: (27.0, 2.0, 2.0)}), resources=resources)
        assert vessel.spacing == (0.7, 0.7, 3.0)
        assert "coarsened" not in vessel.reasons["spacing"]

    def test_spacing_is_the_median(self):
        prints = [fingerprint((9, 9), spacing=(s, 2 * s)) for s in (0.5, 0.7, 3.0)]
        assert median_spacing(prints) == (0.7, 1.4)


class TestNormalization:
    def kind(self, name: str = "channel-0", **changes: object) -> str:
        given = {"foreground": (CT,), **changes}
        return choose_normalization(name, 0, [fingerprint((9, 9, 9), **given)]).kind

    def test_ct_is_recognized_by_its_name_or_by_hounsfield_units(self):
        for name in ("CT", "ct", "low-dose CT", "CT_portal"):
            assert self.kind(name) == "ct"
        for name in ("T2", "contrast", "active"):
            assert self.kind(name) == "zscore"
        assert self.kind(channel=statistics(low=-1000)) == "ct"

    def test_ct_is_clipped_to_percentiles_of_the_foreground(self):
        """For -100 to 100 the 0.5th and 99.5th percentiles are -99 and 99, and the mean is 0."""
        rule = choose_normalization("CT", 0, [fingerprint((9, 9, 9), foreground=(CT,))])
        assert (rule.low, rule.high) == (pytest.approx(-99), pytest.approx(99))
        assert rule.mean == pytest.approx(0, abs=1e-6)
        assert rule.std == pytest.approx(58.0, abs=0.1)

    def test_every_channel_has_its_own_statistics(self):
        one = fingerprint((9, 9, 9), foreground=((7.0,) * 100, CT))
        both = replace(one, channels=(statistics(zeros=0.6), statistics(low=-1000)))
        first, second = (choose_normalization("", index, [both]) for index in (0, 1))
        assert (first.kind, second.kind) == ("zscore-nonzero", "ct")
        assert second.low == pytest.approx(-99)

    def test_ct_statistics_are_those_of_the_clipped_foreground(self):
        """Metal in 1 of 401 voxels is clipped to 1 before the mean and the deviation are taken."""
        foreground = ((0.0,) * 200 + (1.0,) * 200 + (30_000.0,),)
        rule = choose_normalization("CT", 0, [fingerprint((9, 9, 9), foreground=foreground)])
        assert (rule.low, rule.high) == (0, 1)
        assert (rule.mean, rule.std) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.5, abs=0.01))

    @pytest.mark.parametrize("foreground", [(), ((),), ((5.0,) * 3,), ((5.0,) * 50,)])
    def test_ct_without_enough_foreground_is_normalized_by_case(self, foreground):
        assert self.kind("CT", foreground=foreground) == "zscore"

    def test_image_with_many_zeros_is_normalized_over_the_others(self):
        assert self.kind("T1", channel=statistics(zeros=0.6)) == "zscore-nonzero"

    def test_one_image_with_many_zeros_does_not_decide(self):
        prints = [fingerprint((9, 9), channel=statistics(zeros=share)) for share in (0, 0.1, 0.6)]
        assert choose_normalization("T1", 0, prints).kind == "zscore"

    def test_channels_keep_their_names(self):
        found = inspection(fingerprint((16, 16, 16)), channels=("T1w",))
        assert derive_plan(found, CPU).channels == ("T1w",)
        assert plan_for(fingerprint((16, 16, 16))).channels == ("channel-0",)


def test_every_choice_has_a_reason():
    chosen = {"spacing", "patch", "strides", "kernels", "width", "lr", "batch", "normalization"}
    assert set(plan_for(fingerprint((64, 64, 64))).reasons) == chosen
