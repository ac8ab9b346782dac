"""A plan derived from the data and from the memory at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segpl.data.geometry import resampled_shape
from segpl.data.inspect import Fingerprint, Inspection
from segpl.data.plan import PAPER_LR, Normalization, Plan
from segpl.data.spacing import (
    FURTHEST,
    ROOM,
    SMALLEST_CHORD,
    coarsened,
    median_shape,
    target_spacing,
    turned,
)
from segpl.errors import InputError

SMALLEST_SIDE = 4  # voxels that the deepest level keeps on an axis that was halved
DEEPEST = 4  # halvings at most
COARSE = 2.0  # an axis this many times coarser than the finest is not halved until they are alike
# for each channel of the first encoder; measured: 59 (3D), 82 (2D) are kept for the backward pass
BYTES_PER_VOXEL = 100
CROPS_PER_LABELED = 3  # crops in memory for each labeled one, at the default ratio
ORIENTATION = "RAS"
PAPER_WIDTH = {2: 16, 3: 8}  # by spatial axes
WIDTH = 32  # with an accelerator
# by spatial axes and whether there is an accelerator; measured: two labeled and four other crops
# of 64**3 voxels at width 32 take 30 ms of a step on an H200, which is minutes for a training
VOXELS = {(2, False): 192**2, (3, False): 48**3, (2, True): 384**2, (3, True): 64**3}
CROPS = {(2, False): 2, (3, False): 2, (2, True): 4, (3, True): 4}
SLICES = {False: 4, True: 8}  # labeled ones in a step, where a patch is a slice


@dataclass(frozen=True, slots=True)
class Resources:
    """The machine, as far as a plan depends on it."""

    memory: int  # bytes free for training
    accelerated: bool


def derive_plan(inspection: Inspection, resources: Resources, *, slices: bool = True) -> Plan:
    """Choose everything from images, and from labels that were looked at.

    Without `slices` a patch is never a single one.
    """
    dims = inspection.dims
    prints = list(inspection.fingerprints.values())
    orientation = ORIENTATION if dims == 3 and all(p.orientation for p in prints) else None
    prints = [turned(p, orientation) for p in prints]
    usual = target_spacing(prints)
    # of the images as they are: slices that lie far apart do so on a coarser grid too
    flat = axis_of_slices(usual) if slices else None
    voxels = VOXELS[dims if flat is None else 2, resources.accelerated]
    spacing = coarsened(prints, usual, voxels, flat=flat)
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    width = WIDTH if resources.accelerated else PAPER_WIDTH[dims]
    patch, strides, batch = fit_to_memory(shapes, spacing, width, resources, flat=flat)
    names = inspection.dataset.channels
    channels = tuple(
        names[index] if index < len(names) else f"channel-{index}"
        for index in range(len(prints[0].channels))
    )
    normalization = tuple(
        choose_normalization(name, index, prints) for index, name in enumerate(channels)
    )
    plan = Plan(
        dims=dims,
        channels=channels,
        classes=inspection.classes,
        ignore=inspection.dataset.ignore,
        orientation=orientation,
        spacing=spacing,
        normalization=normalization,
        patch=patch,
        strides=strides,
        kernels=kernels_for(strides, spacing, patch),
        width=width,
        batch=batch,
        lr=PAPER_LR * PAPER_WIDTH[dims] / width,
        reasons=reasons_for(prints, spacing, channels, normalization, resources, flat),
    )
    plan.check("the derived plan")
    return plan


def reasons_for(
    prints: Sequence[Fingerprint],
    spacing: Sequence[float],
    channels: Sequence[str],
    normalization: Sequence[Normalization],
    resources: Resources,
    flat: int | None,
) -> dict[str, str]:
    """Why each part of the plan is what it is, in words for its reader."""
    dims, usual = len(spacing), target_spacing(prints)
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    smallest = "x".join(map(str, np.min(shapes, axis=0)))
    middle = "x".join(map(str, median_shape(prints, spacing)))
    patch, unit, crops = "", "the median image", CROPS[dims, resources.accelerated]
    if flat is not None:
        crops, unit = SLICES[resources.accelerated], "a slice of the median image"
        patch = (
            f"one slice: they lie {usual[flat] / min(usual):.3g} times as far apart as the voxels "
            "within them, and at most the deepest level of a network would look across them; "
        )
    distances = f"median of {len(prints)} training images"
    if usual != tuple(spacing):
        distances += (
            f", {' x '.join(f'{step:g}' for step in usual)}, made coarser because {unit} of "
            f"{'x'.join(map(str, median_shape(prints, usual)))} voxels is over {ROOM:g} times "
            f"what a patch may hold; up to {FURTHEST:g} times, and the thinnest class keeps "
            f"{SMALLEST_CHORD:g} voxels along each axis"
        )
    return {
        "spacing": distances,
        "patch": f"{patch}median image of {middle} voxels after resampling, cut to what memory "
        f"and time allow and to twice the smallest image ({smallest}), each side a multiple of "
        "its strides",
        "strides": f"an axis is halved while {SMALLEST_SIDE} voxels are left and it is not "
        f"over {COARSE:g} times coarser than the finest",
        "kernels": f"1 along an axis while it is over {COARSE:g} times coarser than the "
        "finest or the patch has one voxel there, and 3 from then on",
        "width": f"{WIDTH} with an accelerator, without one the paper's: "
        f"{PAPER_WIDTH[3]} in 3D, {PAPER_WIDTH[2]} in 2D",
        "lr": f"the paper's {PAPER_LR:g} for its width of {PAPER_WIDTH[dims]}, and less as "
        "the network is wider",
        "batch": f"up to {crops}, with {resources.memory / 2**30:.1f} GiB at hand",
        "normalization": ", ".join(
            f"{name}: {rule.kind}" for name, rule in zip(channels, normalization, strict=True)
        ),
    }


def strides_for(
    patch: Sequence[int], spacing: Sequence[float], *, deepest: int = DEEPEST
) -> tuple[tuple[int, ...], ...]:
    """Halve each axis while it stays thick enough and no axis runs ahead of a coarser one."""
    sides, steps = list(patch), list(spacing)
    rows: list[tuple[int, ...]] = []
    while len(rows) < deepest:
        thick = [axis for axis, side in enumerate(sides) if side // 2 >= SMALLEST_SIDE]
        if not thick:
            break
        finest = min(steps[axis] for axis in thick)
        row = tuple(
            2 if axis in thick and steps[axis] <= COARSE * finest * 1.001 else 1
            for axis in range(len(sides))
        )
        sides = [math.ceil(side / stride) for side, stride in zip(sides, row, strict=True)]
        steps = [step * stride for step, stride in zip(steps, row, strict=True)]
        rows.append(row)
    return tuple(rows)


def kernels_for(
    strides: Sequence[Sequence[int]], spacing: Sequence[float], patch: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Slices that lie far apart are not mixed until the others are as coarse [Isensee2021].

    An axis that is halved, or was mixed before, is mixed: it is coarse only beside an axis that is
    too thin to be halved. An axis of one voxel has nothing to mix.
    """
    wide = [axis for axis, side in enumerate(patch) if side > 1]
    steps, mixed = list(spacing), set[int]()
    rows: list[tuple[int, ...]] = []
    for stride in [*strides, [1] * len(steps)]:
        finest = min((steps[axis] for axis in wide), default=0.0)
        mixed |= {
            axis for axis in wide if steps[axis] <= COARSE * finest * 1.001 or stride[axis] > 1
        }
        rows.append(tuple(3 if axis in mixed else 1 for axis in range(len(steps))))
        steps = [step * factor for step, factor in zip(steps, stride, strict=True)]
    return tuple(rows)


