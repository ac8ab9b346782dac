"""Medical Segmentation Decathlon: a `dataset.json` lists the training and test files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unicodedata import normalize

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    Layout,
    ListedCase,
    channel_names,
    class_numbers,
    image_files,
    labels_by_stem,
    pair_files,
    read_description,
)
from segpl.data.layouts.content import list_content
from segpl.data.limits import is_inside
from segpl.data.readers import stem_of
from segpl.errors import InputError, MissingFileError, count_noun


class Decathlon(Layout):
    """`dataset.json`, `imagesTr`, `labelsTr`, `imagesTs`; several channels are a 4D file.

    The list `training` says which labels are used; other images in `imagesTr` are unlabeled.
    Test images are unlabeled too, as in the paper, unless `labelsTs` contains their labels.
    """

    name: ClassVar[str] = "decathlon"
    needs: ClassVar[str] = "dataset.json with a 'training' list, or imagesTr and labelsTr"
    order: ClassVar[int] = 30

    def matches(self, root: Path) -> bool:
        description = read_description(root / "dataset.json")
        return description.training is not None or (
            (root / "imagesTr").is_dir() and (root / "labelsTr").is_dir()
        )

    def read(self, root: Path) -> Dataset:
        source = root / "dataset.json"
        description = read_description(source)
        classes, ignore = class_numbers(description.labels, source)
        training = _listed_cases(root, description.training or [], "training")
        test = _listed_cases(root, description.test or [], "test")
        _reject_repeated(source, [*training, *test])
        if not training:
            labels = image_files(root / "labelsTr")
            training = pair_files(image_files(root / "imagesTr"), labels, is_test=False)
        cases = [*training, *test]
        for folder in ("imagesTr", "imagesTs"):
            known = {path.resolve() for case in cases for path in case.images}
            cases += [
                Case(stem_of(path), (path,))
                for path in image_files(root / folder)
                if path.resolve() not in known
            ]
        test_labels = labels_by_stem(image_files(root / "labelsTs"))
        found = tuple(_with_test_label(case, test_labels) for case in cases)
        channels = channel_names(description.modality)
        return Dataset(root, self.name, found, channels, classes, ignore)


def _listed_cases(root: Path, entries: Sequence[ListedCase | str], key: str) -> list[Case]:
    listed = [ListedCase(entry) if isinstance(entry, str) else entry for entry in entries]
    cases = _spelled_as_on_disk(root, [_listed_case(root, entry, key) for entry in listed])
    missing = [
        (case, what, path)
        for case in cases
        for what, path in (("image", case.images[0]), ("label", case.label))
        if path is not None and not path.is_file()
    ]
    if missing:
        case, what, path = missing[0]
        files = count_noun(len(missing) - 1, "more file")
        more = f" (the same applies to {files})" if len(missing) > 1 else ""
        raise MissingFileError(
            f"case {case.name} has no {what}: {path}, listed under '{key}' in dataset.json, does "
            f"not exist{more}. Add the file, or remove the entry from the list."
        )
    return cases


def _reject_repeated(source: Path, listed: Sequence[Case]) -> None:
    """Refuse an image listed twice, also by a link: it could be in training and test."""
    seen: dict[Path, Path] = {}
    for image in [case.images[0] for case in listed]:
        if first := seen.get(image.resolve()):
            raise InputError(
                f"{source} lists the same image twice, as {first} and {image}. Keep one entry, "
                "under 'training' or under 'test'."
            )
        seen[image.resolve()] = image


def _listed_case(root: Path, listed: ListedCase, key: str) -> Case:
    # backslashes: a list written on Windows
    written = (listed.image, listed.label or "")
    names = [name.replace("\\", "/") for name in written]
    image, label = root / names[0], root / names[1] if names[1] else None
    for name, shown in zip(names, written, strict=True):
        if not is_inside(name):
            raise InputError(
                f"{root / 'dataset.json'} lists {shown!r} under '{key}', which is outside the "
                "dataset. Move or link the file into the dataset, and list it by that path."
            )
    return Case(stem_of(image), (image,), label, is_test=key == "test" and label is not None)


def _spelled_as_on_disk(root: Path, cases: list[Case]) -> list[Case]:
    """The cases, with files whose names the list has in composed or decomposed Unicode."""
    if all(str(path).isascii() for case in cases for path in (*case.images, case.label)):
        return cases  # listing the dataset takes longer
    files = {root / file.path for file in list_content(root).files}
    spelled = {normalize("NFC", str(file)): file for file in files}
    spelled |= {str(file): file for file in files}  # both may exist

    def find(path: Path) -> Path:
        return spelled.get(str(path)) or spelled.get(normalize("NFC", str(path)), path)

    return [
        replace(case, images=(find(case.images[0]),), label=case.label and find(case.label))
        for case in cases
    ]


def _with_test_label(case: Case, labels: Mapping[str, Path]) -> Case:
    """The case with its label from `labelsTs`, if there is one."""
    if case.label or case.images[0].parent.name != "imagesTs" or case.name not in labels:
        return case
    return replace(case, label=labels[case.name], is_test=True)
