"""Tiny datasets with the layouts, file names and quirks of the paper's four."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np

BRATS_AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])
PROSTATE_AFFINE = np.diag([0.625, 0.625, 3.6, 1.0])


def box(shape: tuple[int, ...], margin: int) -> np.ndarray:
    label = np.zeros(shape, np.uint8)
    label[tuple(slice(margin, side - margin) for side in shape)] = 1
    return label


def noisy(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.round(100 * label + rng.normal(300, 20, label.shape)).astype(np.int16)


def save(path: Path, array: np.ndarray, affine: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)


def make_decathlon(
    root: Path,
    prefix: str,
    *,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    channels: dict[str, str],
    labels: dict[str, str],
    training: int,
    test: int,
    first: int = 0,
) -> Path:
    """4D images, labels with several classes, and the files that macOS adds to archives."""
    rng = np.random.default_rng(0)
    listed, names = [], []
    for number in range(first, first + training + test):
        name = f"{prefix}_{number:03d}.nii.gz"
        label = box(shape, 3)
        label[: shape[0] // 2] *= 2
        image = np.stack([noisy(label, rng) for _ in channels], -1)
        part = "Tr" if number < first + training else "Ts"
        save(root / f"images{part}" / name, image, affine)
        (root / f"images{part}" / f"._{name}").write_bytes(b"macOS")
        if part == "Tr":
            save(root / "labelsTr" / name, label, affine)
            listed.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
        else:
            names.append(f"./imagesTs/{name}")
    description = {
        "name": prefix,
        "tensorImageSize": "4D",
        "modality": channels,
        "labels": labels,
        "numTraining": training,
        "numTest": test,
        "training": listed,
        "test": names,
    }
    (root / "dataset.json").write_text(json.dumps(description))
    return root


def make_task01(root: Path) -> Path:
    return make_decathlon(
        root / "Task01_BrainTumour",
        "BRATS",
        shape=(16, 16, 16),
        affine=BRATS_AFFINE,
        channels={"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
        labels={
            "0": "background",
            "1": "edema",
            "2": "non-enhancing tumor",
            "3": "enhancing tumour",
        },
        training=4,
        test=2,
        first=1,
    )


def make_task05(root: Path) -> Path:
    return make_decathlon(
        root / "Task05_Prostate",
        "prostate",
        shape=(20, 20, 10),
        affine=PROSTATE_AFFINE,
        channels={"0": "T2", "1": "ADC"},
        labels={"0": "background", "1": "PZ", "2": "TZ"},
        training=5,
        test=1,
    )


def make_brats2018(root: Path, *, cases: int = 7) -> Path:
    """HGG and LGG, one folder per case, one file per modality, label 4 but no label 3."""
    rng = np.random.default_rng(0)
    for grade, count in (("HGG", cases), ("LGG", 1)):
        for number in range(count):
            name = f"Brats18_TCIA0{number}_{100 + number}_1"
            label = np.zeros((20, 20, 12), np.int16)
            label[6:14, 6:14, 4:8] = 2
            label[8:12, 8:12, 4:8] = 1
            label[8:10, 8:10, 4:8] = 4
            for kind in ("flair", "t1", "t1ce", "t2"):
                image = noisy(label, rng)
                image[..., :2] = 0  # slices outside the head
                save(root / grade / name / f"{name}_{kind}.nii.gz", image, BRATS_AFFINE)
            save(root / grade / name / f"{name}_seg.nii.gz", label, BRATS_AFFINE)
    (root / "survival_data.csv").write_text("Brats18ID,Age,Survival\n")
    return root


def write_mhd(path: Path, array: np.ndarray, origin: tuple[float, ...] = (0, 0, 0)) -> None:
    """A header and a raw file, as MetaImage stores them: the first axis is the fastest."""
    kind = {"int16": "MET_SHORT", "uint8": "MET_UCHAR"}[array.dtype.name]
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = path.with_suffix(".raw")
    raw.write_bytes(array.tobytes(order="F"))
    path.write_text(
        "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n"
        "CompressedData = False\nTransformMatrix = 1 0 0 0 1 0 0 0 1\n"
        f"Offset = {' '.join(map(str, origin))}\nElementSpacing = 0.5 0.5 0.5\n"
        f"DimSize = {' '.join(map(str, array.shape))}\nElementType = {kind}\n"
        f"ElementDataFile = {raw.name}\n"
    )


def make_carve(root: Path, *, cases: int = 10) -> Path:
    """Scans named SERIES.7.mhd, full and partial annotations, -999 for unknown vessels.

    The annotation of one case is cropped, and one scan has no full annotation.
    """
    rng = np.random.default_rng(0)
    for number in range(cases + 1):
        series = f"1.2.840.113704.1.111.{2000 + number}.11263576{number:02d}"
        label = np.zeros((24, 28, 15), np.int16)
        label[8:12, 10:14], label[14:18, 12:15], label[12:14, 12:14] = 1, 2, -999
        label[..., :3] = 0  # slices without vessels
        write_mhd(root / f"{series}.7.mhd", noisy(np.abs(np.sign(label)), rng))
        write_mhd(root / f"{series}_results.mhd", np.sign(label).clip(0).astype(np.uint8))
        if number == 0:
            cut = label[2:22, 2:26, 3:]
            write_mhd(root / f"{series}_fullAnnotations.mhd", cut, origin=(1.0, 1.0, 1.5))
        elif number < cases:
            write_mhd(root / f"{series}_fullAnnotations.mhd", label)
    return root
