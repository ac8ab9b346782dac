"""Scores of a folder of predictions against labels: one row for each case, class and metric."""

from __future__ import annotations

import csv
import io
import statistics
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.layouts import read_dataset
from segpl.data.layouts.base import image_files
from segpl.data.readers import read_label, same_grid, stem_of
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.metrics import METRICS
from segpl.files import read_json, write_text

HEADER = ("case", "class", "metric", "value")
MANIFEST = "predictions.json"  # prediction leaves it beside the masks: what their numbers mean


@dataclass(frozen=True, slots=True)
class Score:
    case: str
    class_name: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One class and metric over all cases."""

    class_name: str
    metric: str
    mean: float
    std: float  # of the sample; nan for a single case
    median: float
    min: float
    max: float
    cases: int


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which prediction is scored against which label, and what the numbers in them mean."""

    pairs: dict[str, tuple[Path, Path]]  # case -> prediction, label
    without_label: list[str]  # predicted cases that nothing is known about
    without_prediction: list[str]
    classes: dict[str, int] | None  # None: the labels themselves must tell
    ignore: int | None


def evaluate_folders(
    predictions: str | Path, labels: str | Path, *, advance: Callable[[], object] | None = None
) -> list[Score]:
    """Score every prediction that has a label; `labels` is a folder of them, or a dataset."""
    pairing = pair_cases(Path(predictions), Path(labels))
    if pairing.without_label:
        warnings.warn(
            f"{len(pairing.without_label)} prediction(s) have no label in {labels} and are not "
            f"scored: {_some(pairing.without_label)}.",
            stacklevel=2,
        )
    return score_pairs(pairing, advance=advance)


def pair_cases(predictions: Path, labels: Path) -> Pairing:
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
            f"no prediction has a label: {predictions} holds {_some(predicted)}, and {labels} "
            f"holds {_some(known)}. A label is found by the name of its case: rename the files, "
            "or point to the labels of these cases."
        )
    manifest = predictions / MANIFEST
    if manifest.is_file():
        classes, ignore = _manifest(manifest)
    return Pairing(
        pairs={case: (predicted[case], known[case]) for case in shared},
        without_label=sorted(predicted.keys() - known.keys()),
        without_prediction=sorted(known.keys() - predicted.keys()),
        classes=classes,
        ignore=ignore,
    )


def score_pairs(pairing: Pairing, *, advance: Callable[[], object] | None = None) -> list[Score]:
    classes = pairing.classes
    if classes is None:
        classes = _classes_in(label for _, label in pairing.pairs.values())
    scores: list[Score] = []
    for case, (prediction_file, label_file) in pairing.pairs.items():
        prediction, truth = read_label(prediction_file), read_label(label_file)
        difference = same_grid(prediction.grid, truth.grid)
        if difference:
            raise InputError(
                f"case {case}: {prediction_file} and {label_file} are not on one grid: "
                f"{difference}. Predict again from the image that the label was drawn on."
            )
        scores += evaluate_case(prediction.array, truth.array, classes, pairing.ignore, case=case)
        if advance is not None:
            advance()
    return scores


def evaluate_case(
    prediction: NDArray[np.integer],
    truth: NDArray[np.integer],
    classes: dict[str, int],
    ignore: int | None,
    *,
    case: str,
) -> list[Score]:
    """Every metric of every class but the background, over voxels whose truth is known."""
    if prediction.shape != truth.shape:
        raise InputError(
            f"case {case}: the prediction has shape {prediction.shape} and the label "
            f"{truth.shape}. Both must lie on the grid of the image; predict it again."
        )
    if ignore is not None:
        is_known = truth != ignore
        prediction, truth = prediction[is_known], truth[is_known]
    _check_numbers(case, "prediction", prediction, classes)
    _check_numbers(case, "label", truth, classes)
    return [
        Score(case, name, metric, function(prediction == number, truth == number))
        for name, number in foreground(classes).items()
        for metric, function in METRICS.items()
    ]


def foreground(classes: dict[str, int]) -> dict[str, int]:
    """The classes without the background, which is never scored."""
    return {name: number for name, number in classes.items() if number != 0}


def summarize(scores: list[Score]) -> list[Summary]:
    """One row for each class and metric, in the order of their first appearance."""
    groups: dict[tuple[str, str], list[float]] = {}
    for score in scores:
        groups.setdefault((score.class_name, score.metric), []).append(score.value)
    return [
        Summary(
            class_name=class_name,
            metric=metric,
            mean=statistics.fmean(values),
            std=statistics.stdev(values) if len(values) > 1 else float("nan"),
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            cases=len(values),
        )
        for (class_name, metric), values in groups.items()
    ]


def write_scores(path: Path, scores: list[Score]) -> None:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows((s.case, s.class_name, s.metric, repr(float(s.value))) for s in scores)
    write_text(path, table.getvalue())


def read_scores(path: Path) -> list[Score]:
    if not path.is_file():
        raise MissingFileError(
            f"{path} does not exist. Make it with `segpl evaluate PREDICTIONS LABELS --out {path}`."
        )
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.reader(handle)
        header = tuple(next(rows, ()))
        if header != HEADER:
            raise InputError(
                f"{path} starts with '{','.join(header)}' and is no table of scores: its first "
                f"line must be '{','.join(HEADER)}'. Write it again with `segpl evaluate`."
            )
        scores: list[Score] = []
        for row in rows:
            try:
                case, class_name, metric, value = row
                scores.append(Score(case, class_name, metric, float(value)))
            except ValueError as error:
                raise InputError(
                    f"{path}, line {rows.line_num}: '{','.join(row)}' is not a case, a class, a "
                    "metric and a number. Write the file again with `segpl evaluate`."
                ) from error
    return scores


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


def _manifest(path: Path) -> tuple[dict[str, int], int | None]:
    content = read_json(path)
    classes = content.get("classes") if isinstance(content, dict) else None
    ignore = content.get("ignore") if isinstance(content, dict) else None
    if (
        not isinstance(classes, dict)
        or not all(isinstance(number, int) for number in classes.values())
        or not isinstance(ignore, int | None)
    ):
        raise InputError(
            f'{path} does not say what the numbers mean: it needs {{"classes": {{name: number}}, '
            '"ignore": number or null}. Correct it, or remove it to take every number in the '
            "labels for a class."
        )
    return dict(classes), ignore


def _classes_in(labels: Iterable[Path]) -> dict[str, int]:
    numbers: set[int] = set()
    for path in labels:
        numbers |= _numbers_in(read_label(path).array)
    numbers.discard(0)
    if not numbers:
        raise InputError(
            "every label is empty, so there is no class to score, and the predictions come "
            f"without a {MANIFEST} that would name one. Check that these are the labels."
        )
    return {str(number): number for number in sorted(numbers)}


def _check_numbers(
    case: str, what: str, array: NDArray[np.integer], classes: dict[str, int]
) -> None:
    strange = sorted(_numbers_in(array) - set(classes.values()) - {0})
    if strange:
        known = ", ".join(f"{name} = {number}" for name, number in classes.items())
        raise InputError(
            f"case {case}: the {what} holds the number {strange[0]}, which is no class ({known}). "
            f"Predictions and labels must use the same numbers; {MANIFEST} beside the predictions "
            "says which."
        )


def _numbers_in(array: NDArray[np.integer]) -> set[int]:
    if array.size and array.min() >= 0 and array.max() < 2**16:
        # counting is many times faster than sorting a large volume
        return set(np.flatnonzero(np.bincount(array.ravel())).tolist())
    return set(np.unique(array).tolist())


def _some(names: Iterable[str], most: int = 3) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more if ordered else "none"
