"""How a dataset is to be trained on, derived from the data and written as `plan.json`."""

from __future__ import annotations

from dataclasses import dataclass


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
    strides: tuple[tuple[int, ...], ...]  # one row for each halving of the network, one number an axis
    width: int  # channels of the first encoder
    batch: int  # labelled crops in a step
    reasons: dict[str, str]  # why each of these was chosen, for the reader

    @property
    def outputs(self) -> int:
        """Sigmoid channels: one for a binary task, otherwise one for each class."""
        return 1 if len(self.classes) == 2 else len(self.classes)
