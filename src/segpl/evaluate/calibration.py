"""Whether predicted probabilities can be believed: scores of a folder of them against labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.readers import read_image, read_label, same_grid
from segpl.errors import InputError
from segpl.evaluate.pairing import MANIFEST, pair_cases, some_of
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
from segpl.files import read_json
from segpl.types import IGNORE

# the lower the better, all of them
MEASURES: dict[str, Callable[[Floats, Answers], float]] = {
    "brier": brier,
    "ece": expected_calibration_error,
    "ace": adaptive_calibration_error,
    "nll": negative_log_likelihood,
}
UNITS = {"nll": "nats"}
STRANGER = -2  # a number in a label that no class has


def calibration_scores(
    predictions: str | Path, labels: str | Path, *, region: str | Path | None = None
) -> list[Score]:
    """Every measure for each case with a label, and each class but the background.

    `predictions` is what `segpl predict --probabilities` has written, or the folder `probabilities`
    in it; `labels` is a folder of labels, or a dataset; `region` is that of `evaluate_folders`.
    Every class is a question of its own: is a voxel of it or not? Voxels that nobody knows are left
    out; a case of which none is known scores nan.
    """
    folder = Path(predictions)
    folder = folder / "probabilities" if (folder / "probabilities").is_dir() else folder
    pairing = pair_cases(folder, Path(labels), region=region)
    classes, ignore = _meaning(folder)
    if pairing.without_label:
        warnings.warn(
            f"{len(pairing.without_label)} prediction(s) have no label in {labels} and are not "
            f"scored: {some_of(pairing.without_label)}.",
            stacklevel=2,
        )
    scores: list[Score] = []
    for case, (probability_file, label_file) in pairing.pairs.items():
        truth = read_label(label_file)
        image = read_image([probability_file], len(truth.grid.shape))
        if difference := same_grid(image.grid, truth.grid):
            raise InputError(
                f"case {case}: {probability_file} and {label_file} are not on one grid: "
                f"{difference}. Predict again from the image that the label was drawn on."
            )
        index = class_indices(truth.array, classes, ignore, label_file)
        if mask := pairing.regions.get(case):
            index[~read_region(mask, truth.grid, case)] = IGNORE
        scores += case_scores(image.array, index, list(classes), case=case)
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


def _meaning(folder: Path) -> tuple[dict[str, int], int | None]:
    """Classes in the order of the channels, and the number of what nobody knows."""
    places = [folder.parent / MANIFEST, folder / MANIFEST]
    source = next((path for path in places if path.is_file()), None)
    content = {} if source is None else read_json(source)
    classes = content.get("classes") if isinstance(content, dict) else None
    if not isinstance(classes, dict) or len(classes) < 2:
        raise InputError(
            f"{folder} does not say which channel is which class: there is no {MANIFEST} with "
            "classes beside it. Write it with `segpl predict RUN --probabilities --out DIR`, and "
            "name DIR."
        )
    return classes, content.get("ignore")
