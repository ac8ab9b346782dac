"""Which DICOM files become cases, labels, names and subjects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from generated_dicom import AXIAL, make_contours, make_series, new_file, ramp, save

from segpl.data.dicom.series import open_series
from segpl.data.dicom.write import write_segmentation
from segpl.data.inspect import inspect
from segpl.data.layouts import read_dataset
from segpl.data.layouts.content import list_content, unused_files
from segpl.data.readers import read_case_label
from segpl.errors import InputError, UnusableFileError

SQUARE = np.array([(-30.0, 14.0), (-26.0, 14.0), (-26.0, 18.0), (-30.0, 18.0)])


def contour(place: int) -> np.ndarray:
    """A square of 8 x 5 pixels on a slice of `make_series`."""
    return np.column_stack([SQUARE, np.full(4, 7.0 + 2.5 * place)])


def add_case(root: Path, name: str, *segments: str, patient: str = "", **options) -> Path:
    """A series in a folder of its own, and its contours beside it; without segments, no label."""
    series = make_series(patient=patient or name, **options)
    save(series, root / name, "IM{:04d}")
    if segments:
        structures = {segment: [contour(place)] for place, segment in enumerate(segments)}
        save([make_contours(series, structures)], root / "contours" / name)
    return root


def rejection(root: Path) -> str:
    with pytest.raises((InputError, UnusableFileError)) as caught:
        read_dataset(root)
    return str(caught.value)


def test_series_are_cases_and_labels_are_matched_by_reference(tmp_path):
    add_case(tmp_path, "p1/t2", "prostate")
    add_case(tmp_path, "p2/t2")
    dataset = read_dataset(tmp_path)
    assert dataset.layout == "dicom"
    assert dataset.channels == ("MR",)
    assert [case.name for case in dataset.labeled] == ["p1-t2"]
    assert [case.name for case in dataset.unlabeled] == ["p2-t2"]
    assert len(dataset.cases[0].images) == 5


def test_segment_names_have_the_same_number_in_every_case(tmp_path):
    add_case(tmp_path, "a", "Prostate", "bladder")
    add_case(tmp_path, "b", "prostate")
    add_case(tmp_path, "c", "bladder", "rectum")
    dataset = read_dataset(tmp_path)
    assert dataset.classes == {"background": 0, "bladder": 1, "Prostate": 2, "rectum": 3}
    found = {case.name: read_case_label(case).array for case in dataset.cases}
    assert {name: sorted(np.unique(label).tolist()) for name, label in found.items()} == {
        "a": [0, 1, 2],
        "b": [0, 2],
        "c": [0, 1, 3],
    }
    assert all((label[..., 0] > 0).sum() == 8 * 5 for label in found.values())


def test_labels_json_chooses_classes_and_numbers(tmp_path):
    add_case(tmp_path, "a", "prostate", "couch")
    (tmp_path / "labels.json").write_text(json.dumps({"prostate": 4}))
    dataset = read_dataset(tmp_path)
    assert dataset.classes == {"background": 0, "prostate": 4}
    assert np.unique(read_case_label(dataset.cases[0]).array).tolist() == [0, 4]


def test_inspection_of_a_dicom_dataset_finds_no_problem(tmp_path):
    add_case(tmp_path, "a", "prostate")
    add_case(tmp_path, "b", voxels=ramp()[::-1])
    dataset = read_dataset(tmp_path)
    inspection = inspect(dataset, read_labels_of=["a", "b"])
    assert (inspection.dims, inspection.problems) == (3, ())


def test_refused_series_is_a_problem_of_its_case_only(tmp_path):
    add_case(tmp_path, "a", "prostate")
    add_case(tmp_path, "b", shear=(0, 1, 0))
    (problem,) = inspect(read_dataset(tmp_path), read_labels_of=["a"]).problems
    assert problem.case == "b"
    assert "gantry tilt" in problem.what


def test_series_in_one_folder_are_named_by_their_numbers(tmp_path):
    for number in (3, 12):
        save(make_series(number=number), tmp_path / "export", f"{number}-{{}}.dcm")
    assert [case.name for case in read_dataset(tmp_path).cases] == ["export-12", "export-3"]


def test_series_with_equal_numbers_have_different_stable_names(tmp_path):
    for part in "ab":
        save(make_series(), tmp_path / "export", f"{part}{{}}")
    names = [case.name for case in read_dataset(tmp_path).cases]
    assert len(set(names)) == 2
    assert names == [case.name for case in read_dataset(tmp_path).cases]


def test_one_series_is_named_after_its_folder(tmp_path):
    save(make_series(), tmp_path / "p7")
    assert [case.name for case in read_dataset(tmp_path / "p7").cases] == ["p7"]


def test_header_of_a_patient_leaves_no_trace_in_names_and_subjects(tmp_path):
    add_case(tmp_path, "a", patient="JANE-DOE")
    add_case(tmp_path, "b", patient="JANE-DOE")
    add_case(tmp_path, "c", patient="other")
    a, b, c = read_dataset(tmp_path).cases
    assert a.subject == b.subject != c.subject
    assert "DOE" not in repr([(case.name, case.subject, case.segments) for case in (a, b, c)])


def test_one_patient_id_for_everybody_does_not_merge_the_cases(tmp_path):
    for name in "ab":
        add_case(tmp_path, name, patient="anonymous", StudyInstanceUID=f"1.2.{ord(name)}")
    a, b = read_dataset(tmp_path).cases
    assert a.subject != b.subject


def test_files_of_other_kinds_are_left_out(tmp_path):
    add_case(tmp_path, "a")
    add_case(tmp_path, "scout", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    report = new_file("1.2.840.10008.5.1.4.1.1.88.11")
    report.SeriesInstanceUID, report.Modality = "1.2.3", "SR"
    save([report], tmp_path / "report")
    (tmp_path / "a" / "notes.txt").write_text("not DICOM")
    dataset = read_dataset(tmp_path)
    assert [case.name for case in dataset.cases] == ["a"]
    assert unused_files(dataset, list_content(tmp_path)) == [
        "report/003.dcm (files without an image: 1)",
        "scout/IM0003 (localizers: 5)",
    ]


def test_folder_without_a_series_says_what_it_contains(tmp_path):
    add_case(tmp_path, "scout", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    assert "no series of slices. It contains localizers (5)" in rejection(tmp_path)


def test_copies_of_a_file_count_once(tmp_path):
    series = make_series()
    save(series, tmp_path / "a")
    save(series[:2], tmp_path / "copy")
    (case,) = read_dataset(tmp_path).cases
    assert len(case.images) == 5


def test_segmentations_of_segpl_are_not_labels(tmp_path):
    series = make_series()
    files = save(series, tmp_path / "a")
    labels = np.ones(open_series(files).shape, np.uint8)
    write_segmentation(tmp_path / "a.dcm", labels, files, {"background": 0, "prostate": 1})
    (case,) = read_dataset(tmp_path).cases
    assert case.label is None


def test_two_labels_of_one_series_are_refused(tmp_path):
    series = make_series()
    save(series, tmp_path / "a")
    for name in ("one", "two"):
        save([make_contours(series, {"prostate": [contour(0)]})], tmp_path / name)
    message = rejection(tmp_path)
    assert "has two labels" in message
    assert str(tmp_path / "one") in message


def test_label_without_its_series_is_refused(tmp_path):
    add_case(tmp_path, "a")
    save([make_contours(make_series(), {"prostate": [contour(0)]})], tmp_path / "lost")
    assert "a label of a series that is missing" in rejection(tmp_path)


def test_label_without_a_series_is_matched_by_the_frame_of_reference(tmp_path):
    series = make_series()
    save(series, tmp_path / "a")
    label = make_contours(series, {"prostate": [contour(0)]})
    del label.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence
    save([label], tmp_path / "contours")
    assert len(read_dataset(tmp_path).labeled) == 1


def test_several_modalities_are_refused(tmp_path):
    add_case(tmp_path, "a")
    add_case(tmp_path, "b", modality="CT")
    assert "several modalities: CT" in rejection(tmp_path)


def test_damaged_file_is_named(tmp_path):
    add_case(tmp_path, "a")
    path = tmp_path / "a" / "broken.dcm"
    path.write_bytes(b"nothing")
    assert f"{path} is not a DICOM file" in rejection(tmp_path)
    content = next(tmp_path.glob("a/IM*")).read_bytes()
    for kept in (132, 300, 600, 800):
        path.write_bytes(content[:kept])
        assert f"{path} is corrupt or truncated" in rejection(tmp_path), kept


def test_predictions_and_pictures_among_the_series_do_not_matter(tmp_path):
    add_case(tmp_path, "a")
    (tmp_path / "a" / "preview.png").touch()
    masks = tmp_path / "masks"
    (masks / "probabilities").mkdir(parents=True)
    (masks / "predictions.json").touch()
    (masks / "probabilities" / "a.nii.gz").touch()
    assert read_dataset(tmp_path).layout == "dicom"


def test_original_files_beside_volumes_with_patterns_are_not_used(tmp_path):
    add_case(tmp_path / "sourcedata", "a")
    for name in ("p1/t1.nii.gz", "p1/seg.nii.gz", "p2/t1.nii.gz", "p2/seg.nii.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert "t1.nii.gz" in read_dataset(tmp_path, accept=True).layout


def test_original_files_beside_another_layout_are_not_used(tmp_path):
    add_case(tmp_path / "original", "a", orientation=AXIAL)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.nii.gz").touch()
    assert read_dataset(tmp_path).layout == "folders"
