"""Score a folder of predicted masks against labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Dataset
from segpl.data.fingerprint import count_numbers
from segpl.data.manifest import MANIFEST
from segpl.data.masks import Mask
from segpl.data.readers import read_label
from segpl.errors import InputError, name_some
from segpl.evaluate.metrics import (
    DEFAULT_METRICS,
    METRICS,
    TOLERANCE,
    Masks,
    known_metrics,
    unit_of,
)
from segpl.evaluate.pairing import Pairing, pair_cases, read_region, unknown_number
from segpl.evaluate.scores import Score


def evaluate_folders(
    predictions: str | Path,
    labels: str | Path | Dataset,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    tolerance: float = TOLERANCE,
    region: str | Path | None = None,
    advance: Callable[[], object] = lambda: None,
) -> list[Score]:
    """Score every prediction that has a label.

    Args:
        predictions: folder of masks.
        labels: folder of labels, folder of a dataset, or a `Dataset`.
        metrics: names of `METRICS`.
        tolerance: tolerance of surface Dice, in mm.
        region: folder of masks to score inside of, or its name next to the folder of labels.
        advance: called once per case.
    """
    known = labels if isinstance(labels, Dataset) else Path(labels)
    pairing = pair_cases(Path(predictions), known, region=region)
    if pairing.without_label:
        place = labels.root if isinstance(labels, Dataset) else labels
        warnings.warn(
            f"not scored, because {place} has no label for them: "
            f"{name_some(pairing.without_label, 3)}.",
            stacklevel=2,
        )
    scores = score_pairs(pairing, metrics=metrics, tolerance=tolerance, advance=advance)
    if note := binary_note(pairing, scores):
        warnings.warn(note, stacklevel=2)
    return scores


def binary_note(pairing: Pairing, scores: Sequence[Score]) -> str:
    """A warning if masks of another program are binary, but the labels are not."""
    first = next((name for name, n in (pairing.classes or {"1": 1}).items() if n == 1), "")
    predicted = {score.class_name for score in scores if score.empty in ("no", "label")}
    labeled = dict.fromkeys(s.class_name for s in scores if s.empty in ("no", "prediction"))
    others = [name for name in labeled if name != first]
    if pairing.has_manifest or predicted != {first} or not others:
        return ""
    return (
        "the masks contain only 0 and 1, but the labels also contain "
        f"{name_some(others, 3)}. 1 was scored as {first}. If it means something else, such as any "
        "foreground, write the numbers of the labels into the masks."
    )


def score_pairs(
    pairing: Pairing,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    tolerance: float = TOLERANCE,
    advance: Callable[[], object] = lambda: None,
) -> list[Score]:
    metrics = known_metrics(metrics)
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(
            f"tolerance is {tolerance:g} mm, but must be 0 or more, and finite. It is the distance "
            "up to which surface Dice counts two surfaces as one. Try 1."
        )
    classes = pairing.classes
    if classes is None:
        classes = _classes_in(pairing.truth(case).array for case in pairing.pairs)
    scores: list[Score] = []
    for case, (path, _) in pairing.pairs.items():
        prediction = read_label(path)
        truth = pairing.truth_on(prediction.grid, case)
        mask = pairing.regions.get(case)
        scores += evaluate_case(
            prediction.array,
            truth.array,
            classes,
            pairing.ignore,
            case=case,
            metrics=metrics,
            spacing=truth.grid.stored_spacing,
            tolerance=tolerance,
            region=read_region(mask, truth.grid, case) if mask else None,
        )
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
    """Score every foreground class, over voxels inside the region whose truth is known.

    `spacing` is in mm; without it, distances and volumes are in voxels.
    """
    counts = region
    if ignore is not None:
        counts = truth != ignore if counts is None else counts & (truth != ignore)
    for what, array in (("prediction", prediction), ("label", truth)):
        numbers = count_numbers(array if counts is None else array[counts])
        if strange := sorted(numbers.keys() - {*classes.values(), 0}):
            raise unknown_number(f"case {case}: the {what}", strange[0], classes)
    scores: list[Score] = []
    for name, number in classes.items():
        if number == 0:
            continue  # the background is never scored
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


def _classes_in(labels: Iterable[NDArray[np.integer]]) -> dict[str, int]:
    numbers = {number for label in labels for number in count_numbers(label)} - {0}
    if not numbers:
        raise InputError(
            "there is no class to score: every label is empty, and the predictions have no "
            f"{MANIFEST} that names classes. Check that these are the labels."
        )
    return {str(number): number for number in sorted(numbers)}
