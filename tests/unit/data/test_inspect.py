from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import PIL.Image
import pytest

from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect

SHAPE = (8, 9, 10)


def save(path: Path, array: np.ndarray, spacing: float = 1.0) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.diag([spacing, spacing, spacing, 1])), path)
    return path


def scan(seed: int = 0, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 20, shape or SHAPE).astype(np.float32)


def mask(*numbers: int) -> np.ndarray:
    label = np.zeros(SHAPE, np.uint8)
    for place, number in enumerate(numbers):
        label[place] = number
    return label


class Folder:
    """A dataset that grows case by case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cases: list[Case] = []

    def add(self, name: str, image=None, label=None, *, is_test=False, spacing=1.0) -> None:
        image = scan(len(self.cases)) if image is None else image
        files = (save(self.root / f"{name}.nii", image, spacing),)
        path = None if label is None else save(self.root / f"{name}-label.nii", label, spacing)
        self.cases.append(Case(name, files, path, is_test))

    def inspect(self, look=None, **more) -> Inspection:
        dataset = Dataset(self.root, "folders", tuple(self.cases), **more)
        names = [case.name for case in self.cases] if look is None else look
        return inspect(dataset, read_labels_of=names)


@pytest.fixture
def folder(tmp_path):
    """One case without fault, beside which others can be faulty."""
    folder = Folder(tmp_path)
    folder.add("good", label=mask(1))
    return folder


def said(inspection: Inspection, case: str, *, fatal: bool) -> str:
    return "\n".join(p.what for p in inspection.problems if p.case == case and p.fatal == fatal)


def test_a_dataset_without_fault_has_no_problem(folder):
    inspection = folder.inspect()
    assert inspection.problems == ()
    assert inspection.dims == 3


def test_statistics_agree_with_numpy(folder):
    channel = folder.inspect().fingerprints["good"].channels[0]
    values = scan(0)
    assert channel.mean == pytest.approx(values.mean(), rel=1e-6)
    assert channel.std == pytest.approx(values.std(), rel=1e-6)
    assert channel.low == pytest.approx(np.percentile(values, 0.5))
    assert channel.high == pytest.approx(np.percentile(values, 99.5))
    assert (channel.minimum, channel.maximum) == (values.min(), values.max())


def test_the_share_of_zeros_counts_exact_zeros(folder):
    values = scan()
    values[:4] = 0
    folder.add("half", values)
    assert folder.inspect().fingerprints["half"].channels[0].zeros == pytest.approx(0.5)


def test_label_voxels_are_counted(folder):
    voxels = folder.inspect().fingerprints["good"].voxels
    assert voxels == {0: 7 * 90, 1: 90}


def test_foreground_intensities_come_from_the_foreground_alone(folder):
    label = mask(1, 2, 3)
    image = label.astype(np.float32) * 10
    image[5] = 7
    folder.add("marked", image, label)
    sample = folder.inspect(ignore=3).fingerprints["marked"].foreground
    assert len(sample) == 1
    assert set(sample[0]) == {10.0, 20.0}
    assert len(sample[0]) == 180


def test_the_foreground_sample_is_bounded_and_the_same_every_time(tmp_path):
    folder = Folder(tmp_path)
    folder.add("big", scan(0, 32, 32, 8), np.ones((32, 32, 8), np.uint8))
    first, second = (folder.inspect().fingerprints["big"].foreground for _ in range(2))
    assert len(first[0]) == 2000
    assert first == second


def test_a_label_that_may_not_be_looked_at_is_never_opened(folder):
    folder.add("hidden", label=mask(1))
    folder.cases[1].label.write_bytes(b"not a label")
    inspection = folder.inspect(look=["good"])
    assert inspection.problems == ()
    assert inspection.fingerprints["hidden"].voxels is None
    assert inspection.fingerprints["hidden"].foreground == ()


def test_chords_are_measured_in_millimetres_where_the_label_may_be_looked_at(tmp_path):
    """Slabs of one voxel, each 8x9x10 volume with 2 mm between voxels; 3 is not known."""
    folder = Folder(tmp_path)
    for name in ("seen", "hidden"):
        folder.add(name, label=mask(1, 0, 3, 2), spacing=2.0)
    prints = folder.inspect(look=["seen"], ignore=3).fingerprints
    assert prints["seen"].chords == {1: (2.0, 18.0, 20.0), 2: (2.0, 18.0, 20.0)}
    assert prints["hidden"].chords == {}


def test_pictures_have_no_chords_as_nobody_knows_the_size_of_their_pixels(tmp_path):
    label = np.zeros((20, 30), np.uint8)
    label[5:15, 5:25] = 1
    for name, values in (("a", scan(0, 20, 30)), ("l", label)):
        np.save(tmp_path / f"{name}.npy", values)
        np.savez(tmp_path / f"{name}.npz", values, spacing=np.array([0.5, 1.0]))
    found = []
    for suffix in (".npy", ".npz"):
        case = Case("a", (tmp_path / f"a{suffix}",), tmp_path / f"l{suffix}")
        dataset = Dataset(tmp_path, "folders", (case,))
        found.append(inspect(dataset, read_labels_of=["a"]).fingerprints["a"].chords)
    assert found == [{}, {1: (5.0, 20.0)}]


def test_every_case_advances_the_progress(folder):
    folder.add("other")
    dataset = Dataset(folder.root, "folders", tuple(folder.cases))
    steps: list[int] = []
    inspect(dataset, read_labels_of=(), advance=lambda: steps.append(1))
    assert len(steps) == 2


def test_only_the_cases_asked_for_are_read(folder):
    folder.add("other")
    dataset = Dataset(folder.root, "folders", tuple(folder.cases))
    inspection = inspect(dataset, cases=folder.cases[1:], read_labels_of=())
    assert list(inspection.fingerprints) == ["other"]


def test_dims_come_from_the_labels_where_images_have_channels(tmp_path):
    np.save(tmp_path / "a.npy", scan(0, 3, 8, 9))
    np.save(tmp_path / "l.npy", np.eye(8, 9, dtype=np.uint8))
    case = Case("a", (tmp_path / "a.npy",), tmp_path / "l.npy")
    inspection = inspect(Dataset(tmp_path, "folders", (case,)), read_labels_of=["a"])
    assert inspection.dims == 2
    assert len(inspection.fingerprints["a"].channels) == 3


# names of classes


@pytest.mark.parametrize(
    ("numbers", "classes"),
    [
        ((1,), {"background": 0, "foreground": 1}),
        ((255,), {"background": 0, "foreground": 255}),
        ((1, 2, 4), {"background": 0, "class-1": 1, "class-2": 2, "class-4": 4}),
    ],
)
def test_unnamed_classes_are_named_by_the_labels(tmp_path, numbers, classes):
    folder = Folder(tmp_path)
    folder.add("a", label=mask(*numbers))
    assert folder.inspect().classes == classes


def test_the_ignore_number_is_no_class(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", label=mask(1, 9))
    assert folder.inspect(ignore=9).classes == {"background": 0, "foreground": 1}


def test_masks_of_1_and_masks_of_255_in_one_dataset_are_fatal(folder):
    folder.add("b", label=mask(255))
    assert "some masks mark the foreground by 1 and others by 255" in said(
        folder.inspect(), "", fatal=True
    )


def test_a_mask_of_many_shades_looks_like_a_picture(folder):
    shades = np.random.default_rng(0).integers(0, 256, SHAPE).astype(np.uint8)
    folder.add("jpeg", label=shades)
    inspection = folder.inspect()
    assert "looks like a picture saved with loss" in said(inspection, "jpeg", fatal=True)
    assert inspection.classes == {"background": 0, "foreground": 1}


def test_many_shades_in_a_named_dataset_are_one_problem(folder):
    folder.add("jpeg", label=np.arange(720).reshape(SHAPE).astype(np.uint8))
    inspection = folder.inspect(classes={"background": 0, "tumor": 1})
    assert [p.case for p in inspection.problems] == ["jpeg"]


# fatal problems


def test_a_number_that_the_dataset_does_not_name_is_given_with_its_count(folder):
    folder.add("odd", label=mask(1, 3))
    inspection = folder.inspect(classes={"background": 0, "tumor": 1})
    assert "does not name: 3 (90 voxels); it names 0 background, 1 tumor" in said(
        inspection, "odd", fatal=True
    )


def test_a_label_of_another_shape_is_fatal(folder):
    folder.add("short", label=mask(1)[:, :, :-1])
    assert "shape (8, 9, 10) against (8, 9, 9)" in said(folder.inspect(), "short", fatal=True)


def test_a_label_of_another_affine_is_fatal(folder):
    folder.add("moved", label=mask(1))
    save(folder.cases[1].label, mask(1), spacing=1.2)
    assert "voxel spacing (1, 1, 1) against (1.2, 1.2, 1.2) mm" in said(
        folder.inspect(), "moved", fatal=True
    )


def test_a_constant_image_is_fatal(folder):
    folder.add("flat", np.full(SHAPE, 7, np.float32))
    assert "constant: every voxel is 7" in said(folder.inspect(), "flat", fatal=True)


def test_one_constant_channel_of_several_is_a_warning(tmp_path):
    folder = Folder(tmp_path)
    image = scan(0, *SHAPE, 2)
    image[..., 1] = 0
    folder.add("a", image, mask(1))
    assert "channel 1 is constant" in said(folder.inspect(), "a", fatal=False)


def test_another_number_of_channels_is_fatal(folder):
    folder.add("other")
    folder.add("two", scan(0, *SHAPE, 2))
    assert "has 2 channels of shape (8, 9, 10), and the dataset has 1 elsewhere" in said(
        folder.inspect(), "two", fatal=True
    )


def test_channels_that_the_dataset_names_must_be_there(folder):
    inspection = folder.inspect(channels=("T1", "T2"))
    assert "the dataset names 2 (T1, T2)" in said(inspection, "good", fatal=True)


def test_a_2d_image_among_volumes_is_fatal(folder):
    PIL.Image.new("L", (4, 4)).save(folder.root / "a.png")
    folder.cases.append(Case("a", (folder.root / "a.png",)))
    assert "where a 3D image is expected" in said(folder.inspect(), "a", fatal=True)


def test_a_missing_file_is_a_problem_of_its_case(folder):
    folder.cases.append(Case("gone", (folder.root / "gone.nii",)))
    assert "gone.nii does not exist" in said(folder.inspect(), "gone", fatal=True)


def test_one_broken_case_hides_neither_its_own_problems_nor_those_of_others(folder):
    broken = scan()
    broken[0, 0, 0] = np.nan
    folder.add("broken", broken, mask(1, 3))
    folder.add("flat", np.zeros(SHAPE, np.float32))
    inspection = folder.inspect(classes={"background": 0, "tumor": 1})
    own = said(inspection, "broken", fatal=True)
    assert "holds 1 voxels that are NaN or infinite" in own
    assert "does not name: 3" in own
    assert "constant" in said(inspection, "flat", fatal=True)


def test_every_problem_comes_with_a_remedy(folder):
    folder.add("flat", np.zeros(SHAPE, np.float32), mask())
    folder.cases.append(Case("gone", (folder.root / "gone.nii",)))
    assert all(problem.remedy for problem in folder.inspect().problems)


def test_labels_without_any_foreground_in_the_whole_dataset_are_fatal(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", label=mask())
    assert "is in none of the 1 labels" in said(folder.inspect(), "", fatal=True)


# warnings


def test_a_label_without_foreground_is_a_warning(folder):
    folder.add("empty", label=mask())
    assert "no foreground at all" in said(folder.inspect(), "empty", fatal=False)


def test_a_spacing_far_from_the_others_is_a_warning(folder):
    folder.add("b")
    folder.add("far", spacing=5.0)
    assert "5 x 5 x 5 mm is far from the usual 1 x 1 x 1 mm" in said(
        folder.inspect(), "far", fatal=False
    )


def test_a_class_that_no_label_shows_is_a_warning(folder):
    classes = {"background": 0, "tumor": 1, "cyst": 2}
    assert "class 'cyst' (2) is in none of the 1 labels" in said(
        folder.inspect(classes=classes), "", fatal=False
    )
