"""The plan of a training run: how images are prepared and the network is built.

It is derived from the data, written as `plan.json`, and may be edited by hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from segpl.data.limits import MOST_VALUES, SPACING_RANGE
from segpl.errors import InputError, count_noun
from segpl.files import write_text
from segpl.records import read_edited_record, readable_json

PAPER_LR = 0.01  # learning rate of networks of the paper's width
RIGHT = {"left": "right", "l": "r", "lt": "rt", "lh": "rh"}  # names of the two sides
LEFT = r"left|\b(?:l|lt|lh)\b"
MOST_WIDTH, MOST_LEVELS, MOST_KERNEL = 1024, 10, 11
BODY_AXES = ("RL", "AP", "SI")  # the two directions of each axis of the body


@dataclass(frozen=True, slots=True)
class Normalization:
    """How the intensities of one channel are normalized.

    kind `zscore`: by the mean and standard deviation of the case.
    kind `zscore-nonzero`: the same over nonzero voxels; zeros stay 0.
    kind `ct`: clip to [low, high], then normalize by `mean` and `std` of the dataset.
    """

    kind: str = "zscore"
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    dims: int  # spatial axes, 2 or 3
    channels: tuple[str, ...]
    classes: dict[str, int]  # name -> number in the label files, background first
    ignore: int | None  # number in the label files that marks unlabeled voxels
    orientation: str | None  # axes are reoriented to this first; None: kept as stored
    spacing: tuple[float, ...]  # every case is resampled to it
    normalization: tuple[Normalization, ...]  # one per channel
    patch: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # one row per downsampling, one number per axis
    width: int  # channels of the first encoder
    batch: int  # labeled crops per step
    reasons: dict[str, str] = field(compare=False)  # why each value was chosen, for the reader
    # kernel size along each axis, one row per level from fine to coarse; empty: 3 everywhere
    kernels: tuple[tuple[int, ...], ...] = ()
    lr: float = PAPER_LR  # initial learning rate for a network of this width

    @property
    def outputs(self) -> int:
        """Sigmoid channels: one for a binary task, otherwise one per class."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def has_sides(self) -> bool:
        """Whether left and right structures are separate classes, which a mirror would swap."""
        names = {re.sub(r"[\W_]+", " ", name.lower()) for name in self.classes}
        left = [name for name in names if re.search(LEFT, name)]
        return any(re.sub(LEFT, lambda found: RIGHT[found[0]], name) in names for name in left)

    @property
    def mirror_axes(self) -> tuple[int, ...]:
        """Axes along which a mirrored image is plausible: left-right if known, all in pictures.

        There is no such axis if left and right structures are separate classes.
        """
        if self.has_sides or (self.dims == 3 and self.orientation is None):
            return ()
        axes = range(self.dims)
        if self.orientation is None:
            return tuple(axes)
        return tuple(axis for axis in axes if self.orientation[axis] in "LR")

    def write(self, path: Path) -> None:
        values = asdict(self)
        values["reasons"] = values.pop("reasons")  # last: they are only for the reader
        write_text(path, readable_json(values) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan, which may have been edited by hand."""
        plan = read_edited_record(path, cls, "Correct it, or write a new plan with `segpl plan`.")
        plan.check(str(path))
        return plan

    def check(self, source: str) -> None:
        """Reject a plan that cannot be trained."""
        for problem in self._problems():
            raise InputError(f"{source}: {problem}")

    def _problems(self) -> Iterator[str]:
        if self.dims not in (2, 3):
            yield f"dims is {self.dims}. Images have 2 or 3 axes."
        letters = set(self.orientation or "")
        is_known = all(len(letters & set(ends)) == 1 for ends in BODY_AXES)
        if self.orientation is not None and not (is_known and len(self.orientation) == 3):
            yield (
                f"orientation is {self.orientation!r}. Use one letter each of L/R, P/A and I/S, "
                "for example 'RAS', or null to keep the stored axes."
            )
        for name in ("spacing", "patch"):
            if len(getattr(self, name)) != self.dims:
                yield f"{name} {getattr(self, name)} must have {self.dims} numbers."
        numbers = (*self.patch, *self.spacing, self.width, self.batch, self.lr)
        if not all(0 < number < math.inf for number in numbers):
            yield "patch, spacing, width, batch and lr must be positive and finite."
        yield from self._size_problems()
        if len(self.normalization) != len(self.channels):
            yield (
                f"channels and normalization have {len(self.channels)} and "
                f"{len(self.normalization)} entries. Give one normalization per channel."
            )
        if len(self.classes) < 2:
            yield "classes must name the background and at least one more class."
        for name, number in self.classes.items():
            if not name.strip():
                yield f"class {number} has an empty name. Give every class a name."
        yield from self._stride_problems()
        if self.kernels:
            yield from self._kernel_problems()

    def _size_problems(self) -> Iterator[str]:
        crop = math.prod(self.patch) * len(self.channels)
        values = crop * self.batch
        if values >= MOST_VALUES:
            fitting = (MOST_VALUES - 1) // crop
            remedy = f"a batch of at most {fitting}" if fitting else "a smaller patch"
            yield (
                f"{count_noun(self.batch, 'crop')} of patch {self.patch} with "
                f"{count_noun(len(self.channels), 'channel')} have {values:,} values, but the "
                f"limit is {MOST_VALUES:,}. Use {remedy}."
            )
        low, high = SPACING_RANGE
        if not all(low <= size <= high for size in self.spacing):
            yield f"spacing {self.spacing} must be from {low:g} to {high:g} mm."
        largest = max((side for row in self.kernels for side in row), default=0)
        for name, number, limit in (
            ("width", self.width, MOST_WIDTH),
            ("the number of rows of strides", len(self.strides), MOST_LEVELS),
            ("the largest kernel", largest, MOST_KERNEL),
        ):
            if number > limit:
                yield f"{name} is {number}, but the limit is {limit}."

    def _stride_problems(self) -> Iterator[str]:
        if any(len(row) != self.dims or min(row) < 1 for row in self.strides):
            yield f"every row of strides must have {self.dims} positive numbers."
        for axis, side in enumerate(self.patch):
            factor = math.prod(row[axis] for row in self.strides)
            if side % factor:
                yield (
                    f"patch {self.patch} does not fit the strides: axis {axis} has {side}, "
                    f"which is not a multiple of {factor}. Use {math.ceil(side / factor) * factor}."
                )
        if math.prod(self.patch) == math.prod(number for row in self.strides for number in row):
            yield (
                f"downsampling reduces patch {self.patch} to a single value, which cannot be "
                "normalized. Use a larger patch or fewer rows of strides."
            )

    def _kernel_problems(self) -> Iterator[str]:
        levels = len(self.strides) + 1
        if len(self.kernels) != levels or any(len(row) != self.dims for row in self.kernels):
            yield (
                f"kernels must have {levels} rows (one more than strides) of {self.dims} numbers, "
                "or no rows for 3 everywhere."
            )
        if any(side < 1 or side % 2 == 0 for row in self.kernels for side in row):
            yield f"kernels {self.kernels} must be odd and positive. Use 1, 3 or 5."
        for stride, row in zip(self.strides, self.kernels[1:], strict=True):
            if any(step > side for step, side in zip(stride, row, strict=True)):
                yield (
                    f"kernel {row} is smaller than its stride {stride}, so it would skip values. "
                    "Use 3 where the stride is 2."
                )
