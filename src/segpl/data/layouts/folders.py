"""Plain folders of images and labels, optionally inside train, unlabeled and test folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NamedTuple

from segpl.data.case import Dataset
from segpl.data.layouts.base import (
    TEST_FOLDERS,
    TRAINING_FOLDERS,
    UNLABELED_FOLDERS,
    Layout,
    has_label_word,
    image_files,
    merge_parts,
    pair_files,
    subfolder,
)
from segpl.errors import InputError

IMAGE_FOLDERS = ("images", "imgs", "image", "img", "scans", "volumes")
LABEL_FOLDERS = (
    *("labels", "masks", "segmentations", "annotations", "lbls", "segs"),
    *("label", "mask", "segmentation", "annotation", "lbl", "seg", "gt", "manual"),
    *("groundtruth", "ground_truth", "ground-truth"),
)


class Folders(Layout):
    """`images/` and `labels/` with equal file names; an image without a label is unlabeled."""

    name: ClassVar[str] = "folders"
    needs: ClassVar[str] = "images/ and labels/ (or masks/, ...), also inside training/ and test/"
    order: ClassVar[int] = 100
    is_general: ClassVar[bool] = True

    def matches(self, root: Path) -> bool:
        return bool(_find_parts(root))

    def read(self, root: Path) -> Dataset:
        parts = []
        for part in _find_parts(root):
            _reject_rivals(part)
            labels = image_files(part.labels) if part.labels else []
            cases = pair_files(image_files(part.images), labels, is_test=part.is_test)
            parts.append((part.name, cases))
        return Dataset(root, self.name, merge_parts(parts))


def label_folders(root: Path) -> list[Path]:
    return [part.labels for part in _find_parts(root) if part.labels]


class _Part(NamedTuple):
    name: str
    images: Path
    labels: Path | None
    is_test: bool


def _find_parts(root: Path) -> list[_Part]:
    parts: list[_Part] = []
    named = [subfolder(root, (name,)) for name in (*TRAINING_FOLDERS, *TEST_FOLDERS)]
    for folder in (root, *named):
        images = subfolder(folder, IMAGE_FOLDERS) if folder else None
        if folder and images and image_files(images):
            is_test = folder != root and folder.name.lower() in TEST_FOLDERS
            parts.append(_Part(folder.name, images, subfolder(folder, LABEL_FOLDERS), is_test))
    unlabeled = subfolder(root, UNLABELED_FOLDERS)
    if unlabeled:
        images = subfolder(unlabeled, IMAGE_FOLDERS) or unlabeled
        if image_files(images):
            parts.append(_Part(unlabeled.name, images, None, is_test=False))
    return parts


def _reject_rivals(part: _Part) -> None:
    """Refuse two folders of labels for the same images."""
    folder, labels = part.images.parent, part.labels
    # masks may also show the field of view, next to folders such as manual1
    is_mask = labels is not None and labels.name.lower() in ("mask", "masks")
    for other in sorted(folder.iterdir()) if labels else []:
        is_rival = has_label_word(other.name) if is_mask else other.name.lower() in LABEL_FOLDERS
        if labels and is_rival and other != labels and image_files(other):
            raise InputError(
                f"{folder} has two folders that could contain its labels: {labels.name} and "
                f"{other.name}. Rename the one that does not."
            )
