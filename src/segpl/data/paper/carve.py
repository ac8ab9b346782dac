"""CARVE 2014: lung vessels in CT, ten scans with full annotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.download import REGISTRATION
from segpl.data.metaimage import read_meta_image
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
from segpl.data.readers import Image, Label, read_image, read_label
from segpl.errors import InputError, MissingFileError, errors_naming

CARVE_SITE = REGISTRATION["carve"]
ANNOTATIONS = "_fullAnnotations.mhd"  # the other label files annotate only a part of the vessels
UNKNOWN, IGNORED = -999, 255  # neither vessel nor background, in the files and in the samples
CARVE_CLASSES = {"background": 0, "vessel": 1, "ignore": IGNORED}


def is_carve(source: Path) -> bool:
    return any(source.rglob(f"*{ANNOTATIONS}"))


def find_carve(source: Path) -> dict[str, tuple[Path, Path]]:
    """Case -> scan and full annotation. Raises if files are missing."""
    labels = sorted(path for path in source.rglob(f"*{ANNOTATIONS}") if path.name[0] != ".")
    if not labels:
        raise MissingFileError(
            f"{source} has no file that ends in {ANNOTATIONS}. Register at {CARVE_SITE}, download "
            "CARVE14 and pass the folder with the unpacked files."
        )
    scans = {path.name: path for path in source.rglob("*.mhd")}
    voxels = source.rglob(f"*{ANNOTATIONS.replace('.mhd', '.*raw')}")
    missing = [path.with_suffix(".mhd") for path in voxels if path.name[0] != "."]
    missing = [header for header in missing if not header.is_file()]
    found = {}
    for number, label in enumerate(labels):
        series = label.name.removesuffix(ANNOTATIONS)
        # scans are named SERIES.7.mhd
        names = [name for name in (f"{series}.7.mhd", f"{series}.mhd") if name in scans]
        scan = scans[names[0]] if names else label.with_name(f"{series}.7.mhd")
        needed = {scan, data_file(scan), data_file(label)}
        missing += sorted(path for path in needed if not path.is_file())
        found[f"case{number:02d}"] = (scan, label)
    require_complete(source, missing, f"Unpack the archives of {CARVE_SITE} again.")
    return found


def data_file(header: Path) -> Path:
    """The file with the voxels of an .mhd file; the header itself if it names none."""
    with errors_naming(header):
        return read_meta_image(header).path if header.is_file() else header


def prepare_carve(source: Path, root: Path, data: PaperData, advance: Callable[[], None]) -> Plan:
    """Slabs of consecutive slices, cropped at the center, each case normalized."""
    found = find_carve(source)
    samples = []
    for case, role in draw_roles(list(found), data).items():
        scan, annotation = found[case]
        label = read_label(annotation, 3)
        image = normalize_case(matching_part(read_image([scan], 3), label))
        writer = SampleWriter(root / "samples", role, case)
        samples += write_slabs(writer, image[0], vessels(label), data.patch)
        advance()
    write_datasets(root, samples, data, channels=["CT"], classes=CARVE_CLASSES)
    return paper_plan(data.patch, ["CT"], CARVE_CLASSES, [KEEP])


def vessels(label: Label) -> NDArray[np.uint8]:
    """Arteries and veins as one class."""
    merged: NDArray[np.uint8] = (label.array > 0).astype(np.uint8)
    merged[label.array == UNKNOWN] = IGNORED
    return merged


def matching_part(image: Image, label: Label) -> NDArray[np.float32]:
    """The part (C, *S) of a scan that an annotation covers, which may be cropped to the lungs."""
    if image.grid.shape == label.grid.shape:
        return image.array
    whole, part = image.grid.affine, label.grid.affine
    assert whole is not None
    assert part is not None, "a MetaImage file without geometry"
    place = np.linalg.solve(whole, part[:, 3])
    first = [round(float(value)) for value in place[:3]]
    last = [start + side for start, side in zip(first, label.grid.shape, strict=True)]
    if min(first) < 0 or any(e > side for e, side in zip(last, image.grid.shape, strict=True)):
        raise InputError(
            f"an annotation of {label.grid.shape} voxels does not lie inside its scan of "
            f"{image.grid.shape}. Unpack both files again."
        )
    box = tuple(slice(start, end) for start, end in zip(first, last, strict=True))
    return image.array[(slice(None), *box)]


def write_slabs(
    writer: SampleWriter, image: NDArray[Any], label: NDArray[Any], patch: Sequence[int]
) -> list[Sample]:
    """Samples of one case; those with a label contain a vessel."""
    *sides, depth = patch
    image, label = (center_crop(array, sides, (0, 1)) for array in (image, label))
    samples = []
    for first in range(0, image.shape[2] - depth + 1, depth):
        slab = (slice(None), slice(None), slice(first, first + depth))
        has_vessel = np.isin(label[slab], (0, IGNORED), invert=True).any()
        if writer.role == "unlabeled" or has_vessel:
            samples.append(writer.write(f"_z{first:03d}.nii.gz", image[slab], label[slab]))
    return samples
