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
# for each channel of the first encoder; measured: 53 (3D), 76 (2D) are kept for the backward pass
BYTES_PER_VOXEL = 100
CROPS_PER_LABELED = 3  # crops in memory for each labelled one, at the default ratio
ORIENTATION = "RAS"
PAPER_WIDTH = {2: 16, 3: 8}  # by spatial axes
WIDTH = 32  # with an accelerator
# by spatial axes and whether there is an accelerator; measured: a step of two labelled and four
# other crops of 64**3 voxels at width 32 takes 30 ms on an H200, which is minutes for a training
VOXELS = {(2, False): 192**2, (3, False): 48**3, (2, True): 512**2, (3, True): 64**3}
CROPS = {(2, False): 2, (3, False): 2, (2, True): 4, (3, True): 2}


@dataclass(frozen=True, slots=True)
class Resources:
    """The machine, as far as a plan depends on it."""

    memory: int  # bytes free for training
    accelerated: bool


def derive_plan(inspection: Inspection, resources: Resources) -> Plan:
    """Choose everything from images, and from labels that were looked at."""
    dims = inspection.dims
    prints = list(inspection.fingerprints.values())
    orientation = ORIENTATION if dims == 3 and all(p.orientation for p in prints) else None
    prints = [turned(p, orientation) for p in prints]
    voxels = VOXELS[dims, resources.accelerated]
    spacing = coarsened(prints, target_spacing(prints), voxels)
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    width = WIDTH if resources.accelerated else PAPER_WIDTH[dims]
    patch, strides, batch = fit_to_memory(shapes, spacing, width, resources)
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
        kernels=kernels_for(strides, spacing),
        width=width,
        batch=batch,
        lr=PAPER_LR * PAPER_WIDTH[dims] / width,
        reasons=reasons_for(prints, spacing, channels, normalization, resources),
    )
    plan.check("the derived plan")
    return plan


def reasons_for(
    prints: Sequence[Fingerprint],
    spacing: Sequence[float],
    channels: Sequence[str],
    normalization: Sequence[Normalization],
    resources: Resources,
) -> dict[str, str]:
    """Why each part of the plan is what it is, in words for its reader."""
    dims, usual = len(spacing), target_spacing(prints)
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    smallest = "x".join(map(str, np.min(shapes, axis=0)))
    distances = f"median of {len(prints)} training images"
    if usual != tuple(spacing):
        distances += (
            f", {' x '.join(f'{step:g}' for step in usual)}, made coarser because the median image "
            f"of {'x'.join(map(str, median_shape(prints, usual)))} voxels is over {ROOM:g} times "
            f"what a patch may hold; up to {FURTHEST:g} times, and the thinnest class keeps "
            f"{SMALLEST_CHORD:g} voxels along each axis"
        )
    return {
        "spacing": distances,
        "patch": f"median image of {'x'.join(map(str, median_shape(prints, spacing)))} voxels "
        "after resampling, cut to what memory and time allow and to twice the smallest image "
        f"({smallest}), each side a multiple of its strides",
        "strides": f"an axis is halved while {SMALLEST_SIDE} voxels are left and it is not "
        f"over {COARSE:g} times coarser than the finest",
        "kernels": f"1 along an axis while it is over {COARSE:g} times coarser than the "
        "finest, and 3 from then on",
        "width": f"{WIDTH} with an accelerator, without one the paper's: "
        f"{PAPER_WIDTH[3]} in 3D, {PAPER_WIDTH[2]} in 2D",
        "lr": f"the paper's {PAPER_LR:g} for its width of {PAPER_WIDTH[dims]}, and less as "
        "the network is wider",
        "batch": f"{resources.memory / 2**30:.1f} GiB at hand",
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
    strides: Sequence[Sequence[int]], spacing: Sequence[float]
) -> tuple[tuple[int, ...], ...]:
    """Slices that lie far apart are not mixed until the others are as coarse [Isensee2021].

    An axis that is halved, or was mixed before, is mixed: it is coarse only beside an axis that is
    too thin to be halved.
    """
    steps, row = list(spacing), (1,) * len(spacing)
    rows: list[tuple[int, ...]] = []
    for stride in [*strides, [1] * len(steps)]:
        coarsest = COARSE * min(steps) * 1.001
        row = tuple(
            3 if step <= coarsest or factor > 1 or before == 3 else 1
            for step, factor, before in zip(steps, stride, row, strict=True)
        )
        rows.append(row)
        steps = [step * factor for step, factor in zip(steps, stride, strict=True)]
    return tuple(rows)


def fit_to_memory(
    shapes: Sequence[tuple[int, ...]],
    spacing: Sequence[float],
    width: int,
    resources: Resources,
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Patch, strides and labelled crops in a step."""
    dims = len(spacing)
    middle = np.median(shapes, axis=0)
    # an image below half the patch would be mostly padding
    longest = [2 * min(shape[axis] for shape in shapes) for axis in range(dims)]
    limit = [min(int(side), most) for side, most in zip(middle, longest, strict=True)]
    voxels = VOXELS[dims, resources.accelerated]
    most = CROPS[dims, resources.accelerated]
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
    """Shorten the longest side until the box holds at most `voxels`."""
    box = [max(1, side) for side in sides]
    while math.prod(box) > voxels:
        longest = box.index(max(box))
        box[longest] = max(1, min(box[longest] - 1, int(box[longest] * 0.95)))
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
