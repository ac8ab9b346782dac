from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from segpl.data import cache, readers
from segpl.data.cache import cache_root, load_volumes
from segpl.data.case import Case
from segpl.data.plan import Normalization, Plan
from segpl.errors import InputError, MissingFileError, StorageError

PLAN = Plan(
    dims=2,
    channels=("gray",),
    classes={"background": 0, "vessel": 1, "organ": 2},
    ignore=None,
    orientation=None,
    spacing=(1.0, 1.0),
    normalization=(Normalization("zscore"),),
    patch=(8, 8),
    strides=((2, 2),),
    width=4,
    batch=1,
    reasons={},
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def make_case(folder: Path, name: str = "a", seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    image, label = folder / f"{name}.npy", folder / f"{name}.label.npy"
    np.save(image, rng.random((6, 7), np.float32))
    np.save(label, rng.integers(0, 3, (6, 7)))
    return Case(name, (image,), label)


def refuse_to_read(*_: object) -> None:
    raise AssertionError("a source file was read")


def touch(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def test_a_labeled_case_has_image_label_and_foreground(tmp_path, root):
    (volume,) = load_volumes([make_case(tmp_path / "d")], PLAN, labeled={"a"}, root=root)
    assert volume.image.shape == (1, 6, 7)
    assert volume.label.shape == (6, 7)
    assert volume.foreground.shape == (np.count_nonzero(volume.label), 2)


def test_the_image_is_mapped_and_not_loaded(tmp_path, root):
    (volume,) = load_volumes([make_case(tmp_path / "d")], PLAN, labeled=(), root=root)
    assert isinstance(volume.image, np.memmap)


def test_volumes_keep_the_order_of_the_cases(tmp_path, root):
    cases = [make_case(tmp_path / "d", name, seed) for seed, name in enumerate("dbca")]
    assert [v.name for v in load_volumes(cases, PLAN, labeled=(), root=root)] == list("dbca")


def test_progress_advances_once_for_each_case(tmp_path, root):
    cases = [make_case(tmp_path / "d", name) for name in "abc"]
    calls: list[int] = []
    load_volumes(cases, PLAN, labeled=(), root=root, advance=lambda: calls.append(1))
    assert len(calls) == 3


def test_a_second_call_reads_no_source(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")
    (first,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    monkeypatch.setattr(readers, "read_image", refuse_to_read)
    monkeypatch.setattr(readers, "read_label", refuse_to_read)
    (second,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.foreground, second.foreground)


def test_a_touched_image_is_prepared_again(tmp_path, root):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled=(), root=root)
    before = case.images[0].stat().st_mtime_ns
    np.save(case.images[0], np.arange(42, dtype=np.float32).reshape(6, 7))
    os.utime(case.images[0], ns=(before, before + 1))
    (volume,) = load_volumes([case], PLAN, labeled=(), root=root)
    assert volume.image[0, 0, 0] == volume.image.min()
    assert volume.image[0, -1, -1] == volume.image.max()


def test_a_touched_label_is_prepared_again(tmp_path, root):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled={"a"}, root=root)
    np.save(case.label, np.full((6, 7), 2))
    touch(case.label)
    (volume,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    assert (volume.label == 2).all()


def test_another_spacing_has_another_folder(tmp_path, root):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled=(), root=root)
    plan = replace(PLAN, spacing=(2.0, 1.0))
    (volume,) = load_volumes([case], plan, labeled=(), root=root)
    assert volume.image.shape == (1, 3, 7)
    assert len(list(root.glob("*/*"))) == 2


def test_another_patch_shares_the_cache(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled=(), root=root)
    monkeypatch.setattr(readers, "read_image", refuse_to_read)
    plan = replace(PLAN, patch=(4, 4), width=9, batch=7, reasons={"patch": "edited"})
    load_volumes([case], plan, labeled=(), root=root)
    assert len(list(root.glob("*/*"))) == 1


def test_the_label_of_an_unlabeled_case_is_never_opened(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")
    case.label.write_bytes(b"no label at all")
    monkeypatch.setattr(readers, "read_label", refuse_to_read)
    (volume,) = load_volumes([case], PLAN, labeled=(), root=root)
    assert volume.label is None
    assert volume.foreground is None


def test_a_cached_label_is_not_given_to_an_unlabeled_case(tmp_path, root):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled={"a"}, root=root)
    (volume,) = load_volumes([case], PLAN, labeled=(), root=root)
    assert volume.label is None


def test_a_labeled_case_without_a_label_is_refused(tmp_path, root):
    case = make_case(tmp_path / "d").without_label()
    with pytest.raises(InputError, match="case a: it is to be trained on with its label"):
        load_volumes([case], PLAN, labeled={"a"}, root=root)


@pytest.mark.parametrize("part", ["image.npy", "label.npy", "foreground.npy", "label.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_damaged_entry_is_made_again(tmp_path, root, part, damage):
    case = make_case(tmp_path / "d")
    (first,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    expected = (np.array(first.image), np.array(first.label), np.array(first.foreground))
    (entry,) = root.glob(f"*/*/a.{part}")
    content = entry.read_bytes()
    entry.unlink()  # the volume above has the old file mapped
    if damage != "missing":
        entry.write_bytes(b"" if damage == "empty" else content[: len(content) - 5])
    (again,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    for old, new in zip(expected, (again.image, again.label, again.foreground), strict=True):
        assert np.array_equal(old, new)


def test_an_interrupted_write_leaves_no_unreadable_entry(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")
    save = np.save

    def half(path, array):
        save(path, array)
        os.truncate(path, 50)
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", half)
    with pytest.raises(KeyboardInterrupt):
        load_volumes([case], PLAN, labeled=(), root=root)
    assert not [path for path in root.rglob("*") if path.is_file()]
    monkeypatch.setattr(np, "save", save)
    (volume,) = load_volumes([case], PLAN, labeled=(), root=root)
    assert volume.image.shape == (1, 6, 7)


def test_arrays_without_their_record_count_as_stale(tmp_path, root, monkeypatch):
    """A kill between the array and its record must not pass old voxels for new ones."""
    case = make_case(tmp_path / "d")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        load_volumes([case], PLAN, labeled=(), root=root)
    monkeypatch.undo()
    (entry,) = root.glob("*/*/a.image.npy")
    np.save(entry, np.zeros((1, 6, 7), np.float32))
    (volume,) = load_volumes([case], PLAN, labeled=(), root=root)
    assert volume.image.std() == pytest.approx(1)


def test_a_full_disk_is_named(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match="case a: no space left on the disk"):
        load_volumes([case], PLAN, labeled=(), root=root)


def test_a_broken_case_is_named(tmp_path, root):
    good, bad = make_case(tmp_path / "d", "good"), make_case(tmp_path / "d", "bad")
    np.save(bad.images[0], np.full((6, 7), 3.0))
    with pytest.raises(InputError, match="case bad: channel 'gray' is constant"):
        load_volumes([good, bad], PLAN, labeled=(), root=root)


def test_a_missing_source_is_named(tmp_path, root):
    case = make_case(tmp_path / "d")
    case.images[0].unlink()
    with pytest.raises(MissingFileError, match=r"case a: .*a\.npy does not exist"):
        load_volumes([case], PLAN, labeled=(), root=root)


def test_a_label_of_another_shape_is_refused(tmp_path, root):
    case = make_case(tmp_path / "d")
    np.save(case.label, np.zeros((6, 8), int))
    with pytest.raises(InputError, match=r"case a: the label .* \(6, 7\) against \(6, 8\)"):
        load_volumes([case], PLAN, labeled={"a"}, root=root)


def test_names_that_are_no_file_names_stay_apart(tmp_path, root):
    cases = [
        replace(make_case(tmp_path / "d", stem, seed), name=name)
        for seed, (stem, name) in enumerate([("x", "p/1 ?"), ("y", "p_1__"), ("z", "..")])
    ]
    volumes = load_volumes(cases, PLAN, labeled=(), root=root)
    assert [volume.name for volume in volumes] == ["p/1 ?", "p_1__", ".."]
    assert len({float(volume.image[0, 0, 0]) for volume in volumes}) == 3
    assert len(list(root.glob("*/*/*.image.npy"))) == 3


def test_folders_of_one_name_do_not_share_entries(tmp_path, root):
    cases = [make_case(tmp_path / part, "a", seed) for seed, part in enumerate("xy")]
    first = load_volumes(cases[:1], PLAN, labeled=(), root=root)[0]
    second = load_volumes(cases[1:], PLAN, labeled=(), root=root)[0]
    assert not np.array_equal(first.image, second.image)


def test_a_case_given_twice_is_built_once(tmp_path, root, monkeypatch):
    case = make_case(tmp_path / "d")
    reads: list[int] = []
    read = readers.read_image
    monkeypatch.setattr(readers, "read_image", lambda *a: reads.append(1) or read(*a))
    assert len(load_volumes([case, case], PLAN, labeled=(), root=root)) == 2
    assert len(reads) == 1


def test_foreground_is_balanced_over_classes(tmp_path, root, monkeypatch):
    monkeypatch.setattr(cache, "FOREGROUND", 10)
    case = make_case(tmp_path / "d")
    label = np.ones((6, 7), int)
    label[0] = 0
    label[1, :6] = 2
    np.save(case.label, label)
    (volume,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    found = label[tuple(volume.foreground.T)]
    assert np.bincount(found).tolist() == [0, 5, 5]


def test_a_rare_class_keeps_its_positions_beside_a_common_one(tmp_path, root, monkeypatch):
    monkeypatch.setattr(cache, "FOREGROUND", 4)
    case = make_case(tmp_path / "d")
    label = np.ones((6, 7), int)
    label[5, 6] = 2
    np.save(case.label, label)
    (volume,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    assert label[tuple(volume.foreground.T)].tolist() == [1, 1, 2]


def test_a_label_without_foreground_has_no_positions(tmp_path, root):
    case = make_case(tmp_path / "d")
    np.save(case.label, np.zeros((6, 7), int))
    (volume,) = load_volumes([case], PLAN, labeled={"a"}, root=root)
    assert volume.foreground.shape == (0, 2)


def test_the_record_names_the_sources(tmp_path, root):
    case = make_case(tmp_path / "d")
    load_volumes([case], PLAN, labeled=(), root=root)
    (record,) = root.glob("*/*/a.image.json")
    (source,) = json.loads(record.read_text())["sources"]
    assert source["path"] == str(case.images[0].resolve())
    assert source["size"] == case.images[0].stat().st_size


def test_the_environment_says_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"


def test_without_a_setting_the_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("SEGPL_CACHE", raising=False)
    assert cache_root() == Path.home() / ".cache" / "segpl"
