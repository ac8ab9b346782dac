"""Small DICOM series, segmentations and contours for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

CT, MR = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4"
RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
AXIAL = ((1, 0, 0), (0, 1, 0))
SAGITTAL = ((0, 1, 0), (0, 0, -1))
CORONAL = ((1, 0, 0), (0, 0, -1))


def oblique() -> tuple[tuple[float, ...], tuple[float, ...]]:
    a, b = np.radians(25), np.radians(-13)
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    tip = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    rows, columns, _ = np.round(turn @ tip, 8).T
    return tuple(rows.tolist()), tuple(columns.tolist())


def ramp(slices: int = 5, rows: int = 12, columns: int = 16) -> np.ndarray:
    """Distinct values (slice, row, column) in 12 bits."""
    values = np.arange(slices * rows * columns) * 7 % 4096
    return values.reshape(slices, rows, columns).astype(np.uint16)


def new_file(sop_class: str, *, patient: str = "P1") -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = sop_class
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID = sop_class
    file.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    file.PatientID = patient
    file.PatientName = "Doe^Jane"
    file.PatientBirthDate = "19700101"
    file.PatientSex = "F"
    file.StudyInstanceUID = generate_uid(entropy_srcs=["study", patient])
    file.StudyID = "1"
    file.StudyDate, file.StudyTime, file.AccessionNumber = "20200101", "120000", "7"
    file.ReferringPhysicianName = ""
    return file


def make_series(
    voxels: np.ndarray | None = None,
    *,
    orientation: Sequence[Sequence[float]] = AXIAL,
    origin: Sequence[float] = (-31.5, 12.25, 7.0),
    spacing: Sequence[float] = (0.75, 0.5, 2.5),  # between rows, columns, slices
    shear: Sequence[float] = (0, 0, 0),  # mm per slice, in addition to the step along the normal
    modality: str = "MR",
    patient: str = "P1",
    number: int = 1,
    **elements: object,
) -> list[FileDataset]:
    """Slices of `voxels` (slice, row, column), as single-frame files."""
    voxels = ramp() if voxels is None else voxels
    rows, columns = np.array(orientation, float)
    step = np.cross(rows, columns) * spacing[2] + np.array(shear)
    series, frame = generate_uid(), generate_uid()
    files = []
    for place, pixels in enumerate(voxels):
        file = new_file(CT if modality == "CT" else MR, patient=patient)
        file.Modality, file.SeriesNumber, file.InstanceNumber = modality, number, place + 1
        file.SeriesInstanceUID, file.FrameOfReferenceUID = series, frame
        file.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        file.ImageOrientationPatient = [*rows.tolist(), *columns.tolist()]
        position = np.round(np.array(origin) + place * step, 8)
        file.ImagePositionPatient = position.tolist()
        file.PixelSpacing = list(spacing[:2])
        file.SliceThickness = spacing[2]
        file.PositionReferenceIndicator = ""
        store(file, pixels)
        for tag, value in elements.items():
            setattr(file, tag, value)
        files.append(file)
    return files


def store(file: Dataset, pixels: np.ndarray) -> None:
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.Rows, file.Columns = pixels.shape[-2:]
    bits = pixels.dtype.itemsize * 8
    file.BitsAllocated, file.BitsStored, file.HighBit = bits, bits, bits - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    file.PixelData = pixels.tobytes()


def save(files: Sequence[FileDataset], folder: Path, pattern: str = "{:03d}.dcm") -> list[Path]:
    """Write files in an order that is not that of their positions."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, file in enumerate(files):
        path = folder / pattern.format((place * 7 + 3) % 101)
        pydicom.dcmwrite(path, file, enforce_file_format=True)
        paths.append(path)
    return paths


def make_contours(
    series: Sequence[FileDataset], structures: Mapping[str, Sequence[np.ndarray]]
) -> FileDataset:
    """An RTSTRUCT file; each structure is a list of closed contours (points, 3) in LPS mm."""
    file = new_file(RTSTRUCT)
    file.Modality, file.SeriesInstanceUID = "RTSTRUCT", generate_uid()
    drawn_on, study, frame = Dataset(), Dataset(), Dataset()
    drawn_on.SeriesInstanceUID = series[0].SeriesInstanceUID
    study.RTReferencedSeriesSequence = [drawn_on]
    frame.FrameOfReferenceUID = series[0].FrameOfReferenceUID
    frame.RTReferencedStudySequence = [study]
    file.ReferencedFrameOfReferenceSequence = [frame]
    file.StructureSetROISequence, file.ROIContourSequence = [], []
    for number, (name, contours) in enumerate(structures.items(), 1):
        roi, drawn = Dataset(), Dataset()
        roi.ROINumber, roi.ROIName = number, name
        drawn.ReferencedROINumber, drawn.ContourSequence = number, []
        for points in contours:
            contour = Dataset()
            contour.ContourGeometricType = "CLOSED_PLANAR"
            contour.NumberOfContourPoints = len(points)
            contour.ContourData = [f"{value:.8g}" for value in np.ravel(points)]
            drawn.ContourSequence.append(contour)
        file.StructureSetROISequence.append(roi)
        file.ROIContourSequence.append(drawn)
    return file


def to_enhanced(series: Sequence[FileDataset]) -> FileDataset:
    """The same slices as one enhanced multi-frame MR file, in reversed order."""
    first = series[0]
    file = new_file("1.2.840.10008.5.1.4.1.1.4.1")
    for tag in ("Modality", "SeriesNumber", "SeriesInstanceUID", "FrameOfReferenceUID"):
        setattr(file, tag, getattr(first, tag))
    file.InstanceNumber, file.PositionReferenceIndicator = 1, ""
    store(file, np.stack([one.pixel_array for one in reversed(series)]))
    file.NumberOfFrames = len(series)
    shared, measures, plane = Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = first.PixelSpacing, first.SliceThickness
    plane.ImageOrientationPatient = first.ImageOrientationPatient
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [plane]
    file.SharedFunctionalGroupsSequence = [shared]
    file.PerFrameFunctionalGroupsSequence = []
    for one in reversed(series):
        own, position, values = Dataset(), Dataset(), Dataset()
        position.ImagePositionPatient = one.ImagePositionPatient
        values.RescaleSlope, values.RescaleIntercept, values.RescaleType = 2, -5, "US"
        own.PlanePositionSequence = [position]
        own.PixelValueTransformationSequence = [values]
        file.PerFrameFunctionalGroupsSequence.append(own)
    return file
