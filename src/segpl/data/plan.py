"""How a dataset is to be trained on: written as `plan.json`, edited by whoever knows better."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from segpl.errors import InputError, did_you_mean
from segpl.files import read_json, write_json

LATER = ("kernels", "lr")  # plans that were written before these were planned go without
PAPER_LR = 0.01  # learning rate of networks of the paper's width
RIGHT = {"left": "right", "l": "r", "lt": "rt", "lh": "rh"}  # what the other side is called
LEFT = r"left|\b(?:l|lt|lh)\b"
LINES = ("RL", "AP", "SI")  # the two ends of each axis of the body


@dataclass(frozen=True, slots=True)
class Normalization:
    """How one channel becomes a number around 0 with spread around 1.

    kind `zscore`: mean and deviation of the case itself.
    kind `zscore-nonzero`: the same over voxels that are not exactly 0, which then stay 0.
    kind `ct`: clip to [low, high], then subtract `mean` and divide by `std` of the dataset.
    """

    kind: str = "zscore"
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    dims: int  # 2 or 3 spatial axes
    channels: tuple[str, ...]
    classes: dict[str, int]  # name -> number in the label files, background first
    ignore: int | None
    orientation: str | None  # axes are turned to this before anything else; None: kept as stored
    spacing: tuple[float, ...]  # every case is resampled to it
    normalization: tuple[Normalization, ...]  # one for each channel
    patch: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # one row for each halving, one number for each axis
    width: int  # channels of the first encoder
    batch: int  # labeled crops in a step
    reasons: dict[str, str]  # why each of these was chosen, for the reader
    # voxels of a convolution along each axis, one row for each level, that of the patch first;
    # none: 3 everywhere, as in plans that were written before there was a choice
    kernels: tuple[tuple[int, ...], ...] = ()
    lr: float = PAPER_LR  # at the start, for a network of this width

    @property
    def outputs(self) -> int:
        """Sigmoid channels: one for a binary task, otherwise one for each class."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def has_sides(self) -> bool:
        """Whether a left and a right class are told apart, which a mirror would exchange."""
        names = {re.sub(r"[\W_]+", " ", name.lower()) for name in self.classes}
        left = [name for name in names if re.search(LEFT, name)]
        return any(re.sub(LEFT, lambda found: RIGHT[found[0]], name) in names for name in left)

    @property
    def mirror_axes(self) -> tuple[int, ...]:
        """Axes along which a mirrored body is a likely one: left and right, where it is known.

        Every axis of a picture; none where sides are classes of their own.
        """
        axes = range(self.dims)
        if self.has_sides or (self.dims == 3 and self.orientation is None):
            return ()
        if self.orientation is None:
            return tuple(axes)
        return tuple(axis for axis in axes if self.orientation[axis] in "LR")

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan, which may have been edited by hand."""
        content: dict[str, Any] = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path} holds {content!r}, and no plan. Write one with `segpl plan`.")
        known = list(cls.__dataclass_fields__)
        for name in content:
            if name not in known:
                raise InputError(f"{path} has an unknown key '{name}'. {did_you_mean(name, known)}")
        missing = [name for name in known if name not in content and name not in LATER]
        if missing:
            raise InputError(f"{path} lacks {missing}: it is no whole plan.")
        try:
            plan = cls(
                **content
                | {
                    "channels": tuple(content["channels"]),
                    "spacing": tuple(float(value) for value in content["spacing"]),
                    "normalization": tuple(Normalization(**n) for n in content["normalization"]),
                    "patch": tuple(int(value) for value in content["patch"]),
                    "strides": tuple(tuple(int(s) for s in row) for row in content["strides"]),
                    "kernels": tuple(
                        tuple(int(s) for s in row) for row in content.get("kernels", ())
                    ),
                    "classes": {str(k): int(v) for k, v in content["classes"].items()},
                    **{name: int(content[name]) for name in ("dims", "width", "batch")},
                    "lr": float(content.get("lr", PAPER_LR)),
                }
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} cannot be read as a plan: {error}.") from error
        plan.check(str(path))
        return plan

    def check(self, source: str) -> None:
        """Refuse a plan that cannot be trained."""
        if self.dims not in (2, 3):
            raise InputError(f"{source}: dims is {self.dims}, and images have 2 or 3 axes.")
        lines = [sum(letter in line for letter in str(self.orientation)) for line in LINES]
        if self.orientation is not None and (lines != [1, 1, 1] or len(str(self.orientation)) != 3):
            raise InputError(
                f"{source}: orientation {self.orientation!r} is not three letters, one of each of "
                "L/R, P/A and I/S, such as 'RAS'; null keeps the axes as they are stored."
            )
        for name in ("spacing", "patch"):
            if len(getattr(self, name)) != self.dims:
                raise InputError(
                    f"{source}: {name} {getattr(self, name)} needs {self.dims} numbers."
                )
        if any(len(row) != self.dims or min(row) < 1 for row in self.strides):
            raise InputError(f"{source}: every row of strides needs {self.dims} numbers above 0.")
        if self.kernels:
            self.check_kernels(source)
        if len(self.normalization) != len(self.channels):
            raise InputError(
                f"{source}: {len(self.channels)} channels need as many normalizations, not "
                f"{len(self.normalization)}."
            )
        if len(self.classes) < 2:
            raise InputError(f"{source}: classes needs background and at least one more.")
        if min(*self.patch, *self.spacing, self.width, self.batch, self.lr) <= 0:
            raise InputError(f"{source}: patch, spacing, width, batch and lr must be above 0.")
        for axis, side in enumerate(self.patch):
            factor = math.prod(row[axis] for row in self.strides)
            if side % factor:
                fit = math.ceil(side / factor) * factor
                raise InputError(
                    f"{source}: patch {self.patch} cannot be halved as the strides say: axis "
                    f"{axis} has {side} voxels, no multiple of {factor}. Use {fit}."
                )
        strides = math.prod(number for row in self.strides for number in row)
        if math.prod(self.patch) == strides:
            raise InputError(
                f"{source}: halving leaves one voxel of the patch {self.patch}, and nothing to "
                "normalize. Use a larger patch, or fewer rows of strides."
            )

    def check_kernels(self, source: str) -> None:
        levels = len(self.strides) + 1
        if len(self.kernels) != levels or any(len(row) != self.dims for row in self.kernels):
            raise InputError(
                f"{source}: kernels needs {levels} rows of {self.dims} numbers, one row more than "
                "strides; none at all stands for 3 everywhere."
            )
        if any(side < 1 or side % 2 == 0 for row in self.kernels for side in row):
            raise InputError(
                f"{source}: kernels {self.kernels} has an even number, or one below 1: a kernel "
                "has a middle, so use 1, 3 or 5."
            )
        for stride, row in zip(self.strides, self.kernels[1:], strict=True):
            if any(step > side for step, side in zip(stride, row, strict=True)):
                raise InputError(
                    f"{source}: kernels {self.kernels} has a row {row} below a stride of {stride}: "
                    "voxels between its steps would never be seen. Use 3 where the stride is 2."
                )
