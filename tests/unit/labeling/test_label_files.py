"""Label files of a labeling session: grids, places, earlier versions, drafts and states."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from nibabel.orientations import axcodes2ornt, ornt_transform
from PIL import Image

from segpl.data.case import Case
from segpl.data.geometry import reorient, undo_reorient
from segpl.data.layouts import read_dataset
from segpl.data.readers import prediction_mark, read_image, read_label, suffix_of
from segpl.errors import InputError
from segpl.labeling.class_table import ClassTable
from segpl.labeling.label_files import Draft, LabelFiles, label_stamp, label_target
from segpl.predict.writers import write_labels

SHAPE = (5, 6, 7)
CLASSES = ClassTable(("background", "organ", "tumor"), (0, 7, 300))
OBLIQUE = np.array(
    [[0.68, -0.12, 0.03, -31.7], [0.11, 0.71, -0.09, 12.3], [-0.02, 0.1, 2.5, 5.1], [0, 0, 0, 1]]
)
ORIENTATIONS = [
    "".join(axes)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for axes in itertools.product(*order)
]


def write_scan(path: Path, affine: np.ndarray = OBLIQUE, shape: tuple[int, ...] = SHAPE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    nibabel.Nifti1Image(values, affine).to_filename(path)


def drawn(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)


@pytest.fixture
def data(tmp_path) -> Path:
    root = tmp_path / "data"
    for name in ("a", "b"):
        write_scan(root / "images" / f"{name}.nii.gz")
    return root


def files_of(root: Path, labels: Path | None = None) -> LabelFiles:
    return LabelFiles(read_dataset(root), labels, CLASSES)


def save(files: LabelFiles, root: Path, name: str, indices: np.ndarray, **options: str) -> Path:
    dataset = read_dataset(root, labels=files.folder)
    case = dataset.case(name)
    grid = read_image(case.images, indices.ndim).grid
    return files.save(dataset, case, indices, grid, **{"state": "labeled", **options})


def test_a_saved_label_is_no_prediction_even_if_its_voxels_are_those_of_one(data):
    """The page shows the mask of a run, and somebody accepts it."""
    indices, path = drawn(), data / "labels" / "a.nii.gz"
    path.parent.mkdir()
    labels = CLASSES.labels(indices)
    image = data / "images" / "a.nii.gz"
    write_labels(path, labels, image, comment=prediction_mark(labels))
    assert read_label(path).is_prediction
    assert save(files_of(data), data, "a", indices) == path
    assert not read_label(path).is_prediction


@pytest.mark.parametrize("codes", ORIENTATIONS)
def test_label_has_the_voxels_and_the_exact_affine_of_its_image(tmp_path, codes):
    """The browser draws on RAS axes; the file keeps the axes and the affine of the scan."""
    turns = ornt_transform(axcodes2ornt(tuple("RAS")), axcodes2ornt(tuple(codes)))
    values = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
    (tmp_path / "images").mkdir()
    turned = nibabel.Nifti1Image(values, OBLIQUE).as_reoriented(turns)
    turned.to_filename(tmp_path / "images" / "a.nii.gz")
    header = nibabel.load(tmp_path / "images" / "a.nii.gz").header
    image = read_image([tmp_path / "images" / "a.nii.gz"], 3)
    np.testing.assert_array_equal(reorient(image.array, image.grid.affine, "RAS")[0], values)
    picture = drawn()
    indices = undo_reorient(picture[None], image.grid.affine, "RAS")[0]
    path = save(files_of(tmp_path), tmp_path, "a", indices)
    written = nibabel.load(path)
    assert written.affine.tobytes() == header.get_best_affine().tobytes()
    stored = np.asarray(written.dataobj)
    again = reorient(CLASSES.indices(stored, path)[None], written.affine, "RAS")[0]
    np.testing.assert_array_equal(again, picture)


def test_numbers_in_the_file_are_those_of_the_classes(data):
    path = save(files_of(data), data, "a", drawn())
    assert path == data / "labels" / "a.nii.gz"
    expected = np.array([0, 7, 300])[drawn()]
    np.testing.assert_array_equal(read_label(path).array, expected)
    assert [case.name for case in read_dataset(data).labeled] == ["a"]


def test_a_picture_gets_a_png(tmp_path):
    (tmp_path / "imgs").mkdir()
    Image.fromarray(np.zeros((4, 9), np.uint8)).save(tmp_path / "imgs" / "x.jpg")
    path = save(files_of(tmp_path), tmp_path, "x", drawn((4, 9)))
    assert path == tmp_path / "labels" / "x.png"
    np.testing.assert_array_equal(read_label(path).array, np.array([0, 7, 300])[drawn((4, 9))])


@pytest.mark.parametrize("is_uint8", [True, False])
def test_every_replaced_label_is_kept(data, is_uint8):
    path = data / "labels" / "a.nii.gz"
    path.parent.mkdir()
    first = np.full(SHAPE, 7, np.uint8 if is_uint8 else np.int16)
    nibabel.Nifti1Image(first, OBLIQUE).to_filename(path)
    original = path.read_bytes()
    files = files_of(data)
    save(files, data, "a", drawn())
    second = path.read_bytes()
    save(files, data, "a", np.zeros(SHAPE, np.uint8))
    assert [version.read_bytes() for version in files.versions("a")] == [original, second]
    assert files.versions("b") == []


def test_label_of_another_format_is_replaced_and_kept(tmp_path):
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    Image.fromarray(np.zeros((4, 9), np.uint8)).save(tmp_path / "images" / "x.png")
    Image.fromarray(np.full((4, 9), 7, np.uint8)).save(tmp_path / "labels" / "x.tif")
    files = files_of(tmp_path)
    assert save(files, tmp_path, "x", drawn((4, 9))).name == "x.png"
    assert [path.name for path in (tmp_path / "labels").iterdir()] == ["x.png"]
    assert [path.suffix for path in files.versions("x")] == [".tif"]


def test_label_of_several_masks_is_replaced_only_in_another_folder(tmp_path):
    for path in ("a/ct.nii.gz", "a/liver.nii.gz", "a/spleen.nii.gz"):
        write_scan(tmp_path / "data" / path)
    layout = "{case}/ct.nii.gz -> {case}/liver.nii.gz + {case}/spleen.nii.gz"
    dataset = read_dataset(tmp_path / "data", layout)
    (case,) = dataset.cases
    assert label_target(dataset, case, None) is None
    assert label_target(dataset, case, case.label.parent) is None
    before = {path: path.read_bytes() for path in case.label_files}
    files = LabelFiles(dataset, tmp_path / "new", CLASSES)
    grid = read_image(case.images, 3).grid
    path = files.save(dataset, case, drawn(), grid, state="labeled")
    assert path == tmp_path / "new" / "a.nii.gz"
    assert {path: path.read_bytes() for path in before} == before
    assert files.versions("a") == []


def test_stamp_of_a_label_changes_with_each_of_its_masks(tmp_path):
    masks = tuple(tmp_path / f"{name}.nii.gz" for name in ("liver", "spleen"))
    for path in masks:
        write_scan(path)
    case = Case("a", (), masks[0], masks=masks)
    stamps = {label_stamp(case)}
    for path in masks:
        write_scan(path, shape=(5, 6, 8))
        stamps.add(label_stamp(case))
    assert len(stamps) == 3


def test_labels_folder_leaves_the_dataset_unchanged(data, tmp_path):
    before = sorted(data.rglob("*"))
    folder = tmp_path / "mine"
    folder.mkdir()
    files = files_of(data, folder)
    assert save(files, data, "b", drawn()) == folder / "b.nii.gz"
    assert sorted(data.rglob("*")) == before
    (labeled,) = read_dataset(data, labels=folder).labeled
    assert (labeled.name, labeled.label) == ("b", folder / "b.nii.gz")


@pytest.mark.parametrize(("suffix", "kept"), [(".nii", ".nii"), (".nrrd", ".nii.gz")])
def test_labels_folder_has_one_label_per_scan(data, tmp_path, suffix, kept):
    """3D Slicer may have saved another format than that of the image."""
    folder = tmp_path / "mine"
    write_scan(folder / "a.nii", np.eye(4))  # ITK reads no sheared affine
    if suffix == ".nrrd":
        sitk = pytest.importorskip("SimpleITK")
        sitk.WriteImage(sitk.ReadImage(folder / "a.nii"), folder / "a.nrrd")
        (folder / "a.nii").unlink()
    files = files_of(data, folder)
    path = save(files, data, "a", drawn())
    assert path == folder / f"a{kept}"
    assert [one.name for one in folder.iterdir() if one.is_file()] == [path.name]
    assert [suffix_of(one) for one in files.versions("a")] == [suffix]
    assert read_dataset(data, labels=folder).case("a").label == path


def test_unlabeled_folder_needs_a_folder_for_labels(tmp_path):
    write_scan(tmp_path / "labeled" / "imgs" / "a.nii.gz")
    write_scan(tmp_path / "unlabeled" / "imgs" / "b.nii.gz")
    with pytest.raises(InputError, match=r"label of 1 scan, such as 'b'\..*--labels"):
        files_of(tmp_path)


def test_read_only_dataset_needs_a_folder_for_labels(data, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(InputError, match=r"no permission to write labels to .*--labels FOLDER"):
        files_of(data)


@pytest.mark.parametrize(("listed", "expected"), [(False, "labelsTr"), (True, None)])
def test_decathlon_labels_have_a_place_unless_a_list_names_them(tmp_path, listed, expected):
    write_scan(tmp_path / "imagesTr" / "a.nii.gz")
    write_scan(tmp_path / "imagesTr" / "b.nii.gz")
    write_scan(tmp_path / "labelsTr" / "a.nii.gz")
    if listed:
        entry = {"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"}
        (tmp_path / "dataset.json").write_text(json.dumps({"training": [entry]}))
    dataset = read_dataset(tmp_path)
    place = label_target(dataset, dataset.case("b"), None)
    assert (place and place.parent.name) == expected


def test_nnunet_label_has_no_channel_number(tmp_path):
    write_scan(tmp_path / "imagesTr" / "a_0000.nii.gz")
    write_scan(tmp_path / "labelsTr" / "a.nii.gz")
    write_scan(tmp_path / "imagesTr" / "b_0000.nii.gz")
    dataset = read_dataset(tmp_path)
    assert label_target(dataset, dataset.case("b"), None) == tmp_path / "labelsTr" / "b.nii.gz"


def test_states_follow_the_files(data):
    files = files_of(data)

    def state(name: str, *, is_predicted: bool = False) -> str:
        case = read_dataset(data).case(name)
        return files.state(case, files.entries(), is_predicted=is_predicted)

    assert (state("a"), state("a", is_predicted=True)) == ("unlabeled", "predicted")
    files.skip("a")
    assert state("a", is_predicted=True) == "skipped"
    path = save(files, data, "a", drawn(), state="corrected")
    assert state("a") == "corrected"
    # a mask that another program saves counts as labeled
    nibabel.Nifti1Image(np.full(SHAPE, 7, np.uint8), OBLIQUE).to_filename(path)
    assert state("a") == "labeled"
    nibabel.Nifti1Image(np.full(SHAPE, 7, np.uint8), OBLIQUE).to_filename(path.with_name("b.nii"))
    assert state("b") == "labeled"


def test_draft_survives_and_saving_removes_it(data):
    files = files_of(data)
    assert files.draft("a", SHAPE) is None
    files.save_draft("a", Draft(drawn(), "predicted", "stamp"))
    found = files_of(data).draft("a", SHAPE)
    assert found is not None
    np.testing.assert_array_equal(found.indices, drawn())
    assert (found.start, found.stamp) == ("predicted", "stamp")
    save(files, data, "a", drawn())
    assert files.draft("a", SHAPE) is None


@pytest.mark.parametrize(
    "damage", ["empty", "no archive", "truncated", "changed", "other shape", "other classes"]
)
def test_draft_that_does_not_fit_is_an_error(data, damage):
    files = files_of(data)
    shape = (5, 6, 8) if damage == "other shape" else SHAPE
    added = 1 if damage == "other classes" else 0
    files.save_draft("a", Draft(drawn(shape) + np.uint8(added), "labeled", ""))
    path = files.draft_file("a")
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "no archive": b"no archive",
        "truncated": content[:-9],
        "changed": content[:60] + bytes([255] * 20) + content[80:],
    }
    path.write_bytes(damaged.get(damage, content))
    with pytest.raises(InputError, match="does not fit the scan"):
        files.draft("a", SHAPE)


def test_interrupted_save_keeps_label_and_draft(data, monkeypatch):
    files = files_of(data)
    path = save(files, data, "a", drawn())
    before = path.read_bytes()
    files.save_draft("a", Draft(drawn(), "labeled", ""))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nibabel.Nifti1Image.to_filename", die)
    with pytest.raises(KeyboardInterrupt):
        save(files, data, "a", np.zeros(SHAPE, np.uint8))
    assert path.read_bytes() == before
    assert files.draft("a", SHAPE) is not None
    assert [one.name for one in path.parent.iterdir()] == ["a.nii.gz"]


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "../../x", "a\\b", ".hidden", "ü" * 120, "a" * 251]
)
def test_case_name_never_leaves_its_folder(data, name):
    """Names of DICOM cases come from the files."""
    files = files_of(data)
    files.save_draft(name, Draft(drawn(), "labeled", ""))
    assert files.draft_file(name).parent == files.work / "drafts"
    assert files.draft_file(name) != files.draft_file(f"{name}a")
    image = data / "images" / "a.nii.gz"
    case = Case(name, (image,))
    kept = files.keep_strokes(case, drawn(), read_image([image], 3).grid)
    assert kept.resolve().parents[1] == files.work / "versions"
    assert files.versions(name) == [kept]


def test_label_of_a_traversing_name_is_refused(data, tmp_path):
    dataset = read_dataset(data)
    case = Case("../x", dataset.cases[0].images)
    with pytest.raises(InputError, match="points outside"):
        LabelFiles(replace(dataset, cases=(case,)), tmp_path / "mine", CLASSES)


@pytest.mark.parametrize("name", [".segpl", ".segpl/versions", ".segpl/drafts"])
def test_links_out_of_the_dataset_are_refused(data, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="points outside"):
        files_of(data)


def test_linked_label_is_replaced_and_its_target_is_not(data, tmp_path):
    outside = tmp_path / "outside.nii.gz"
    write_scan(outside)
    before = outside.read_bytes()
    (data / "labels").mkdir()
    (data / "labels" / "a.nii.gz").symlink_to(outside)
    files = files_of(data)
    path = save(files, data, "a", drawn())
    assert not path.is_symlink()
    assert outside.read_bytes() == before
    assert [one.read_bytes() for one in files.versions("a")] == [before]


def test_number_without_a_class_is_an_error():
    with pytest.raises(InputError, match="mask contains 5, but the classes are 0 background"):
        CLASSES.indices(np.array([[0, 7, 5]]), "mask")


@pytest.mark.parametrize("name", ["c.nii.gz", "a.nii"])
def test_labels_folder_with_an_unusable_name_is_an_error(data, tmp_path, name):
    write_scan(tmp_path / "mine" / "a.nii.gz")
    write_scan(tmp_path / "mine" / name)
    with pytest.raises(InputError, match=r"not named after any case|two labels have the same name"):
        read_dataset(data, labels=tmp_path / "mine")


def test_at_most_255_classes_can_be_drawn():
    names = tuple(map(str, range(257)))
    assert len(ClassTable(names[:256], tuple(range(256))).names) == 256
    with pytest.raises(InputError, match="257 classes"):
        ClassTable(names, tuple(range(257)))
