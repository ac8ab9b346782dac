"""Scores of a folder of predictions against labels: one row for each case, class and metric."""

from __future__ import annotations

import csv
import io
import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.manifest import MANIFEST
from segpl.data.readers import Grid, grid_difference, read_label
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.metrics import (
    DEFAULT_METRICS,
    METRICS,
    TOLERANCE,
    Mask,
    Masks,
    empty_policy,
    known_metrics,
    unit_of,
)
from segpl.evaluate.pairing import Pairing, pair_cases, some_of
from segpl.evaluate.region import read_region
from segpl.files import write_text

HEADER = ("case", "class", "metric", "value", "unit", "empty")
SHORT_HEADER = HEADER[:4]  # of tables that hold Dice and IoU alone


@dataclass(frozen=True, slots=True)
class Score:
    case: str
    class_name: str
    metric: str
    value: float
    unit: str = ""  # 'mm', 'ml', ...; of surface Dice its tolerance, 'at 1 mm'
    # masks without a voxel of the class: 'no', 'both', 'prediction', 'label'; '' is not recorded
    empty: str = ""


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
    unit: str = ""


def evaluate_folders(
    predictions: str | Path,
    labels: str | Path,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    tolerance: float = TOLERANCE,
    region: str | Path | None = None,
    advance: Callable[[], object] | None = None,
) -> list[Score]:
    """Score every prediction that has a label; `labels` is a folder of them, or a dataset.

    `metrics` are names of `METRICS`; `tolerance` is that of surface Dice, in mm; `region` is a
    folder of masks outside of which nothing counts, or its name beside the labels' folder.
    """
    pairing = pair_cases(Path(predictions), Path(labels), region=region)
    if pairing.without_label:
        warnings.warn(
            f"{len(pairing.without_label)} prediction(s) have no label in {labels} and are not "
            f"scored: {some_of(pairing.without_label)}.",
            stacklevel=2,
        )
    return score_pairs(pairing, metrics=metrics, tolerance=tolerance, advance=advance)


def score_pairs(
    pairing: Pairing,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    tolerance: float = TOLERANCE,
    advance: Callable[[], object] | None = None,
) -> list[Score]:
    metrics = known_metrics(metrics)  # before the files are read
    _check_tolerance(tolerance)
    classes = pairing.classes
    if classes is None:
        classes = _classes_in(label for _, label in pairing.pairs.values())
    scores: list[Score] = []
    for case, (prediction_file, label_file) in pairing.pairs.items():
        prediction, truth = read_label(prediction_file), read_label(label_file)
        difference = grid_difference(prediction.grid, truth.grid)
        if difference:
            raise InputError(
                f"case {case}: {prediction_file} and {label_file} are not on one grid: "
                f"{difference}. Predict again from the image that the label was drawn on."
            )
        mask = pairing.regions.get(case)
        scores += evaluate_case(
            prediction.array,
            truth.array,
            classes,
            pairing.ignore,
            case=case,
            metrics=metrics,
            spacing=_spacing(truth.grid),
            tolerance=tolerance,
            region=read_region(mask, truth.grid, case) if mask else None,
        )
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
    metrics: Sequence[str] = DEFAULT_METRICS,
    spacing: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    region: Mask | None = None,
) -> list[Score]:
    """The metrics of every class but the background, over voxels of known truth in the region.

    `spacing` is in mm; without one, distances and volumes are counted in voxels.
    """
    if prediction.shape != truth.shape:
        raise InputError(
            f"case {case}: the prediction has shape {prediction.shape} and the label "
            f"{truth.shape}. Both must lie on the grid of the image; predict it again."
        )
    counts = region
    if ignore is not None:
        counts = truth != ignore if counts is None else counts & (truth != ignore)
    _check_numbers(case, "prediction", prediction, classes, counts)
    _check_numbers(case, "label", truth, classes, counts)
    scores: list[Score] = []
    for name, number in foreground(classes).items():
        found, there = prediction == number, truth == number
        if counts is not None:
            found, there = found & counts, there & counts
        masks = Masks(found, there, spacing, tolerance)
        empty = masks.empty
        scores += (
            Score(case, name, metric, METRICS[metric].score(masks), unit_of(metric, masks), empty)
            for metric in metrics
        )
    return scores


def foreground(classes: dict[str, int]) -> dict[str, int]:
    """The classes without the background, which is never scored."""
    return {name: number for name, number in classes.items() if number != 0}


def summarize(scores: list[Score]) -> list[Summary]:
    """One row for each class, metric and unit, in the order of their first appearance."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        key = (score.class_name, score.metric, score.unit)
        groups.setdefault(key, []).append(score.value)
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
            unit=unit,
        )
        for (class_name, metric, unit), values in groups.items()
    ]


def empty_note(scores: Sequence[Score]) -> str:
    """For the foot of a table: what empty masks were given, and how often that happened."""
    policy = empty_policy(score.metric for score in scores)
    pairs = {(score.case, score.class_name): score.empty for score in scores}
    counts = Counter(pairs.values())
    if not policy or counts[""]:
        return policy
    of = f"of {len(pairs)} pair{'s' if len(pairs) > 1 else ''} of case and class"
    if counts["no"] == len(pairs):
        return f"{policy} This was needed for none {of}."
    named = {"both": "both empty", "prediction": "only the prediction", "label": "only the label"}
    said = ", ".join(f"{words} {counts[key]}" for key, words in named.items())
    return f"{policy} This was needed for {len(pairs) - counts['no']} {of}: {said}."


def write_scores(path: Path, scores: list[Score]) -> None:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(
        (s.case, s.class_name, s.metric, repr(float(s.value)), s.unit, s.empty) for s in scores
    )
    write_text(path, table.getvalue())


def read_scores(path: Path) -> list[Score]:
    if not path.is_file():
        raise MissingFileError(
            f"{path} does not exist. Make it with `segpl evaluate PREDICTIONS LABELS --out {path}`."
        )
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.reader(handle)
        header = tuple(next(rows, ()))
        if header not in (HEADER, SHORT_HEADER):
            raise InputError(
                f"{path} starts with '{','.join(header)}' and is no table of scores: its first "
                f"line must be '{','.join(HEADER)}'. Write it again with `segpl evaluate`."
            )
        scores: list[Score] = []
        for row in rows:
            try:
                case, class_name, metric, value, *rest = row
                unit, empty = rest or ("", "")
                scores.append(Score(case, class_name, metric, float(value), unit, empty))
            except ValueError as error:
                raise InputError(
                    f"{path}, line {rows.line_num}: '{','.join(row)}' is not a case, a class, a "
                    "metric and a number. Write the file again with `segpl evaluate`."
                ) from error
    return scores


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


def _spacing(grid: Grid) -> tuple[float, ...] | None:
    """In mm, or None for pictures and arrays, whose voxels are of no known size."""
    is_stored = grid.affine is not None or any(size != 1 for size in grid.spacing)
    return grid.spacing if is_stored else None


def _check_tolerance(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(
            f"a tolerance of {tolerance:g} mm is no distance. Give the distance up to which two "
            "surfaces count as one, such as 1."
        )


def _check_numbers(
    case: str,
    what: str,
    array: NDArray[np.integer],
    classes: dict[str, int],
    counts: Mask | None,
) -> None:
    numbers = _numbers_in(array if counts is None else array[counts])
    strange = sorted(numbers - set(classes.values()) - {0})
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
