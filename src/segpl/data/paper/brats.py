"""BRATS 2018: brain tumors in MRI with four modalities, as 2D slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.download import REGISTRATION
from segpl.data.paper.prepared import (
    KEEP,
    PaperData,
    Sample,
    SampleWriter,
    center_crop,
    draw_roles,
    normalize_case,
    paper_plan,
    require_complete,
    write_datasets,
)
from segpl.data.plan import Plan
from segpl.data.readers import read_image, read_label
from segpl.errors import MissingFileError

GRADE = "HGG"  # the paper uses high-grade gliomas
MODALITIES = ("flair", "t1", "t1ce", "t2")
BRATS_CLASSES = {"background": 0, "necrosis": 1, "edema": 2, "enhancing": 4}  # there is no 3


def is_brats(source: Path) -> bool:
    return grade_folder(source) is not None


def grade_folder(source: Path) -> Path | None:
    grades = [source, *sorted(source.glob(f"**/{GRADE}"))]
    return next((path for path in grades if path.name == GRADE), None)


def find_brats(source: Path) -> dict[str, Path]:
    """Case -> its folder. Raises if files are missing."""
    root = grade_folder(source)
    cases = sorted(path for path in root.iterdir() if path.is_dir()) if root else []
    if not cases:
        raise MissingFileError(
            f"{source} has no folder {GRADE} with one folder per case. Register at "
            f"{REGISTRATION['brats2018']}, download the training data of BRATS 2018 and pass the "
            "unpacked folder."
        )
    missing = [
        path
        for case in cases
        for kind in (*MODALITIES, "seg")
        if not (path := case / f"{case.name}_{kind}.nii.gz").is_file()
    ]
    require_complete(source, missing, "Unpack the archive again.")
    return {path.name: path for path in cases}


def prepare_brats(source: Path, root: Path, data: PaperData, advance: Callable[[], None]) -> Plan:
    """Axial slices, cropped at the center; each case normalized, all modalities as channels."""
    found = find_brats(source)
    samples = []
    for case, role in draw_roles(list(found), data).items():
        folder = found[case]
        files = [folder / f"{case}_{kind}.nii.gz" for kind in MODALITIES]
        image = normalize_case(read_image(files, 3).array)
        label = read_label(folder / f"{case}_seg.nii.gz", 3).array
        writer = SampleWriter(root / "samples", role, case)
        samples += write_slices(writer, image, label, data.patch)
        advance()
    write_datasets(root, samples, data, channels=MODALITIES, classes=BRATS_CLASSES)
    return paper_plan(data.patch, MODALITIES, BRATS_CLASSES, [KEEP] * len(MODALITIES))


def write_slices(
    writer: SampleWriter, image: NDArray[Any], label: NDArray[Any], sides: Sequence[int]
) -> list[Sample]:
    """Samples of one case. Slices of validation and test cases contain a tumor.

    Slices beyond the head, where a modality is constant, are left out.
    """
    image, label = center_crop(image, sides, (1, 2)), center_crop(label, sides, (0, 1))
    samples = []
    for place in range(label.shape[2]):
        is_held_out = writer.role in ("validation", "test")
        is_empty = np.ptp(image[..., place], axis=(1, 2)).min() == 0
        if is_empty or (is_held_out and not label[..., place].any()):
            continue
        target = label[..., place].astype("uint8")
        samples.append(writer.write(f"_z{place:03d}.npy", image[..., place], target))
    return samples
