"""Derive a plan from the data and the available memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segpl.data.fingerprint import Fingerprint
from segpl.data.geometry import resampled_shape
from segpl.data.inspect import Inspection
from segpl.data.limits import require_resampled
from segpl.data.plan import PAPER_LR, Normalization, Plan
from segpl.data.spacing import (
    MOST_COARSENING,
    PATCHES_PER_IMAGE,
    SMALLEST_CHORD,
    coarsen,
    median_shape,
    median_spacing,
    reorient_fingerprint,
)
from segpl.errors import InputError, count_noun, in_voxels

SMALLEST_SIDE = 4  # voxels that the deepest level keeps along a downsampled axis
DEEPEST = 4  # maximum number of downsampling steps
COARSE = 2.0  # an axis this many times coarser than the finest is not downsampled yet
# per channel of the first encoder; measured for the backward pass: 59 in 3D, 82 in 2D
BYTES_PER_VOXEL = 100
CROPS_PER_LABELED = 3  # crops in memory per labeled crop, at the default ratio
ORIENTATION = "RAS"
PAPER_WIDTH = {2: 16, 3: 8}  # by spatial axes
WIDTH = 32  # with an accelerator
# by spatial axes and accelerator; on an H200 a step with 2 labeled and 4 unlabeled crops of 64**3
# voxels took 30 ms at width 32, so a training run with twice as many crops takes minutes
VOXELS = {(2, False): 192**2, (3, False): 48**3, (2, True): 384**2, (3, True): 64**3}
CROPS = {(2, False): 2, (3, False): 2, (2, True): 4, (3, True): 4}
OUTLIERS = 0.1  # fraction of images that may be much smaller than the others
FEWEST_FOR_OUTLIERS = 5  # images without which none is an outlier
CT_LOW = -500  # a channel whose 0.5th percentile is below this contains Hounsfield units


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of the machine that the plan depends on."""

    memory: int  # bytes available for training
    accelerated: bool


def derive_plan(inspection: Inspection, resources: Resources) -> Plan:
    """Choose every value from the images and from the labels that were read."""
    dims = inspection.dims
    prints = list(inspection.fingerprints.values())
    orientation = ORIENTATION if dims == 3 and all(p.orientation for p in prints) else None
    prints = [reorient_fingerprint(p, orientation) for p in prints]
    spacing = coarsen(prints, median_spacing(prints), VOXELS[dims, resources.accelerated])
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
        kernels=choose_kernels(strides, spacing, patch),
        width=width,
        batch=batch,
        lr=PAPER_LR * PAPER_WIDTH[dims] / width,
        reasons=explain(prints, spacing, channels, normalization, resources),
    )
    plan.check("the derived plan")
    return plan


def explain(
    prints: Sequence[Fingerprint],
    spacing: Sequence[float],
    channels: Sequence[str],
    normalization: Sequence[Normalization],
    resources: Resources,
) -> dict[str, str]:
    """Why each value of the plan was chosen, in words."""
    dims, stored = len(spacing), median_spacing(prints)
    smallest = usual_minimum([resampled_shape(p.shape, p.spacing, spacing) for p in prints])
    why_spacing = f"median of {count_noun(len(prints), 'training image')}"
    if stored != tuple(spacing):
        why_spacing += (
            f" ({' x '.join(f'{step:g}' for step in stored)}), coarsened because the median image "
            f"of {in_voxels(by_sides(median_shape(prints, stored)), dims)} exceeds "
            f"{PATCHES_PER_IMAGE:g} patches; at most {MOST_COARSENING:g} times, and the thinnest "
            f"class keeps {in_voxels(f'{SMALLEST_CHORD:g}', dims)} along each axis"
        )
    return {
        "spacing": why_spacing,
        "patch": "median image after resampling "
        f"({by_sides(median_shape(prints, spacing))}), limited by memory, a fixed number of voxels "
        f"and twice the smallest image ({by_sides(smallest)}, without outliers, which are padded); "
        "each side is a multiple of its strides",
        "strides": f"an axis is downsampled while {in_voxels(SMALLEST_SIDE, dims)} remain and it "
        f"is at most {COARSE:g} times as coarse as the finest axis",
        "kernels": f"1 along an axis more than {COARSE:g} times as coarse as the finest, or with "
        "a side of 1 in the patch; otherwise 3",
        "width": f"{WIDTH} with an accelerator, otherwise the paper's {PAPER_WIDTH[3]} (3D) or "
        f"{PAPER_WIDTH[2]} (2D)",
        "lr": f"the paper's {PAPER_LR:g} at width {PAPER_WIDTH[dims]}, lower for wider networks",
        "batch": f"at most {CROPS[dims, resources.accelerated]}, with "
        f"{resources.memory / 2**30:.1f} GiB of memory",
        "normalization": ", ".join(
            f"{name}: {rule.kind}" for name, rule in zip(channels, normalization, strict=True)
        ),
    }


