"""Arrays in `.npy` files. Each access opens and closes the file, so that none stays open."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from segpl.data.formats import NPY_HEADERS
from segpl.errors import MissingFileError
from segpl.files import write_atomically


def write_npy(path: Path, array: NDArray[Any]) -> None:
    """Write a `.npy` file.

    `np.save` reports no error if only the last bytes do not fit on the disk.
    """
    array = np.ascontiguousarray(array)

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            header = np.lib.format.header_data_from_array_1_0(array)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(array.reshape(-1).view(np.uint8).data)

    write_atomically(path, write)


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
            mapped = np.lib.format.open_memmap(path, mode="r")
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
        with self.blaming_the_file():
            values = np.fromfile(self.path, self.dtype, prod(self.shape), offset=self.offset)
            if values.size != prod(self.shape):
                raise EOFError
        return np.asarray(values.reshape(self.shape), dtype)

    def __getitem__(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """A copy of the values in a box.

        Copying from a memory map lets other threads run; many small reads would block them.
        """
        with self.blaming_the_file():  # raises ValueError if the file has become shorter
            mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        self.request(mapped.base, box)
        return np.array(mapped[box])

    def request(self, mapped: Any, box: tuple[slice, ...]) -> None:
        """Ask the system to read the rows of a box: page faults read too little or too much."""
        if not hasattr(mmap, "MADV_WILLNEED") or len(self.shape) < 3:
            return
        missing = (slice(None),) * (len(self.shape) - len(box))
        sides = [range(n)[part] for n, part in zip(self.shape, (*box, *missing), strict=True)]
        *leading, rows, _ = sides
        length = len(rows) * self.shape[-1] * self.dtype.itemsize
        firsts = np.ravel_multi_index(np.ix_(*leading, [rows.start], [0]), self.shape).ravel()
        start = self.offset % mmap.ALLOCATIONGRANULARITY  # of the values in the map
        for first in (start + firsts * self.dtype.itemsize).tolist():
            page = first // mmap.PAGESIZE * mmap.PAGESIZE
            with suppress(OSError):  # some file systems do not support it
                mapped.madvise(mmap.MADV_WILLNEED, page, first - page + length)

    @contextmanager
    def blaming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, EOFError, ValueError) as error:
            raise MissingFileError(
                f"case {self.case}: {self.path} was deleted or damaged while it was in use. Run "
                "the command again to prepare the case again."
            ) from error


Array = NDArray[Any] | StoredArray
