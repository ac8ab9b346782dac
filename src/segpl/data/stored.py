"""Arrays in `.npy` files. Each access opens and closes the file, so that none stays open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"{path} has version {version} of the format")
            with NPY_HEADERS:
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            array = cls(case, path, dtype, shape, file.tell())
            size = os.fstat(file.fileno()).st_size
        if dtype.hasobject:
            raise ValueError(f"{path} contains Python objects")
        if is_fortran and sum(side > 1 for side in shape) > 1:
            raise ValueError(f"{path} is not in C order")
        if size < array.offset + array.nbytes:
            raise ValueError(f"{path} is truncated")
        return array

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> StoredArray:
        assert prod(shape) == prod(self.shape)
        return replace(self, shape=shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        with self.blaming_the_file():
            values = np.fromfile(self.path, self.dtype, prod(self.shape), offset=self.offset)
            if values.size != prod(self.shape):
                raise EOFError
        return np.asarray(values.reshape(self.shape), dtype)

    def __getitem__(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """A copy of the values in a box of an array with at least two axes.

        Whole rows are read. On a cold disk, these few large requests are several times as fast as
        the page faults of a memory map, and they let other threads run.
        """
        missing = (slice(None),) * (len(self.shape) - len(box))
        sides = [range(n)[part] for n, part in zip(self.shape, (*box, *missing), strict=True)]
        *leading, rows, columns = sides
        read = np.empty((len(rows), self.shape[-1]), self.dtype)  # by one request
        part = read[:, columns.start : columns.stop]
        values = np.empty([len(side) for side in sides], self.dtype)
        firsts = np.ravel_multi_index(np.ix_(*leading, [rows.start], [0]), self.shape).ravel()
        places = (self.offset + firsts * self.dtype.itemsize).tolist()
        with self.blaming_the_file(), self.path.open("rb", buffering=0) as file:
            for block, place in zip(values.reshape(-1, *part.shape), places, strict=True):
                file.seek(place)
                if file.readinto(read.data) != read.nbytes:
                    raise EOFError
                block[...] = part
        return values

    @contextmanager
    def blaming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, EOFError) as error:
            raise MissingFileError(
                f"case {self.case}: {self.path} was deleted or damaged while it was in use. Run "
                "the same command again: it prepares the case again."
            ) from error


Array = NDArray[Any] | StoredArray
