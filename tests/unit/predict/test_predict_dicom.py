"""Masks of DICOM series: the same voxels as DICOM-SEG and as NIfTI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import torch
from generated_dicom import SAGITTAL, make_series, oblique, save
from tiny import ORGAN_PLAN, predict_jobs

from segpl.data.dicom.label import SegmentNumbers, read_segments
from segpl.data.dicom.series import open_series
from segpl.data.manifest import read_manifest
from segpl.data.readers import read_image
from segpl.errors import InputError
from segpl.predict.inputs import find_inputs

PLAN = replace(ORGAN_PLAN, channels=("MR",))
CUBES = (1.0, 1.0, 1.0)  # mm, so that nothing is resampled
NUMBERS = SegmentNumbers((("organ", 4),), is_chosen=False)


def blob() -> np.ndarray:
    """Bright voxels (slice, row, column) without any symmetry."""
    voxels = np.zeros((5, 12, 16), np.uint16)
    voxels[1:4, 2:9, 3:8] = voxels[4, 11, 15] = 100
    return voxels


def predict(paths: list[Path], out: Path, **options) -> list[Path]:
    return predict_jobs(
        find_inputs(paths, PLAN, layout="dicom"),
        lambda windows: torch.sigmoid(windows[:, :1]),
        PLAN,
        out,
        **options,
    )


@pytest.mark.parametrize("orientation", [SAGITTAL, oblique()])
def test_dicom_seg_and_nifti_have_exactly_the_voxels_of_the_object(tmp_path, orientation):
    files = save(
        make_series(blob(), orientation=orientation, spacing=CUBES), tmp_path / "scans" / "p1", "{}"
    )
    (written,) = predict([tmp_path / "scans"], tmp_path / "out")
    series = open_series(files)
    mask = nibabel.load(written)
    assert np.array_equal(np.asarray(mask.dataobj), (blob().T > 0) * 4)
    np.testing.assert_allclose(mask.affine, series.affine, atol=1e-5)
    np.testing.assert_allclose(mask.get_qform(), series.affine, atol=1e-4)
    found = read_segments(tmp_path / "out" / "p1.dcm", series, NUMBERS)
    assert np.array_equal(found, (blob().T > 0) * 4)
    segmentation = highdicom.seg.segread(tmp_path / "out" / "p1.dcm")
    assert segmentation.get_volume().array.sum() == (blob() > 0).sum()


def test_one_series_is_an_input_and_names_its_mask(tmp_path):
    save(make_series(blob(), spacing=CUBES), tmp_path / "p7")
    predict([tmp_path / "p7"], tmp_path / "out", probabilities=True)
    (entry,) = read_manifest(tmp_path / "out").files.values()
    assert (entry.labels, entry.maps["dicom-seg"]) == ("p7.nii.gz", "p7.dcm")
    assert len(entry.images) == 5
    image = read_image([tmp_path / "out" / entry.maps["probabilities"]], 3)
    assert (image.array[0] > 0.5).sum() == (blob() > 0).sum()


def test_slice_of_a_series_is_refused_with_the_folder_to_pass(tmp_path):
    first, *_ = save(make_series(blob(), spacing=CUBES), tmp_path / "p7")
    with pytest.raises(InputError, match="Pass the folder of the series"):
        predict([first], tmp_path / "out")


def test_lost_dicom_seg_is_written_again_from_the_mask(tmp_path):
    """The mask may have been corrected by hand."""
    files = save(make_series(blob(), spacing=CUBES), tmp_path / "p7")
    (written,) = predict([tmp_path / "p7"], tmp_path / "out")
    mask = nibabel.load(written)
    corrected = np.asarray(mask.dataobj).copy()
    corrected[0, 0, 0] = 4
    nibabel.Nifti1Image(corrected, mask.affine).to_filename(written)
    (tmp_path / "out" / "p7.dcm").unlink()
    predict([tmp_path / "p7"], tmp_path / "out")
    found = read_segments(tmp_path / "out" / "p7.dcm", open_series(files), NUMBERS)
    assert np.array_equal(found, corrected)


def test_nothing_but_the_segmentation_contains_the_patient(tmp_path):
    save(make_series(blob(), patient="MRN-12345"), tmp_path / "p7")
    predict([tmp_path / "p7"], tmp_path / "out", probabilities=True)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.suffix != ".dcm":
            assert b"MRN-12345" not in path.read_bytes()
            assert b"Doe" not in path.read_bytes()
    assert pydicom.dcmread(tmp_path / "out" / "p7.dcm").PatientID == "MRN-12345"
