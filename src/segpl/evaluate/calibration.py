"""Whether predicted probabilities can be believed: scores of a folder of them against labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.manifest import MANIFEST, Manifest
from segpl.data.readers import grid_difference, read_image, read_label
from segpl.errors import InputError
from segpl.evaluate.pairing import Pairing, pair_cases, read_class_numbers, some_of
from segpl.evaluate.region import read_region
from segpl.evaluate.scores import Score
from segpl.evaluate.uncertainty import (
    Answers,
    Floats,
    adaptive_calibration_error,
    brier,
    expected_calibration_error,
    negative_log_likelihood,
    questions,
)
from segpl.types import IGNORE

# the lower the better, all of them
MEASURES: dict[str, Callable[[Floats, Answers], float]] = {
    "brier": brier,
    "ece": expected_calibration_error,
    "ace": adaptive_calibration_error,
    "nll": negative_log_likelihood,
}
TITLES = {"brier": "Brier", "ece": "ECE", "ace": "ACE", "nll": "NLL"}
UNITS = {"nll": "nats"}
PROBABILITIES = "probabilities"  # the folder that prediction writes them to
STRANGER = -2  # a number in a label that no class has


def calibration_scores(
    predictions: str | Path,
    labels: str | Path,
    *,
    region: str | Path | None = None,
    advance: Callable[[], object] | None = None,
) -> list[Score]:
    """Every measure for each case with a label, and each class but the background.

    `predictions` is what `segpl predict --probabilities` has written, or the folder `probabilities`
    in it; `labels` is a folder of labels, or a dataset; `region` is that of `evaluate_folders`.
    Every class is a question of its own: is a voxel of it or not? Voxels that nobody knows are left
    out; a case of which none is known scores nan.
    """
    pairing = pair_probabilities(Path(predictions), Path(labels), region=region)
    if pairing.without_label:
        warnings.warn(
            f"{len(pairing.without_label)} prediction(s) have no label in {labels} and are not "
            f"scored: {some_of(pairing.without_label)}.",
            stacklevel=2,
        )
    return score_probabilities(pairing, advance=advance)


def pair_probabilities(
    predictions: Path, labels: Path, *, region: str | Path | None = None
) -> Pairing:
    """Match probabilities and labels by case name; masks are never taken for probabilities."""
    folder = predictions if predictions.name == PROBABILITIES else predictions / PROBABILITIES
    if predictions.is_dir() and not folder.is_dir():
        raise InputError(
            f"{predictions} holds no probabilities: it has no folder {PROBABILITIES}, and masks "
            "cannot tell how sure a prediction is. Write them with `segpl predict RUN --out "
            f"{predictions} --probabilities`, with --samples N too for the mean of N samples."
        )
    pairing = pair_cases(folder, labels, region=region)
    manifest = _manifest_of(folder)
    made = manifest.files
    stale = [
        case for case in pairing.pairs if case in made and PROBABILITIES not in made[case].maps
    ]
    if stale:
        raise InputError(
            f"the probabilities of {some_of(stale)} in {folder} are older than the masks beside "
            f"them: {MANIFEST} knows nothing of them. Write both with `segpl predict RUN --out "
            f"{folder.parent} --probabilities --overwrite`."
        )
    return replace(pairing, classes=manifest.classes, ignore=manifest.ignore)


def score_probabilities(
    pairing: Pairing, *, advance: Callable[[], object] | None = None
) -> list[Score]:
    """Every measure of each pair of `pair_probabilities`."""
    assert pairing.classes is not None, "probabilities say which classes their channels are"
    scores: list[Score] = []
    for case, (probability_file, label_file) in pairing.pairs.items():
        truth = read_label(label_file)
        image = read_image([probability_file], len(truth.grid.shape))
        if difference := grid_difference(image.grid, truth.grid):
            raise InputError(
                f"case {case}: {probability_file} and {label_file} are not on one grid: "
                f"{difference}. Predict again from the image that the label was drawn on."
            )
        index = class_indices(truth.array, pairing.classes, pairing.ignore, label_file)
        if mask := pairing.regions.get(case):
            index[~read_region(mask, truth.grid, case)] = IGNORE
        scores += case_scores(image.array, index, list(pairing.classes), case=case)
        if advance is not None:
            advance()
    return scores


def case_scores(
    probability: Floats, label: NDArray[np.integer], classes: list[str], *, case: str
) -> list[Score]:
    """Scores of probabilities (K, *S) against indices of classes (*S), or IGNORE."""
    channels = 1 if len(classes) == 2 else len(classes)
    if len(probability) != channels:
        raise InputError(
            f"case {case}: there are {len(probability)} channels of probabilities, and the "
            f"{len(classes)} classes {', '.join(classes)} need {channels}. Predict again."
        )
    asked, answers = questions(probability, label)
    names = classes if channels > 1 else classes[1:]
    return [
        Score(case, name, measure, function(p, y), UNITS.get(measure, ""))
        for number, (name, p, y) in enumerate(zip(names, asked, answers, strict=True))
        if number > 0 or channels == 1  # the background is never scored
        for measure, function in MEASURES.items()
    ]


def class_indices(
    label: NDArray[np.integer], classes: Mapping[str, int], ignore: int | None, source: Path
) -> NDArray[np.int16]:
    """The index (*S) of the class of each voxel, or IGNORE."""
    index = np.full(label.shape, STRANGER, np.int16)
    for position, number in enumerate(classes.values()):
        index[label == number] = position
    if ignore is not None:
        index[label == ignore] = IGNORE
    if (strangers := label[index == STRANGER]).size:
        known = ", ".join(f"{name} = {number}" for name, number in classes.items())
        raise InputError(
            f"{source} holds the number {strangers[0]}, which is no class ({known}). Predictions "
            f"and labels must use the same numbers; {MANIFEST} beside the predictions says which."
        )
    return index


def _manifest_of(folder: Path) -> Manifest:
    manifest = read_class_numbers(folder.parent) or read_class_numbers(folder)
    if manifest is None or len(manifest.classes) < 2:
        raise InputError(
            f"{folder} does not say which channel is which class: there is no {MANIFEST} with "
            "classes beside it. Write it with `segpl predict RUN --probabilities --out DIR`, and "
            "evaluate DIR."
        )
    return manifest
