"""Which prediction is scored against which label, and where: files matched by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from segpl.data.layouts import read_dataset
from segpl.data.layouts.base import image_files
from segpl.data.manifest import Manifest, read_manifest
from segpl.data.readers import stem_of
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.region import find_regions


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which prediction is scored against which label, and what the numbers in them mean."""

    pairs: dict[str, tuple[Path, Path]]  # case -> prediction, label
    without_label: list[str]  # predicted cases that nothing is known about
    without_prediction: list[str]
    classes: dict[str, int] | None  # None: the labels themselves must tell
    ignore: int | None
    regions: dict[str, Path] = field(default_factory=dict)  # where to score; none: everywhere


def pair_cases(predictions: Path, labels: Path, *, region: str | Path | None = None) -> Pairing:
    """Match predictions and labels by case name, whatever their formats."""
    for path in (predictions, labels):
        if not path.is_dir():
            raise MissingFileError(
                f"{path} is not a folder: evaluation needs a folder of predictions, and a folder "
                "of labels or a dataset. Check the path."
            )
    predicted = _files_by_case(predictions)
    if not predicted:
        raise InputError(
            f"{predictions} holds no prediction: there is no image file in it. "
            "Write some with `segpl predict RUN FILES --out DIR`."
        )
    known, classes, ignore = _labels(labels)
    shared = sorted(predicted.keys() & known.keys())
    if not shared:
        raise InputError(
            f"no prediction has a label: {predictions} holds {some_of(predicted)}, and {labels} "
            f"holds {some_of(known)}. A label is found by the name of its case: rename the files, "
            "or point to the labels of these cases."
        )
    if manifest := read_class_numbers(predictions):
        classes, ignore = manifest.classes, manifest.ignore
    return Pairing(
        pairs={case: (predicted[case], known[case]) for case in shared},
        without_label=sorted(predicted.keys() - known.keys()),
        without_prediction=sorted(known.keys() - predicted.keys()),
        classes=classes,
        ignore=ignore,
        regions=find_regions(region, {case: known[case] for case in shared}) if region else {},
    )


def _files_by_case(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in image_files(folder):
        case = stem_of(path)
        if case in found:
            raise InputError(
                f"{folder} holds two files for case {case}: {found[case].name} and {path.name}. "
                "One file for each case is needed; move the other elsewhere."
            )
        found[case] = path
    return found


def _labels(folder: Path) -> tuple[dict[str, Path], dict[str, int] | None, int | None]:
    """Label files by case, and what their numbers mean where that is written down."""
    files = _files_by_case(folder)
    if files:
        return files, None, None
    dataset = read_dataset(folder)
    known = {case.name: case.label for case in dataset.cases if case.label}
    return known, dataset.classes, dataset.ignore


def read_class_numbers(folder: Path) -> Manifest | None:
    """The manifest of a folder of predictions; None without one."""
    try:
        return read_manifest(folder)
    except InputError as error:
        raise InputError(
            f'{error} It needs {{"classes": {{name: number}}, "ignore": number or null}}. Correct '
            "it, or remove it to score every number in the labels as a class."
        ) from error


def some_of(names: Iterable[str], most: int = 3) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more if ordered else "none"
