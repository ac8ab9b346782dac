"""Arrays that are read from disk piece by piece."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path

import numpy as np
import pytest

from segpl.data.stored import StoredArray
from segpl.errors import MissingFileError


def stored(array: np.ndarray, folder: Path) -> StoredArray:
    np.save(folder / "a.npy", array)
    return StoredArray.find("case_07", folder / "a.npy")


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("kind", [np.int8, np.float32])
def test_every_box_has_the_values_of_the_array(tmp_path, shape, kind):
    array = np.arange(np.prod(shape)).astype(kind).reshape(shape)
    on_disk = stored(array, tmp_path)
    parts = [slice(None), slice(1, 3), slice(0, 1), slice(1, None)]
    for axes in range(len(shape) + 1):
        for box in itertools.product(parts, repeat=axes):
            assert np.array_equal(on_disk[box], array[box]), box


@pytest.mark.parametrize("shape", [(5,), (0, 3), (2, 4, 5)])
def test_array_is_read_as_a_whole(tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    on_disk = stored(array, tmp_path)
    assert (on_disk.shape, on_disk.dtype, on_disk.nbytes) == (shape, np.int16, array.nbytes)
    assert len(on_disk) == len(array)
    assert np.array_equal(np.asarray(on_disk), array)
    assert np.asarray(on_disk, np.float32).dtype == np.float32


def test_reshaped_array_is_the_same_file(tmp_path):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    added = stored(array, tmp_path).reshape((1, 3, 4))
    assert np.array_equal(added[:, slice(1, 2)], array[None, 1:2])


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_file_that_disappears_names_its_case(tmp_path, damage):
    array = stored(np.zeros((3, 4), np.float32), tmp_path)
    if damage == "deleted":
        array.path.unlink()
    else:
        array.path.write_bytes(array.path.read_bytes()[:-1])
    words = r"case case_07: .*a\.npy was deleted or damaged"
    with pytest.raises(MissingFileError, match=words):
        np.asarray(array)
    with pytest.raises(MissingFileError, match=words):
        array[slice(2, 3), slice(1, 2)]


def test_system_that_reads_nothing_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(mmap, "MADV_WILLNEED", -1, raising=False)  # an invalid argument
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    assert np.array_equal(stored(array, tmp_path)[:, slice(1, 2)], array[:, 1:2])
