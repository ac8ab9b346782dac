"""A file of any supported format, opened: axes and geometry are known, values read on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["image", "label"]


@dataclass(frozen=True, slots=True)
class OpenFile:
    shape: tuple[int, ...]  # all axes as stored, including channels
    values: Callable[[], NDArray[Any]]
    affine: NDArray[np.float64] | None = None  # 4x4 to RAS mm
    spacing: tuple[float, ...] | None = None  # if the file has one but no affine
    dims: int | None = None  # spatial axes, if the format implies them
    channels_first: bool = False
    # reads a part of the spatial axes without loading the rest, if the format allows it
    part: Callable[[tuple[slice, ...]], NDArray[Any]] | None = None
    # what the file says about numbers of a label: "color #ff0000" or "segment 'tumor'"
    meanings: dict[int, str] = field(default_factory=dict)
    comment: str = ""  # free text in the file
