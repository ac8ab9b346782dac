"""Plain folders of images and labels, alone or inside train, unlabeled and test folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NamedTuple

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    Layout,
    channel_names,
    class_numbers,
    image_files,
    joined,
    paired_cases,
    read_description,
    subfolder,
)

IMAGES = ("images", "imgs", "image", "img")
LABELS = ("labels", "masks", "lbls", "label", "mask", "lbl")
UNLABELED = ("unlabelled", "unlabeled")
# folder, whether it is set aside; validation cases train unless the split takes them out again
PARTS = (
    *((name, False) for name in ("train", "training", "val", "valid", "validation")),
    *((name, True) for name in ("test", "testing")),
)


class Folders(Layout):
    """`images/` and `labels/` with equal file names; an image without a label is unlabeled.

    Classes may be named in a `labels.json` or `dataset.json` as {"labels": {"vessel": 255}};
    otherwise the labels themselves tell.
    """

    name: ClassVar[str] = "folders"
    needs: ClassVar[str] = "images/ and labels/ (or masks/), also inside training/ and test/"
    order: ClassVar[int] = 100

    def finds(self, root: Path) -> bool:
        return bool(_parts(root))

    def read(self, root: Path) -> Dataset:
        description = read_description(root / "dataset.json")
        source = root / ("labels.json" if (root / "labels.json").is_file() else "dataset.json")
        named = read_description(source)
        labels = named.get("labels", named if source.name == "labels.json" else None)
        classes, ignore = class_numbers(labels, source)
        channels = channel_names(description.get("channel_names", named.get("channel_names")))
        cases = joined([(part.name, part.cases) for part in _parts(root)])
        return Dataset(root, self.name, cases, channels, classes, ignore)


class _Part(NamedTuple):
    name: str
    images: Path
    labels: Path | None
    is_test: bool

    @property
    def cases(self) -> list[Case]:
        labels = image_files(self.labels) if self.labels else []
        return paired_cases(image_files(self.images), labels, is_test=self.is_test)


def _parts(root: Path) -> list[_Part]:
    parts: list[_Part] = []
    for folder, is_test in ((root, False), *((subfolder(root, (n,)), t) for n, t in PARTS)):
        images = subfolder(folder, IMAGES) if folder else None
        if folder and images and image_files(images):
            parts.append(_Part(folder.name, images, subfolder(folder, LABELS), is_test))
    folder = subfolder(root, UNLABELED)
    if folder:
        loose = subfolder(folder, IMAGES) or folder
        if image_files(loose):
            parts.append(_Part(folder.name, loose, None, is_test=False))
    return parts