def axis_of_slices(spacing: Sequence[float]) -> int | None:
    """The axis whose slices lie so far apart that a patch is better one of them.

    Only the deepest level of a network would mix them, or none, were there voxels enough for all
    halvings: by the spacing, and not because an axis is short of voxels. None in 2D, and where two
    axes are like that, since what is left would be a line.
    """
    if len(spacing) < 3:
        return None
    ample = [SMALLEST_SIDE * 2**DEEPEST] * len(spacing)
    rows = kernels_for(strides_for(ample, spacing), spacing, ample)
    apart = [axis for axis in range(len(spacing)) if sum(row[axis] > 1 for row in rows) <= 1]
    return apart[0] if len(apart) == 1 else None


def fit_to_memory(
    shapes: Sequence[tuple[int, ...]],
    spacing: Sequence[float],
    width: int,
    resources: Resources,
    *,
    flat: int | None = None,
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Patch, strides and labeled crops in a step; one slice where an axis is `flat`."""
    dims = len(spacing)
    middle = np.median(shapes, axis=0)
    # an image below half the patch would be mostly padding
    longest = [2 * min(shape[axis] for shape in shapes) for axis in range(dims)]
    limit = [min(int(side), most) for side, most in zip(middle, longest, strict=True)]
    voxels, most = VOXELS[dims, resources.accelerated], CROPS[dims, resources.accelerated]
    if flat is not None:
        limit[flat] = 1
        voxels, most = VOXELS[2, resources.accelerated], SLICES[resources.accelerated]
    while True:
        patch = cut(limit, voxels)
        strides = strides_for(patch, spacing)
        factors = [math.prod(row[axis] for row in strides) for axis in range(dims)]
        patch = tuple(map(rounded, patch, factors, longest))
        needed = math.prod(patch) * width * BYTES_PER_VOXEL * CROPS_PER_LABELED
        batch = min(most, int(0.5 * resources.memory / needed))
        if batch >= 1 or voxels <= SMALLEST_SIDE**dims:
            return patch, strides, max(batch, 1)
        voxels //= 2


def rounded(side: int, factor: int, longest: int) -> int:
    """A multiple of `factor`: the next above `side`, unless that is longer than `longest`."""
    above = math.ceil(side / factor) * factor
    return above if above <= longest else max(side // factor, 1) * factor


def cut(sides: Sequence[int], voxels: int) -> tuple[int, ...]:
    """Shorten the longest sides, equal ones alike, until the box holds at most `voxels`."""
    box = [max(1, side) for side in sides]
    while math.prod(box) > voxels:
        longest = max(box)
        shorter = max(1, min(longest - 1, int(longest * 0.95)))
        box = [shorter if side == longest else side for side in box]
    return tuple(box)


def choose_normalization(name: str, channel: int, prints: Sequence[Fingerprint]) -> Normalization:
    """CT by the dataset's foreground, anything else by each case itself."""
    statistics = [p.channels[channel] for p in prints]
    looks_like_ct = np.median([s.low for s in statistics]) < -500
    if "ct" in name.lower().replace("-", " ").replace("_", " ").split() or looks_like_ct:
        values = np.array(
            [value for p in prints if p.foreground for value in p.foreground[channel]]
        )
        if len(values) >= 10:
            low, high = np.percentile(values, [0.5, 99.5])
            clipped = values.clip(low, high)
            if clipped.std() > 0:
                return Normalization(
                    "ct", float(low), float(high), float(clipped.mean()), float(clipped.std())
                )
    if np.median([s.zeros for s in statistics]) > 1 / 3:
        return Normalization("zscore-nonzero")
    return Normalization("zscore")


def check_sizes(plan: Plan, prints: Sequence[Fingerprint]) -> None:
    """Refuse images that would be mostly padding."""
    for fingerprint in prints:
        stored = turned(fingerprint, plan.orientation)
        shape = resampled_shape(stored.shape, stored.spacing, plan.spacing)
        for axis, (size, side) in enumerate(zip(shape, plan.patch, strict=True)):
            if 2 * size < side:
                raise InputError(
                    f"case {fingerprint.case}: the image is smaller than half the patch: "
                    f"{'x'.join(map(str, shape))} voxels after resampling against a patch of "
                    f"{'x'.join(map(str, plan.patch))} (axis {axis}). "
                    f"Use {2 * size} or less there in plan.json, or leave the case out."
                )
