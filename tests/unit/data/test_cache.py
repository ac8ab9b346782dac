from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import PICTURES, no_file_larger_than

from segpl.data import cache, readers
from segpl.data.cache import Volume, cache_root, load_volumes
from segpl.data.case import Case
from segpl.data.plan import Plan
from segpl.errors import InputError, MissingFileError, StorageError

PLAN = replace(PICTURES, classes={"background": 0, "vessel": 1, "organ": 2})


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch) -> Path:
    """The cache of a test."""
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return make_case(tmp_path / "d")


def make_case(folder: Path, name: str = "a", seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    image, label = folder / f"{name}.npy", folder / f"{name}.label.npy"
    np.save(image, rng.random((6, 7), np.float32))
    np.save(label, rng.integers(0, 3, (6, 7)))
    return Case(name, (image,), label)


def load(case: Case, *, labeled: bool = True, plan: Plan = PLAN) -> Volume:
    """The case with its arrays in memory."""
    volume = load_volumes([case], plan, labeled={case.name} if labeled else ())[0]
    arrays = {part: getattr(volume, part) for part in ("image", "label", "foreground")}
    return replace(volume, **{n: None if a is None else np.asarray(a) for n, a in arrays.items()})


def forbid_reading(monkeypatch, *names: str) -> None:
    def reject(*_: object) -> None:
        raise AssertionError("a source file was read")

    for name in names:
        monkeypatch.setattr(readers, name, reject)


def overwrite(path: Path, array: np.ndarray) -> None:
    """With a modification time that differs on any file system."""
    before = path.stat().st_mtime_ns
    np.save(path, array)
    os.utime(path, ns=(before, before + 10**10))


class TestVolumes:
    def test_labeled_case_has_image_label_and_foreground(self, case):
        volume = load(case)
        assert volume.image.shape == (1, 6, 7)
        assert volume.label.shape == (6, 7)
        assert volume.foreground.shape == (np.count_nonzero(volume.label), 2)

    def test_voxels_of_each_class_are_counted_once(self, case):
        """Also of a class that the label does not show; ignored voxels do not count."""
        plan = replace(PLAN, classes={**PLAN.classes, "rare": 4}, ignore=3)
        label = np.zeros((6, 7), int)
        label[0], label[1, :3], label[2, :5] = 1, 2, 3
        np.save(case.label, label)
        for _ in range(2):  # prepared, and from the cache
            assert load(case, plan=plan).counts == (27, 7, 3, 0)

    def test_components_of_each_foreground_class_are_known(self, case, monkeypatch):
        """On the grid of the file: two lines of 7 and 3 voxels, and a class that is absent."""
        plan = replace(PLAN, spacing=(2.0, 2.0))
        label = np.zeros((6, 7), int)
        label[0], label[3, :3] = 1, 1
        np.save(case.label, label)
        expected = ((pytest.approx(0.3), 1.0), (0.0, 0.0))
        assert load(case, plan=plan).outside == expected
        forbid_reading(monkeypatch, "read_label")
        assert load(case, plan=plan).outside == expected

    @pytest.mark.parametrize("key", ["counts", "outside"])
    def test_entry_of_an_earlier_version_is_prepared_again(self, case, root, key):
        expected = load(case)
        (path,) = root.rglob("a.label.json")
        record = json.loads(path.read_text())
        del record[key]
        path.write_text(json.dumps(record))
        assert getattr(load(case), key) == getattr(expected, key)

    def test_volumes_keep_the_order_of_the_cases_and_report_progress(self, tmp_path):
        cases = [make_case(tmp_path / "d", name, seed) for seed, name in enumerate("dbca")]
        calls: list[int] = []
        volumes = load_volumes(cases, PLAN, labeled=(), advance=lambda: calls.append(1))
        assert [volume.name for volume in volumes] == list("dbca")
        assert len(calls) == 4

    def test_label_of_an_unlabeled_case_is_never_opened(self, case, monkeypatch):
        case.label.write_bytes(b"not a label")
        forbid_reading(monkeypatch, "read_label")
        volume = load(case, labeled=False)
        assert (volume.label, volume.foreground) == (None, None)

    def test_cached_label_is_not_given_to_an_unlabeled_case(self, case):
        load(case)
        assert load(case, labeled=False).label is None

    @pytest.mark.parametrize(("most", "counts"), [(10, [5, 5]), (4, [2, 2]), (1000, [31, 5])])
    def test_foreground_positions_are_balanced_over_classes(self, case, monkeypatch, most, counts):
        monkeypatch.setattr(cache, "FOREGROUND", most)
        label = np.ones((6, 7), int)
        label[0, :6], label[1, :5] = 0, 2
        np.save(case.label, label)
        found = label[tuple(load(case).foreground.T)]
        assert np.bincount(found).tolist() == [0, *counts]

    def test_label_without_foreground_has_no_positions(self, case):
        np.save(case.label, np.zeros((6, 7), int))
        for _ in range(2):
            assert load(case).foreground.shape == (0, 2)


class TestFreshness:
    def test_second_call_reads_no_source(self, case, monkeypatch):
        first = load(case)
        forbid_reading(monkeypatch, "read_image", "read_label")
        second = load(case)
        assert np.array_equal(first.image, second.image)
        assert np.array_equal(first.foreground, second.foreground)

    def test_second_call_asks_for_the_status_of_each_file_once(self, case, monkeypatch):
        """Thousands of runs that start together would overload a shared file system."""
        load(case)
        asked, stat = [], os.stat

        def counted(path, *arguments, **options):
            asked.append(str(path))
            return stat(path, *arguments, **options)

        monkeypatch.setattr(os, "stat", counted)
        load(case)
        files = [path for path in asked if path.endswith((".npy", ".json"))]
        assert sorted(set(files)) == sorted(files)
        assert {str(case.images[0]), str(case.label)} <= set(files)

    def test_label_is_prepared_again_if_one_of_its_masks_has_changed(self, case):
        masks = case.label, case.label.with_name("b.label.npy")
        for mask in masks:
            np.save(mask, np.zeros((6, 7), np.int64))
        case = replace(case, masks=masks)
        assert load(case).label.max() == 0
        overwrite(masks[1], np.eye(6, 7, dtype=np.int64))
        assert load(case).label[0, 0] == 2

    def test_label_is_prepared_again_if_its_mask_is_another_class(self, case):
        np.save(case.label, np.eye(6, 7, dtype=np.int64))
        for masks, number in (((), 1), ((None, case.label), 2), ((case.label, None), 1)):
            assert load(replace(case, masks=masks)).label[0, 0] == number

    def test_changed_sources_are_prepared_again(self, case):
        load(case)
        overwrite(case.images[0], np.arange(42, dtype=np.float32).reshape(6, 7))
        overwrite(case.label, np.full((6, 7), 2))
        volume = load(case)
        assert volume.image[0, 0, 0] == volume.image.min()
        assert volume.image[0, -1, -1] == volume.image.max()
        assert (volume.label == 2).all()

    def test_label_is_prepared_again_if_the_grid_of_its_image_changes(self, case):
        load(case)
        image, label = (path.with_suffix(".npz") for path in (case.images[0], case.label))
        for spacing in ((2.0, 1.0), (1.0, 2.0)):
            np.savez(image, image=np.load(case.images[0]), spacing=spacing)
            os.utime(image, ns=(0, int(spacing[0]) * 10**10))
            if not label.exists():
                np.savez(label, label=np.load(case.label))
            volume = load(Case("a", (image,), label))
            assert volume.label.shape == volume.image.shape[1:] == (6 * spacing[0], 7 * spacing[1])

    def test_another_spacing_has_its_own_entries(self, case, root):
        load(case)
        plan = replace(PLAN, spacing=(2.0, 1.0))
        assert load(case, plan=plan).image.shape == (1, 3, 7)
        assert len(list(root.glob("*/*"))) == 2

    def test_another_patch_shares_the_entries(self, case, root, monkeypatch):
        load(case)
        forbid_reading(monkeypatch, "read_image", "read_label")
        load(case, plan=replace(PLAN, patch=(4, 4), width=9, reasons={"patch": "edited"}))
        assert len(list(root.glob("*/*"))) == 1

    @pytest.mark.parametrize("part", ["image.npy", "label.npy", "foreground.npy", "label.json"])
    @pytest.mark.parametrize("damage", ["missing", "empty", "truncated"])
    def test_damaged_entry_is_prepared_again(self, case, root, part, damage):
        first = load(case)
        expected = (first.image, first.label, first.foreground)
        (entry,) = root.glob(f"*/*/a.{part}")
        content = entry.read_bytes()
        if damage == "missing":
            entry.unlink()
        else:
            entry.write_bytes(b"" if damage == "empty" else content[:-5])
        again = load(case)
        for old, new in zip(expected, (again.image, again.label, again.foreground), strict=True):
            assert np.array_equal(old, new)

    def test_entry_in_another_order_is_prepared_again(self, case, root):
        """Crops are read from files in C order."""
        first = load(case)
        (entry,) = root.glob("*/*/a.image.npy")
        np.save(entry, np.asfortranarray(first.image))
        assert np.array_equal(load(case).image, first.image)

    def test_interrupted_write_leaves_no_entry(self, case, root, monkeypatch):
        def interrupted(file, header):
            file.write(b"half")
            raise KeyboardInterrupt

        monkeypatch.setattr(np.lib.format, "write_array_header_1_0", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(case)
        assert not [path for path in root.rglob("*") if path.is_file()]
        monkeypatch.undo()
        assert load(case).image.shape == (1, 6, 7)

    def test_array_without_its_record_is_stale(self, case, root, monkeypatch):
        """An interruption between the array and its record must not leave old voxels."""

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(cache, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            load(case)
        monkeypatch.undo()
        (entry,) = root.glob("*/*/a.image.npy")
        np.save(entry, np.zeros((1, 6, 7), np.float32))
        assert load(case).image.std() > 0.5


class TestFolders:
    def test_case_names_that_are_not_file_names_stay_distinct(self, tmp_path):
        cases = [
            replace(make_case(tmp_path / "d", stem, seed), name=name)
            for seed, (stem, name) in enumerate([("x", "p/1 ?"), ("y", "p_1__"), ("z", "..")])
        ]
        volumes = load_volumes(cases, PLAN, labeled=())
        assert [volume.name for volume in volumes] == ["p/1 ?", "p_1__", ".."]
        assert len({float(np.asarray(volume.image)[0, 0, 0]) for volume in volumes}) == 3

    def test_equal_case_names_in_different_folders_stay_distinct(self, tmp_path):
        first, second = (
            load(make_case(tmp_path / part, "a", seed)) for seed, part in enumerate("xy")
        )
        assert not np.array_equal(first.image, second.image)

    def test_environment_variable_sets_the_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "here"))
        assert cache_root() == tmp_path / "here"
        monkeypatch.delenv("SEGPL_CACHE")
        assert cache_root() == Path.home() / ".cache" / "segpl"


class TestRejections:
    def test_broken_case_is_named(self, tmp_path):
        good, bad = make_case(tmp_path / "d", "good"), make_case(tmp_path / "d", "bad")
        np.save(bad.images[0], np.full((6, 7), 3.0))
        with pytest.raises(InputError, match="case bad: channel 'gray' is constant"):
            load_volumes([good, bad], PLAN, labeled=())

    def test_label_with_another_grid(self, case):
        np.save(case.label, np.zeros((6, 8), int))
        words = r"case a: the label .* not on the grid .* shape \(6, 7\) and \(6, 8\)"
        with pytest.raises(InputError, match=words):
            load(case)

    def test_full_disk(self, case):
        """Only the last bytes do not fit; the header takes 128, the image 4 * 42."""
        with (
            no_file_larger_than(200),
            pytest.raises(StorageError, match="case a: no space left"),
        ):
            load(case)

    def test_missing_source(self, case):
        case.images[0].unlink()
        with pytest.raises(MissingFileError, match=r"case a: .*a\.npy does not exist"):
            load(case)

    def test_labeled_case_without_a_label(self, case):
        with pytest.raises(InputError, match="case a: its label is missing, but split"):
            load(case.without_label())
