"""Write masks as DICOM-SEG files that refer to the series they were predicted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import segpl
from segpl.data.dicom.header import read_header
from segpl.data.dicom.index import WRITTEN_BY
from segpl.data.dicom.series import open_series
from segpl.display import class_color
from segpl.errors import errors_naming
from segpl.files import write_atomically

SERIES_NUMBER = 9000  # far from those of scanners
LONGEST_LABEL = 64  # characters of a segment name
# highdicom copies these, and files may lack them
COPIED = (
    *("AccessionNumber", "PatientBirthDate", "PatientID", "PatientName", "PatientSex"),
    *("SliceThickness", "StudyDate", "StudyID", "StudyTime"),
)


def write_segmentation(
    path: Path, labels: NDArray[Any], files: Sequence[Path], classes: Mapping[str, int]
) -> None:
    """Write `labels` (column, row, slice) of the series in `files`, one segment per class.

    `classes` are numbers by name, background first. Patient, study and frame of reference are
    those of the series.
    """
    import highdicom

    planes = open_series(files).planes
    sources = list(dict.fromkeys(plane.file for plane in planes))
    # (slice, row, column): slices as sorted, or frames as stored in one enhanced file
    order = [plane.frame for plane in planes] if len(sources) == 1 else range(len(planes))
    frames = np.zeros((len(planes), *planes[0].size), np.uint8 if len(classes) < 256 else np.uint16)
    names = list(classes)[1:]
    for segment, name in enumerate(names, 1):
        frames[np.array(order)] += (labels == classes[name]).transpose(2, 1, 0) * frames.dtype.type(
            segment
        )
    with errors_naming(files[0]):
        segmentation = highdicom.seg.Segmentation(
            source_images=[_source(file) for file in sources],
            pixel_array=frames,
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[
                _description(number, name) for number, name in enumerate(names, 1)
            ],
            series_instance_uid=highdicom.UID(),
            series_number=SERIES_NUMBER,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer=WRITTEN_BY,
            manufacturer_model_name=WRITTEN_BY,
            software_versions=segpl.__version__,
            device_serial_number="0",
            content_label="SEGMENTATION",
            content_description="Automatic segmentation, not reviewed",
            series_description="segpl segmentation",
        )
    write_atomically(path, lambda draft: segmentation.save_as(draft))


def _source(path: Path) -> Any:
    header = read_header(path)
    for name in COPIED:
        if name not in header:
            setattr(header, name, None)
    return header


def _description(number: int, name: str) -> Any:
    import highdicom
    from pydicom.sr.codedict import codes

    # 'left ventricle' is LeftVentricle in the dictionary of SNOMED terms
    term = "".join(word.capitalize() for word in name.replace("_", " ").split())
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=name[:LONGEST_LABEL],
        segmented_property_category=codes.SCT.AnatomicalStructure,
        segmented_property_type=getattr(codes.SCT, term, codes.SCT.Tissue),
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=WRITTEN_BY, version=segpl.__version__, family=codes.DCM.ArtificialIntelligence
        ),
        display_color=highdicom.color.CIELabColor.from_string(class_color(number - 1)),
    )