def by_sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def choose_strides(patch: Sequence[int], spacing: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Downsample each axis while it is long enough and not much coarser than the finest."""
    sides, steps = list(patch), list(spacing)
    rows: list[tuple[int, ...]] = []
    while len(rows) < DEEPEST:
        long = [axis for axis, side in enumerate(sides) if side // 2 >= SMALLEST_SIDE]
        if not long:
            break
        finest = min(steps[axis] for axis in long)
        row = tuple(
            2 if axis in long and steps[axis] <= COARSE * finest * 1.001 else 1
            for axis in range(len(sides))
        )
        sides = [math.ceil(side / stride) for side, stride in zip(sides, row, strict=True)]
        steps = [step * stride for step, stride in zip(steps, row, strict=True)]
        rows.append(row)
    return tuple(rows)


def choose_kernels(
    strides: Sequence[Sequence[int]], spacing: Sequence[float], patch: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Convolve across distant slices only once the other axes are as coarse [Isensee2021].

    An axis that is downsampled, or was convolved at a finer level, is always convolved. An axis
    with one voxel never is.
    """
    wide = [axis for axis, side in enumerate(patch) if side > 1]
    steps, convolved = list(spacing), set[int]()
    rows: list[tuple[int, ...]] = []
    for stride in [*strides, [1] * len(steps)]:
        finest = min((steps[axis] for axis in wide), default=0.0)
        convolved |= {
            axis for axis in wide if steps[axis] <= COARSE * finest * 1.001 or stride[axis] > 1
        }
        rows.append(tuple(3 if axis in convolved else 1 for axis in range(len(steps))))
        steps = [step * factor for step, factor in zip(steps, stride, strict=True)]
    return tuple(rows)


def fit_to_memory(
    shapes: Sequence[tuple[int, ...]], spacing: Sequence[float], width: int, resources: Resources
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Patch, strides and labeled crops per step."""
    dims = len(spacing)
    # an image smaller than half the patch would be mostly padding
    longest = [2 * side for side in usual_minimum(shapes)]
    middle = np.median(shapes, axis=0)
    limit = [min(int(side), most) for side, most in zip(middle, longest, strict=True)]
    voxels, most = VOXELS[dims, resources.accelerated], CROPS[dims, resources.accelerated]

    while True:
        patch = shrink_box(limit, voxels)
        strides = choose_strides(patch, spacing)
        patch = tuple(map(round_to_multiple, patch, total_strides(strides, dims), longest))
        batch = min(most, crops_in_memory(patch, width, resources.memory))
        if batch >= 1 or voxels <= SMALLEST_SIDE**dims:
            return patch, strides, max(batch, 1)
        voxels //= 2


def total_strides(strides: Sequence[Sequence[int]], dims: int) -> list[int]:
    """The factor by which the network downsamples each axis; sides must be multiples of it."""
    return [math.prod(row[axis] for row in strides) for axis in range(dims)]


def crops_in_memory(
    patch: Sequence[int], width: int, memory: int, *, per_labeled: int = CROPS_PER_LABELED
) -> int:
    """Labeled crops per step that fit into half of the memory; volumes need the rest."""
    return int(0.5 * memory / (math.prod(patch) * width * BYTES_PER_VOXEL * per_labeled))


def fitting_patch(plan: Plan, width: int, memory: int, *, per_labeled: int) -> tuple[int, ...]:
    """The patch of a plan, shrunk until one labeled crop per step fits; multiples of its strides.

    Empty if no patch fits.
    """
    factors = total_strides(plan.strides, plan.dims)
    voxels = math.prod(plan.patch)
    while voxels >= 1:
        box = shrink_box(plan.patch, voxels)
        patch = tuple(
            max(side // factor, 1) * factor for side, factor in zip(box, factors, strict=True)
        )
        if crops_in_memory(patch, width, memory, per_labeled=per_labeled) >= 1:
            return patch
        voxels = int(0.9 * voxels)
    return ()


def usual_minimum(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The smallest side of each axis; a few images below half of the median do not count."""
    sides = []
    for along in zip(*shapes, strict=True):
        middle = np.median(along)
        usual = [side for side in along if 2 * side >= middle]
        sides.append(min(usual if are_few(len(along) - len(usual), len(along)) else along))
    return tuple(sides)


def are_few(count: int, total: int) -> bool:
    """Whether `count` of `total` images are outliers that the plan need not fit."""
    return total >= FEWEST_FOR_OUTLIERS and count <= max(1, OUTLIERS * total)


def round_to_multiple(side: int, factor: int, longest: int) -> int:
    """Round `side` up to a multiple of `factor`, or down if that would exceed `longest`."""
    above = math.ceil(side / factor) * factor
    return above if above <= longest else max(side // factor, 1) * factor


def shrink_box(sides: Sequence[int], voxels: int) -> tuple[int, ...]:
    """Shorten the longest sides, equal sides together, until the box has at most `voxels`."""
    box = [max(1, side) for side in sides]
    while math.prod(box) > voxels:
        longest = max(box)
        shorter = max(1, min(longest - 1, int(longest * 0.95)))
        box = [shorter if side == longest else side for side in box]
    return tuple(box)


def choose_normalization(name: str, channel: int, prints: Sequence[Fingerprint]) -> Normalization:
    """Normalize CT by the foreground of the dataset, everything else by case."""
    statistics = [p.channels[channel] for p in prints]
    looks_like_ct = np.median([s.low for s in statistics]) < CT_LOW
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
    """Reject images that are too large after resampling."""
    for item in (reorient_fingerprint(one, plan.orientation) for one in prints):
        shape = resampled_shape(item.shape, item.spacing, plan.spacing)
        sizes = (*shape, len(plan.channels))
        require_resampled(f"case {item.case}", item.spacing, plan.spacing, sizes)


def padded_cases(plan: Plan, prints: Sequence[Fingerprint]) -> dict[str, str]:
    """Size after resampling of the cases smaller than half the patch, which are mostly padding.

    Raises if they are more than a few.
    """
    found: dict[str, tuple[int, ...]] = {}
    for item in (reorient_fingerprint(one, plan.orientation) for one in prints):
        shape = resampled_shape(item.shape, item.spacing, plan.spacing)
        if any(2 * size < side for size, side in zip(shape, plan.patch, strict=True)):
            found[item.case] = shape
    if found and not are_few(len(found), len(prints)):
        case, shape = next(iter(found.items()))
        smallest = [min(sizes) for sizes in zip(*found.values(), strict=True)]
        limit = [min(2 * size, side) for size, side in zip(smallest, plan.patch, strict=True)]
        raise InputError(
            f"case {case}: the image is smaller than half the patch: {by_sides(shape)} "
            f"after resampling, but the patch has {by_sides(plan.patch)}. Use a patch of at most "
            f"{by_sides(limit)} in the plan, or leave the case out."
        )
    return {case: by_sides(shape) for case, shape in found.items()}
