"""DICOM-SEG and RTSTRUCT files on the grid of their series, against second readers and formulas."""

from __future__ import annotations

from pathlib import Path

import highdicom
import numpy as np
import pydicom
import pytest
from generated_dicom import (
    AXIAL,
    SAGITTAL,
    make_contours,
    make_series,
    oblique,
    ramp,
    save,
    to_enhanced,
)

from segpl.data.dicom.label import SegmentNumbers, read_segments
from segpl.data.dicom.series import Series, open_series
from segpl.data.dicom.write import write_segmentation
from segpl.display import CLASS_COLORS
from segpl.errors import UnusableFileError

CLASSES = {"background": 0, "prostate": 1, "central gland": 7}
NUMBERS = SegmentNumbers(tuple(CLASSES.items()), is_chosen=False)


def mask(shape: tuple[int, ...]) -> np.ndarray:
    """Two classes without any symmetry; the first and the last slice are empty."""
    labels = np.zeros(shape, np.uint8)
    labels[2:7, 1:9, 1:3] = 1
    labels[3, 4, 2:4] = 7
    labels[-1, -1, 3] = 7
    return labels


@pytest.fixture(params=["axial", "sagittal", "oblique", "enhanced"])
def written(request, tmp_path) -> tuple[list[Path], np.ndarray, Path]:
    """A series, a mask of it, and the DICOM-SEG file of the mask."""
    orientation = {"axial": AXIAL, "sagittal": SAGITTAL}.get(request.param, oblique())
    series = make_series(orientation=orientation)
    if request.param == "enhanced":
        series = [to_enhanced(series)]
    files = save(series, tmp_path / "series")
    labels = mask(open_series(files).shape)
    write_segmentation(tmp_path / "seg.dcm", labels, files, CLASSES)
    return files, labels, tmp_path / "seg.dcm"


def test_segmentation_is_read_back_exactly(written):
    files, labels, path = written
    np.testing.assert_array_equal(read_segments(path, open_series(files), NUMBERS), labels)


def voxels_in_space(labels: np.ndarray, number: int, series: Series) -> np.ndarray:
    """Centers of the voxels of a class in LPS mm, sorted."""
    index = np.argwhere(labels == number)
    return in_order((index @ series.affine[:3, :3].T + series.affine[:3, 3]) * [-1, -1, 1])


def in_order(points: np.ndarray) -> np.ndarray:
    points = np.round(points, 4) + 0.0
    return points[np.lexsort(points.T)]


def test_frames_decoded_by_hand_are_the_same_voxels_at_the_same_places(written):
    """Without any decoder: the bits of each frame, and the plane that its header describes."""
    files, labels, path = written
    file = pydicom.dcmread(path)
    bits = np.unpackbits(np.frombuffer(file.PixelData, np.uint8), bitorder="little")
    frames = bits[: file.NumberOfFrames * file.Rows * file.Columns]
    frames = frames.reshape(-1, file.Rows, file.Columns)
    shared = file.SharedFunctionalGroupsSequence[0]
    directions = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float)
    spacing = np.array(shared.PixelMeasuresSequence[0].PixelSpacing, float)
    found: dict[int, list[np.ndarray]] = {1: [], 2: []}
    for frame, groups in zip(frames, file.PerFrameFunctionalGroupsSequence, strict=True):
        origin = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float)
        row, column = np.nonzero(frame)
        points = origin + np.outer(column * spacing[1], directions[:3])
        points += np.outer(row * spacing[0], directions[3:])
        found[groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber].append(points)
    for segment, number in enumerate(list(CLASSES.values())[1:], 1):
        np.testing.assert_allclose(
            in_order(np.concatenate(found[segment])),
            voxels_in_space(labels, number, open_series(files)),
            atol=1e-3,
        )


