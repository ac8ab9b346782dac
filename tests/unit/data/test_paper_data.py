"""The datasets of the paper are prepared as its section 5.1 describes them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from paper_datasets import make_brats2018, make_carve, make_task01, make_task05

from segpl.data.case import Case
from segpl.data.layouts import read_dataset
from segpl.data.paper.brats import find_brats, prepare_brats
from segpl.data.paper.carve import find_carve, matching_part, prepare_carve
from segpl.data.paper.decathlon_tasks import prepare_task01, prepare_task05
from segpl.data.paper.prepared import PaperData, draw_roles
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image
from segpl.data.readers import read_image, read_label
from segpl.errors import InputError, MissingFileError, UnusableFileError

CARVE = PaperData(
    patch=(16, 20, 3),
    labeled={"two": (2,), "three": (3,)},
    unlabeled=2,
    validation=1,
    test=5,
    test_samples=7,
)
BRATS = PaperData(
    patch=(14, 16), labeled={"few": (3,), "many": (4, 4)}, unlabeled=2, validation=1, test=2
)
TASK01 = PaperData(patch=(16, 16, 16), labeled={"task01": (1, 1)}, unlabeled=2, test=2)
TASK05 = PaperData(patch=(16, 16, 8), labeled={"task05": (1,)}, unlabeled=2, test=1)


def subjects(cases: list[Case]) -> set[str]:
    return {case.subject.partition("-")[2] for case in cases}


def stored(path: Path) -> np.ndarray:
    return np.load(path) if path.suffix == ".npy" else np.asarray(nibabel.load(path).dataobj)


@pytest.fixture(scope="module")
def carve_source(tmp_path_factory) -> Path:
    return make_carve(tmp_path_factory.mktemp("carve"))


@pytest.fixture(scope="module")
def carve_root(carve_source, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    prepare_carve(carve_source, root, CARVE, list)
    return root


def test_other_seeds_draw_other_cases():
    names = [f"case{number:02d}" for number in range(10)]
    draws = {tuple(draw_roles(names, replace(CARVE, seed=seed))) for seed in range(5)}
    assert len(draws) > 1


def test_parts_of_a_dataset_share_no_case(carve_root):
    data = read_dataset(carve_root / "three")
    validation = [case for case in data.labeled if case.name.startswith("validation")]
    labeled = [case for case in data.labeled if case.name.startswith("labeled")]
    parts = [subjects(part) for part in (labeled, data.unlabeled, validation, data.test)]
    assert [len(part) for part in parts] == [1, 2, 1, 5]
    assert len(set.union(*parts)) == 9
    assert len(labeled) == 3
    assert len(data.test) == 7


def test_arteries_and_veins_are_one_class_and_unknown_voxels_are_ignored(carve_root):
    label = stored(read_dataset(carve_root / "two").test[0].label)
    assert label.shape == (16, 20, 3)
    assert set(np.unique(label)) == {0, 1, 255}
    # the center of 24 rows and 28 columns; the cropped case is centered
    assert (label[4:8, 6:10] == 1).all()
    assert (label[10:14, 8:11] == 1).all()


def test_samples_with_a_label_contain_a_vessel_and_unlabeled_ones_are_all_slabs(carve_root):
    data = read_dataset(carve_root / "three")
    assert all((stored(case.label) == 1).any() for case in (*data.labeled, *data.test))
    assert len(data.unlabeled) >= 9  # 4 or 5 slabs of each case
    assert not list((carve_root / "samples" / "labels").glob("unlabeled*"))


def test_every_case_is_normalized_as_a_whole(carve_source, carve_root):
    for case in read_dataset(carve_root / "two").unlabeled:
        name, first = case.name.split("-")[1].split("_z")
        scan, label = find_carve(carve_source)[name]
        whole = matching_part(read_image([scan], 3), read_label(label, 3))[0]
        rows, columns = (whole.shape[0] - 16) // 2, (whole.shape[1] - 20) // 2
        expected = (whole - whole.mean()) / whole.std()
        part = expected[rows : rows + 16, columns : columns + 20, int(first) : int(first) + 3]
        np.testing.assert_allclose(stored(case.images[0]), part, atol=1e-4)


def test_cropped_annotation_is_found_in_its_scan(carve_source):
    scan, label = find_carve(carve_source)["case00"]
    image = read_image([scan], 3)
    part = matching_part(image, read_label(label, 3))
    np.testing.assert_array_equal(part, image.array[:, 2:22, 2:26, 3:])


def test_only_full_annotations_count(carve_source):
    assert len(find_carve(carve_source)) == 10
    assert all(
        label.name == scan.name.replace(".7.mhd", "_fullAnnotations.mhd")
        for scan, label in find_carve(carve_source).values()
    )


@pytest.fixture(scope="module")
def brats_root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    source = make_brats2018(tmp_path_factory.mktemp("brats"))
    prepare_brats(source, root, BRATS, list).write(root / "plan.json")
    return root


def test_slices_are_cropped_at_the_center_and_keep_label_4(brats_root):
    case = read_dataset(brats_root / "few").test[0]
    label = stored(case.label)
    assert label.shape == (14, 16)
    assert set(np.unique(label)) == {0, 1, 2, 4}
    assert (label[3:11, 4:12] > 0).all()
    assert (label[5:7, 6:8] == 4).all()
    assert stored(case.images[0]).shape == (4, 14, 16)


def test_slices_of_one_or_two_cases_are_labeled(brats_root):
    for name, cases, slices in (("few", 1, 3), ("many", 2, 8)):
        data = read_dataset(brats_root / name)
        labeled = [case for case in data.labeled if case.name.startswith("labeled")]
        assert (len(subjects(labeled)), len(labeled)) == (cases, slices)


def test_held_out_slices_contain_a_tumor_and_low_grade_cases_are_not_used(brats_root):
    data = read_dataset(brats_root / "many")
    assert len(data.test) == 2 * 4
    assert all(stored(case.label).any() for case in data.test)
    assert len(data.unlabeled) == 2 * 10  # two slices lie beyond the head
    labeled = [*data.labeled, *data.test]
    assert len(subjects([*labeled, *data.unlabeled])) == 7


def test_a_plan_leaves_the_normalized_intensities_alone(brats_root):
    image = read_image(read_dataset(brats_root / "few").test[0].images, 2)
    plan = Plan.read(brats_root / "plan.json")
    np.testing.assert_array_equal(prepare_image(image, plan), image.array)
    assert plan.classes == {"background": 0, "necrosis": 1, "edema": 2, "enhancing": 4}
    assert plan.channels == ("flair", "t1", "t1ce", "t2")


def test_first_cases_of_task01_are_labeled_and_test_images_unlabeled(tmp_path):
    source = make_task01(tmp_path)
    plan = prepare_task01(tmp_path, tmp_path / "out", TASK01, list)
    data = read_dataset(tmp_path / "out" / "task01")
    assert [case.name for case in data.labeled] == ["BRATS_001", "BRATS_002"]
    assert [case.name for case in data.test] == ["BRATS_003", "BRATS_004"]
    assert [case.name for case in data.unlabeled] == ["BRATS_005", "BRATS_006"]
    label = stored(data.test[0].label)
    expected = stored(source / "labelsTr" / "BRATS_003.nii.gz") > 0
    np.testing.assert_array_equal(label, expected)
    image = data.labeled[0].images[0]
    assert image.resolve() == (source / "imagesTr" / image.name).resolve()
    training = [stored(c.images[0]) for c in (*data.labeled, *data.unlabeled)]
    voxels = np.stack(training).reshape(-1, 4).astype(float)
    np.testing.assert_allclose([rule.mean for rule in plan.normalization], voxels.mean(0))
    np.testing.assert_allclose([rule.std for rule in plan.normalization], voxels.std(0))
    prepared = prepare_image(read_image(data.test[0].images, 3), plan)
    raw = np.moveaxis(stored(data.test[0].images[0]), -1, 0).astype(float)
    wanted = (raw - voxels.mean(0)[:, None, None, None]) / voxels.std(0)[:, None, None, None]
    np.testing.assert_allclose(prepared, wanted, atol=1e-3)


def test_task05_uses_training_cases_only_and_is_not_resampled(tmp_path):
    source = make_task05(tmp_path)
    upright = {path.name: stored(path) for path in (source / "labelsTr").glob("p*.nii.gz")}
    for path in (source / "labelsTr").glob("p*.nii.gz"):  # the same voxels in other axes
        nibabel.load(path).as_reoriented([[1, -1], [0, 1], [2, 1]]).to_filename(path)
    plan = prepare_task05(source, tmp_path / "out", TASK05, list)
    data = read_dataset(tmp_path / "out" / "task05")
    assert [len(part) for part in (data.labeled, data.unlabeled, data.test)] == [1, 2, 1]
    for case in data.cases:
        original = source / "imagesTr" / case.images[0].name
        np.testing.assert_array_equal(stored(case.images[0]), stored(original))
        shape = prepare_image(read_image(case.images, 3), plan).shape
        assert shape == (2, 20, 20, 10)
    label = stored(data.test[0].label)
    np.testing.assert_array_equal(label, upright[data.test[0].label.name] > 0)
    assert len(list((tmp_path / "out" / "samples" / "labels").iterdir())) == 2


def test_missing_modality_is_named(tmp_path):
    make_brats2018(tmp_path)
    gone = next((tmp_path / "HGG").rglob("*_t1ce.nii.gz"))
    gone.unlink()
    with pytest.raises(MissingFileError, match=f"Missing files: 1 .*{gone.name}"):
        find_brats(tmp_path)


@pytest.mark.parametrize(
    "pattern", ["*.7.mhd", "*.7.raw", "*_fullAnnotations.mhd", "*_fullAnnotations.raw"]
)
def test_missing_file_of_a_scan_is_named(tmp_path, pattern):
    make_carve(tmp_path, cases=2)
    gone = min(tmp_path.glob(pattern))
    gone.unlink()
    with pytest.raises(MissingFileError, match=rf"Missing files: 1 \({gone.name}\)"):
        find_carve(tmp_path)


@pytest.mark.parametrize(("folder", "what"), [("imagesTr", "image"), ("labelsTr", "label")])
def test_missing_file_of_a_task_is_named(tmp_path, folder, what):
    source = make_task05(tmp_path)
    shutil.rmtree(source / folder)
    words = rf"is incomplete: case prostate_000 has no {what}.*segpl data get task05"
    with pytest.raises(MissingFileError, match=words):
        prepare_task05(source, tmp_path / "out", TASK05, list)


@pytest.mark.parametrize(
    ("prepare", "data", "words"),
    [
        (prepare_carve, CARVE, "Register at https://arteryvein.grand-challenge.org"),
        (prepare_brats, BRATS, "Register at https://www.med.upenn.edu/sbia/brats2018"),
        (prepare_task01, TASK01, "segpl data get task01"),
        (prepare_task05, TASK05, "segpl data get task05"),
    ],
)
def test_empty_folder_says_where_the_data_are(tmp_path, prepare, data, words):
    with pytest.raises(MissingFileError, match=words):
        prepare(tmp_path, tmp_path / "out", data, list)


def test_too_few_cases_are_counted(tmp_path):
    make_brats2018(tmp_path, cases=6)
    with pytest.raises(InputError, match="has 6 cases, but the experiment needs 7"):
        prepare_brats(tmp_path, tmp_path / "out", BRATS, list)


@pytest.mark.parametrize(
    ("make", "prepare", "data", "found"),
    [
        (make_carve, prepare_carve, CARVE, 10),
        (make_brats2018, prepare_brats, BRATS, 7),
        (make_task01, prepare_task01, TASK01, 4),
        (make_task05, prepare_task05, TASK05, 5),
    ],
)
def test_other_cases_than_those_of_the_complete_dataset_are_an_error(
    tmp_path, make, prepare, data, found
):
    source = make(tmp_path / "source")
    for cases, remedy in ((found + 1, "Unpack the others"), (found - 1, "Remove copies")):
        words = (
            rf"has {found} annotated cases, .* has {cases}\. {remedy}\. .*paper.data.cases={found}"
        )
        with pytest.raises(InputError, match=words):
            prepare(source, tmp_path / "out", replace(data, cases=cases), list)
    prepare(source, tmp_path / "out", replace(data, cases=found), list)


def test_archive_that_is_not_unpacked_is_named(tmp_path):
    (tmp_path / "Task01_BrainTumour.tar").touch()
    with pytest.raises(MissingFileError, match=r"Unpack .*Task01_BrainTumour\.tar, or download"):
        prepare_task01(tmp_path, tmp_path / "out", TASK01, list)


@pytest.mark.parametrize(
    ("make", "prepare", "data", "pattern"),
    [
        (make_carve, prepare_carve, CARVE, "*.7.raw"),
        (make_carve, prepare_carve, CARVE, "*_fullAnnotations.raw"),
        (make_brats2018, prepare_brats, BRATS, "HGG/*/*_t1.nii.gz"),
        (make_brats2018, prepare_brats, BRATS, "HGG/*/*_seg.nii.gz"),
        (make_task01, prepare_task01, TASK01, "imagesTr/BRATS*"),
        (make_task01, prepare_task01, TASK01, "imagesTs/BRATS*"),
        (make_task05, prepare_task05, TASK05, "labelsTr/prostate*"),
    ],
)
def test_empty_files_are_errors(tmp_path, make, prepare, data, pattern):
    source = make(tmp_path / "source")
    for path in source.glob(pattern):
        path.write_bytes(b"")
    with pytest.raises(UnusableFileError, match="corrupt or truncated"):
        prepare(source, tmp_path / "out", data, list)
