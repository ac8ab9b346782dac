"""Medical Segmentation Decathlon: a `dataset.json` that lists training and test files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    Layout,
    channel_names,
    class_numbers,
    image_files,
    paired_cases,
    read_description,
)
from segpl.data.readers import stem_of
from segpl.errors import InputError, MissingFileError


class Decathlon(Layout):
    """`dataset.json`, `imagesTr`, `labelsTr`, `imagesTs`; several channels are a 4D file.

    The list `training` says which labels are used; an image of `imagesTr` that it leaves out is an
    unlabeled case. So are the test images, as in the paper, unless `labelsTs` holds their labels.
    """

    name: ClassVar[str] = "decathlon"
    needs: ClassVar[str] = "dataset.json with a 'training' list, or imagesTr and labelsTr"
    order: ClassVar[int] = 30

    def finds(self, root: Path) -> bool:
        description = read_description(root / "dataset.json")
        listed = isinstance(description.get("training"), list)
        return listed or ((root / "imagesTr").is_dir() and (root / "labelsTr").is_dir())

    def read(self, root: Path) -> Dataset:
        source = root / "dataset.json"
        description = read_description(source)
        classes, ignore = class_numbers(description.get("labels"), source)
        training = description.get("training")
        if training:
            cases = [_listed(root, entry, "training") for entry in training]
        else:
            labels = image_files(root / "labelsTr")
            cases = paired_cases(image_files(root / "imagesTr"), labels, is_test=False)
        cases += [_listed(root, entry, "test") for entry in description.get("test") or []]
        for folder in ("imagesTr", "imagesTs"):
            known = {path.resolve() for case in cases for path in case.images}
            cases += [
                Case(stem_of(path), (path,))
                for path in image_files(root / folder)
                if path.resolve() not in known
            ]
        return Dataset(
            root,
            self.name,
            tuple(_as_test_case(root, case) for case in cases),
            channel_names(description.get("modality")),
            classes,
            ignore,
        )


def _listed(root: Path, entry: Any, key: str) -> Case:
    paths = {"image": entry} if isinstance(entry, str) else entry
    if not isinstance(paths, dict) or not isinstance(paths.get("image"), str):
        raise InputError(
            f"an entry of '{key}' in {root / 'dataset.json'} is {entry!r}, and each needs an "
            'image, as in {"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"}. Correct it.'
        )
    image = root / paths["image"]
    label = root / paths["label"] if paths.get("label") else None
    for what, path in (("image", image), ("label", label)):
        if path is not None and not path.is_file():
            raise MissingFileError(
                f"case {stem_of(image)} has no {what}: {path}, listed under '{key}' in "
                "dataset.json, does not exist. Add the file, or take the entry out of the list."
            )
    return Case(stem_of(image), (image,), label, is_test=key == "test" and label is not None)


def _as_test_case(root: Path, case: Case) -> Case:
    """The same case with its label from `labelsTs`, if that is where it has one."""
    image = case.images[0]
    if case.label is not None or image.parent.name != "imagesTs":
        return case
    label = root / "labelsTs" / image.name
    return Case(case.name, case.images, label, is_test=True) if label.is_file() else case