def test_segmentation_has_the_identity_of_its_series(written):
    files, _, path = written
    source, file = pydicom.dcmread(files[0]), pydicom.dcmread(path)
    for tag in ("PatientID", "PatientName", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert file[tag].value == source[tag].value
    referenced = file.ReferencedSeriesSequence[0]
    assert referenced.SeriesInstanceUID == source.SeriesInstanceUID
    assert len(referenced.ReferencedInstanceSequence) == len(files)
    assert file.SeriesInstanceUID != source.SeriesInstanceUID
    assert [item.SegmentLabel for item in file.SegmentSequence] == ["prostate", "central gland"]
    prostate = file.SegmentSequence[0]
    assert prostate.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == "Prostate"
    color = highdicom.color.CIELabColor.from_string(CLASS_COLORS[0]).value
    assert tuple(prostate.RecommendedDisplayCIELabValue) == tuple(color)


def test_empty_mask_is_written_and_read_back(tmp_path):
    files = save(make_series(), tmp_path)
    series = open_series(files)
    write_segmentation(tmp_path / "seg.dcm", np.zeros(series.shape, np.uint8), files, CLASSES)
    assert not read_segments(tmp_path / "seg.dcm", series, NUMBERS).any()


def test_more_classes_than_a_byte_holds(tmp_path):
    files = save(make_series(), tmp_path)
    series = open_series(files)
    classes = {"background": 0, **{f"class {number}": number for number in range(1, 301)}}
    labels = np.zeros(series.shape, np.uint16)
    labels[3, 2, 1], labels[4, 2, 1] = 1, 300
    write_segmentation(tmp_path / "seg.dcm", labels, files, classes)
    numbers = SegmentNumbers(tuple(classes.items()), is_chosen=False)
    np.testing.assert_array_equal(read_segments(tmp_path / "seg.dcm", series, numbers), labels)
    segments = pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence
    assert len({tuple(one.RecommendedDisplayCIELabValue) for one in segments[:12]}) == 12


def test_sources_without_a_patient_get_a_segmentation(tmp_path):
    series = make_series()
    for file in series:
        for tag in ("PatientID", "PatientName", "PatientBirthDate", "StudyDate", "SliceThickness"):
            delattr(file, tag)
    files = save(series, tmp_path)
    labels = mask(open_series(files).shape)
    write_segmentation(tmp_path / "seg.dcm", labels, files, CLASSES)
    found = read_segments(tmp_path / "seg.dcm", open_series(files), NUMBERS)
    np.testing.assert_array_equal(found, labels)


def segmentation(files: list[Path], pixels: np.ndarray, kind: str, **options) -> pydicom.Dataset:
    """A segmentation of another program, with two segments."""
    code = pydicom.sr.codedict.codes.SCT.Tissue
    return highdicom.seg.Segmentation(
        [pydicom.dcmread(file) for file in files],
        pixels,
        kind,
        [
            highdicom.seg.SegmentDescription(number, name, code, code, "MANUAL")
            for number, name in ((1, "Central Gland"), (2, "Prostate"))
        ],
        highdicom.UID(),
        1,
        highdicom.UID(),
        1,
        "other",
        "other",
        "1",
        "1",
        **options,
    )


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_segments_are_matched_by_name_in_any_case(tmp_path, kind):
    files = save(make_series(), tmp_path)
    ordered = [plane.file for plane in open_series(files).planes]
    pixels = np.zeros((5, 12, 16), np.uint8)
    pixels[1, 2, 3], pixels[4, 5, 6] = 1, 2
    segmentation(ordered, pixels, kind).save_as(tmp_path / "seg.dcm")
    found = read_segments(tmp_path / "seg.dcm", open_series(files), NUMBERS)
    assert {tuple(index): found[tuple(index)] for index in np.argwhere(found)} == {
        (3, 2, 1): 7,
        (6, 5, 4): 1,
    }


def test_overlapping_segments_are_refused_unless_the_classes_are_chosen(tmp_path):
    series = open_series(save(make_series(), tmp_path))
    pixels = np.zeros((5, 12, 16, 2), np.uint8)
    pixels[1, 2, 3:6, 0] = pixels[1, 2, 4:8, 1] = 1
    path = tmp_path / "seg.dcm"
    segmentation([plane.file for plane in series.planes], pixels, "BINARY").save_as(path)
    with pytest.raises(UnusableFileError, match=r"'prostate' and 'Central Gland' overlap"):
        read_segments(path, series, NUMBERS)
    chosen = SegmentNumbers(NUMBERS.numbers, is_chosen=True)
    found = read_segments(path, series, chosen)
    assert found[3:8, 2, 1].tolist() == [7, 7, 7, 1, 1]
    alone = SegmentNumbers((("prostate", 1),), is_chosen=True)
    assert read_segments(path, series, alone)[3:8, 2, 1].tolist() == [0, 1, 1, 1, 1]


def test_segmentation_on_another_grid_is_refused(tmp_path):
    files = save(make_series(), tmp_path / "a")
    path = tmp_path / "seg.dcm"
    write_segmentation(path, mask((16, 12, 5)), files, CLASSES)
    for change, words in (
        ({"origin": (-31.5, 12.25, 8.0)}, "between the slices or pixels"),
        ({"origin": (-31.5, 12.25, 17.0)}, "outside of the series"),
        ({"spacing": (0.75, 0.6, 2.5)}, "another orientation or pixel spacing"),
        ({"voxels": ramp(5, 10, 16)}, "16 x 12 pixels"),
    ):
        other = open_series(save(make_series(**change), tmp_path / words[:7]))
        with pytest.raises(UnusableFileError, match=words):
            read_segments(path, other, NUMBERS)


def test_mirrored_and_transposed_segmentation_lands_on_the_same_voxels(tmp_path):
    """Programs may store frames in another order of axes than the images."""
    files = save(make_series(), tmp_path)
    series = open_series(files)
    path = tmp_path / "seg.dcm"
    labels = mask(series.shape)
    write_segmentation(path, labels, files, CLASSES)
    file = pydicom.dcmread(path)
    bits = np.unpackbits(np.frombuffer(file.PixelData, np.uint8), bitorder="little")
    frames = bits[: file.NumberOfFrames * 12 * 16].reshape(-1, 12, 16)
    turned = frames[:, :, ::-1].transpose(0, 2, 1)  # rows run along y, columns along -x
    file.PixelData = np.packbits(np.ascontiguousarray(turned), bitorder="little").tobytes()
    file.Rows, file.Columns = 16, 12
    shared = file.SharedFunctionalGroupsSequence[0]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [0, 1, 0, -1, 0, 0]
    shared.PixelMeasuresSequence[0].PixelSpacing = [0.5, 0.75]
    for groups in file.PerFrameFunctionalGroupsSequence:
        x, y, z = groups.PlanePositionSequence[0].ImagePositionPatient
        groups.PlanePositionSequence[0].ImagePositionPatient = [x + 15 * 0.5, y, z]
    file.save_as(path)
    np.testing.assert_array_equal(read_segments(path, series, NUMBERS), labels)


def in_space(series: Series, points: np.ndarray, place: float) -> np.ndarray:
    """Points (column, row) on a slice in LPS mm."""
    index = np.column_stack([points, np.full(len(points), place)])
    return (index @ series.affine[:3, :3].T + series.affine[:3, 3]) * [-1, -1, 1]


def box(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])


