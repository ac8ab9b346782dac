"""The arrangement that the authors of SegPL use in their own code."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from segpl.data.case import Dataset
from segpl.data.layouts.base import (
    Layout,
    class_numbers,
    image_files,
    joined,
    paired_cases,
    read_description,
    subfolder,
)

LABELED = ("labelled", "labeled")
UNLABELED = ("unlabelled", "unlabeled")
VALIDATION = ("validate", "validation", "val")


class Emssl(Layout):
    """`labelled/imgs`, `labelled/lbls`, `unlabelled/imgs`, `test/imgs`, `test/lbls`.

    A validation folder beside them holds more labeled cases; masks among the unlabeled images are
    not looked at.
    """

    name: ClassVar[str] = "emssl"
    needs: ClassVar[str] = "labelled/imgs and labelled/lbls"
    order: ClassVar[int] = 10

    def finds(self, root: Path) -> bool:
        labeled = subfolder(root, LABELED)
        return labeled is not None and all((labeled / part).is_dir() for part in ("imgs", "lbls"))

    def read(self, root: Path) -> Dataset:
        parts = []
        for names, is_test in ((LABELED, False), (VALIDATION, False), (("test",), True)):
            if (part := subfolder(root, names)) is not None:
                images, labels = image_files(part / "imgs"), image_files(part / "lbls")
                parts.append((part.name, paired_cases(images, labels, is_test=is_test)))
        if (part := subfolder(root, UNLABELED)) is not None:
            images = image_files(part / "imgs")
            parts.append((part.name, paired_cases(images, [], is_test=False)))
        source = root / "dataset.json"
        classes, ignore = class_numbers(read_description(source).get("labels"), source)
        return Dataset(root, self.name, joined(parts), classes=classes, ignore=ignore)
