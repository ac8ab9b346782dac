"""The layout of the SegPL authors' own code."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from segpl.data.case import Dataset
from segpl.data.layouts.base import (
    UNLABELED_FOLDERS,
    Layout,
    class_numbers,
    image_files,
    merge_parts,
    pair_files,
    read_description,
    subfolder,
)

LABELED_FOLDERS = ("labelled", "labeled")
VALIDATION_FOLDERS = ("validate", "validation", "val")


class Emssl(Layout):
    """`labeled/imgs`, `labeled/lbls`, `unlabeled/imgs`, `test/imgs`, `test/lbls`.

    Cases in a validation folder are additional labeled cases. Masks of unlabeled images are not
    used.
    """

    name: ClassVar[str] = "emssl"
    needs: ClassVar[str] = "labeled/imgs and labeled/lbls"
    order: ClassVar[int] = 10

    def matches(self, root: Path) -> bool:
        labeled = subfolder(root, LABELED_FOLDERS)
        return labeled is not None and all((labeled / part).is_dir() for part in ("imgs", "lbls"))

    def read(self, root: Path) -> Dataset:
        parts = []
        for names, is_test, has_labels in (
            (LABELED_FOLDERS, False, True),
            (VALIDATION_FOLDERS, False, True),
            (("test",), True, True),
            (UNLABELED_FOLDERS, False, False),
        ):
            if (part := subfolder(root, names)) is not None:
                labels = image_files(part / "lbls") if has_labels else []
                cases = pair_files(image_files(part / "imgs"), labels, is_test=is_test)
                parts.append((part.name, cases))
        source = root / "dataset.json"
        classes, ignore = class_numbers(read_description(source).labels, source)
        return Dataset(root, self.name, merge_parts(parts), classes=classes, ignore=ignore)