def draw(tmp_path: Path, orientation, structures: dict[str, list[tuple[np.ndarray, int]]]):
    """Read an RTSTRUCT file with these polygons (column, row) on these slices."""
    generated = make_series(orientation=orientation)
    series = open_series(save(generated, tmp_path / "series"))
    contours = {
        name: [in_space(series, points, place) for points, place in parts]
        for name, parts in structures.items()
    }
    (path,) = save([make_contours(generated, contours)], tmp_path / "contours")
    return read_segments(path, series, NUMBERS)


@pytest.mark.parametrize("orientation", [AXIAL, SAGITTAL, oblique()])
def test_disk_covers_the_voxels_whose_centers_it_contains(tmp_path, orientation):
    angles = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    circle = np.array([7.3, 5.1]) + 4.2 * np.column_stack([np.cos(angles), np.sin(angles)])
    found = draw(tmp_path, orientation, {"Prostate": [(circle, 1), (circle, 3)]})
    column, row = np.mgrid[:16, :12]
    disk = np.hypot(column - 7.3, row - 5.1) < 4.2
    expected = np.zeros((16, 12, 5), int)
    expected[:, :, 1] = expected[:, :, 3] = disk
    np.testing.assert_array_equal(found, expected)


OUTER, INNER = box(1.5, 0.5, 10.5, 8.5), box(4.5, 2.5, 7.5, 5.5)
# one contour that enters the hole and leaves it by the same line
KEYHOLE = np.concatenate([OUTER, OUTER[:1], INNER[:1], INNER[::-1], OUTER[:1]])


@pytest.mark.parametrize("contours", [[OUTER, INNER], [KEYHOLE]], ids=["two", "keyhole"])
def test_contour_within_another_one_is_a_hole(tmp_path, contours):
    found = draw(tmp_path, AXIAL, {"prostate": [(points, 2) for points in contours]})
    expected = np.zeros((16, 12, 5), int)
    expected[2:11, 1:9, 2] = 1
    expected[5:8, 3:6, 2] = 0
    np.testing.assert_array_equal(found, expected)


def test_structures_become_classes_by_name_and_overlaps_are_refused(tmp_path):
    parts = {"central gland": [(box(1.5, 1.5, 3.5, 3.5), 0)], "couch": [(box(0, 0, 9, 9), 0)]}
    found = draw(tmp_path, AXIAL, parts)
    assert np.argwhere(found == 7).tolist() == [[2, 2, 0], [2, 3, 0], [3, 2, 0], [3, 3, 0]]
    assert set(np.unique(found)) == {0, 7}
    with pytest.raises(UnusableFileError, match="overlap"):
        draw(tmp_path / "overlap", AXIAL, {**parts, "prostate": parts["couch"]})


def test_contour_between_slices_is_refused(tmp_path):
    with pytest.raises(UnusableFileError, match=r"'prostate' in .* does not lie on a slice"):
        draw(tmp_path, AXIAL, {"prostate": [(box(1, 1, 4, 4), 1.5)]})
