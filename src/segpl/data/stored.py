"""Arrays in `.npy` files. Each access opens and closes the file, so that none stays open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from segpl.data.formats import NPY_HEADERS
from segpl.errors import MissingFileError


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array on disk: `np.asarray(array)` reads all of it, `array[box]` a part."""

    case: str
    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # bytes before the first value

    @classmethod
    def find(cls, case: str, path: Path) -> StoredArray:
        """The array in `path`; OSError, ValueError or EOFError if there is none."""
        with NPY_HEADERS:
            mapped = np.load(path, mmap_mode="r")
        if not mapped.flags.c_contiguous:
            raise ValueError(f"{path} is not in C order")
        return cls(case, path, mapped.dtype, mapped.shape, mapped.offset)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> StoredArray:
        assert prod(shape) == prod(self.shape)
        return replace(self, shape=shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[()], dtype)

    def __getitem__(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """A copy of the values in a box of adjacent values.

        Whole rows are read. On a cold disk, these few large requests are several times as fast as
        the page faults of a memory map, and they let other threads run.
        """
        missing = (slice(None),) * (len(self.shape) - len(box))
        sides = [range(n)[part] for n, part in zip(self.shape, (*box, *missing), strict=True)]
        axis = max(len(sides) - 2, 0)  # one request reads this side, and all of the later axes
        while axis and len(sides[axis]) == self.shape[axis]:
            axis -= 1
        inner = tuple(slice(side.start, side.stop) for side in sides[axis + 1 :])
        values = np.empty([len(side) for side in sides], self.dtype)
        rows = np.empty((len(sides[axis]), *self.shape[axis + 1 :]), self.dtype)
        steps = [prod(self.shape[n + 1 :]) for n in range(axis + 1)]
        starts = [side.start for side in sides]
        is_whole = rows.shape == values.shape[axis:]
        try:
            with self.path.open("rb", buffering=0) as file:
                for index in np.ndindex(values.shape[:axis]):
                    place = zip(starts, (*index, 0), steps, strict=False)
                    first = sum((start + own) * step for start, own, step in place)
                    file.seek(self.offset + first * self.dtype.itemsize)
                    read_into(values[index] if is_whole else rows, file)
                    if not is_whole:
                        values[index] = rows[:, *inner]
        except (FileNotFoundError, EOFError) as error:
            raise MissingFileError(
                f"case {self.case}: {self.path} was deleted or damaged while it was in use. Run "
                "the same command again: it prepares the case again."
            ) from error
        return values


Array = NDArray[Any] | StoredArray


def read_into(array: NDArray[Any], file: FileIO) -> None:
    """Read as many bytes as `array` has. One request reads at most 2 GiB."""
    missing = array.reshape(-1).view(np.uint8).data
    while len(missing):
        count = file.readinto(missing)
        if not count:
            raise EOFError
        missing = missing[count:]
