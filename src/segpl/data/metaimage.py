"""Read MetaImage files (.mha, .mhd).

ITK's own reader crashes the whole process on some damaged headers, and follows paths in them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segpl.data.limits import (
    MOST_PADDING,
    MOST_TEXT,
    reject_surplus,
    require_inside,
    require_stored,
)

INTEGERS = {"CHAR": 1, "SHORT": 2, "INT": 4, "LONG": 4, "LONG_LONG": 8}  # bytes
ELEMENT_TYPES = {
    **{f"MET_{name}": f"i{size}" for name, size in INTEGERS.items()},
    **{f"MET_U{name}": f"u{size}" for name, size in INTEGERS.items()},
    **{"MET_FLOAT": "f4", "MET_DOUBLE": "f8"},
}
AUTOMATIC = 47  # zlib detects its own format and that of gzip


class ItkGeometry(NamedTuple):
    """Geometry in ITK's LPS; `direction` has a column per axis."""

    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetaImage:
    sides: tuple[int, ...]
    channels: int
    kind: np.dtype[Any]
    geometry: ItkGeometry
    path: Path  # of the voxels
    start: int  # first byte of the voxels; -1: they are at the end
    is_packed: bool
    comment: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.sides, self.channels) if self.channels > 1 else self.sides

    def values(self) -> NDArray[Any]:
        size = math.prod(self.shape) * self.kind.itemsize
        require_stored(self.path, size + max(0, self.start), is_packed=self.is_packed)
        with self.path.open("rb") as file:
            file.seek(self.start if self.start >= 0 else self.path.stat().st_size - size)
            raw = self._unpack(file.read(), size) if self.is_packed else file.read(size)
        # the channels of a voxel are next to each other, then x changes fastest
        order = (self.channels, *self.sides) if self.channels > 1 else self.sides
        values = np.frombuffer(raw, self.kind).reshape(order, order="F")
        return np.moveaxis(values, 0, -1) if self.channels > 1 else values

    def _unpack(self, packed: bytes, size: int) -> bytes:
        stream = zlib.decompressobj(AUTOMATIC)
        raw = stream.decompress(packed, size)
        # read to the end, which verifies the checksum
        rest = stream.decompress(stream.unconsumed_tail, MOST_PADDING + 1)
        reject_surplus(self.path, len(rest), size)
        if not stream.eof:
            raise EOFError("the compressed voxels are incomplete")
        return raw


def read_meta_image(path: Path) -> MetaImage:
    """Header of a MetaImage file. A damaged header raises KeyError or ValueError."""
    fields, length = _header(path)
    count = int(fields["NDims"])
    sides = tuple(int(side) for side in fields["DimSize"].split())
    channels = int(fields.get("ElementNumberOfChannels", "1"))
    if count not in (2, 3, 4) or len(sides) != count or min(*sides, channels) < 1:
        raise ValueError(f"{count} axes of {sides} voxels with {channels} channels")
    if not _is_true(fields, "BinaryData", default="True"):
        raise ValueError("the voxels are written as text")
    is_big = any(_is_true(fields, f"{name}ByteOrderMSB") for name in ("BinaryData", "Element"))
    kind = np.dtype(ELEMENT_TYPES[fields["ElementType"]]).newbyteorder(">" if is_big else "<")
    name = fields["ElementDataFile"]
    skipped = int(fields.get("HeaderSize", "0"))
    is_local = name.upper() == "LOCAL"
    if not is_local:
        require_inside(path, name)
    matrix = _field_numbers(fields, ("TransformMatrix", "Rotation", "Orientation"), count**2)
    return MetaImage(
        sides,
        channels,
        kind,
        ItkGeometry(
            tuple(_field_numbers(fields, ("ElementSpacing", "ElementSize"), count, default=1.0)),
            tuple(_field_numbers(fields, ("Offset", "Position", "Origin"), count, default=0.0)),
            # a row per axis in the file
            np.reshape(matrix, (count, count)).T if matrix else np.eye(count),
        ),
        path if is_local else path.parent / name,
        length if is_local else max(skipped, -1),
        _is_true(fields, "CompressedData"),
        fields.get("Comment", ""),
    )


def _header(path: Path) -> tuple[dict[str, str], int]:
    """Fields, and the length in bytes."""
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        while "ElementDataFile" not in fields:
            line = file.readline(MOST_TEXT)
            if not line or file.tell() > MOST_TEXT:
                raise ValueError("the header has no ElementDataFile")
            key, _, value = line.decode("utf-8", "replace").partition("=")
            fields[key.strip()] = value.strip()
        return fields, file.tell()


def _is_true(fields: dict[str, str], name: str, default: str = "False") -> bool:
    return fields.get(name, default)[:1] in ("T", "t", "1")


def _field_numbers(
    fields: dict[str, str], names: tuple[str, ...], count: int, default: float | None = None
) -> list[float]:
    """The first of these fields; otherwise `count` times the default, if there is one."""
    text = next((fields[name] for name in names if name in fields), None)
    if text is None:
        return [] if default is None else [default] * count
    numbers = [float(number) for number in text.split()]
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} numbers instead of {count} in {names[0]}")
    return numbers
