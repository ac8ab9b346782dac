"""Calibration of a folder of predicted probabilities against labels."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Dataset
from segpl.data.manifest import MANIFEST
from segpl.data.prepare import class_indices
from segpl.data.readers import read_image
from segpl.errors import InputError, count_noun, name_some
from segpl.evaluate.pairing import Pairing, pair_cases, read_class_numbers, read_region
from segpl.evaluate.scores import Score
from segpl.evaluate.uncertainty import (
    Answers,
    FloatArray,
    adaptive_calibration_error,
    brier,
    negative_log_likelihood,
    questions,
    reliability,
)
from segpl.types import IGNORE

# lower is better
MEASURES: dict[str, Callable[[FloatArray, Answers], float]] = {
    "brier": brier,
    "ece": lambda probability, truth: reliability(probability, truth).error,
    "ace": adaptive_calibration_error,
    "nll": negative_log_likelihood,
}
TITLES = {"brier": "Brier", "ece": "ECE", "ace": "ACE", "nll": "NLL"}
MEASURES_NOTE = (
    "Brier: mean squared error. ECE: expected calibration error, the mean gap between probability "
    "and frequency over 15 bins of equal width. ACE: adaptive calibration error, the same over 15 "
    "bins of equal size. NLL: negative log-likelihood."
)
PROBABILITIES = "probabilities"  # folder and map of that name, as `segpl predict` writes them


def pair_probabilities(
    predictions: Path, labels: Path | Dataset, *, region: str | Path | None = None
) -> Pairing:
    """Match probabilities and labels by case name. Masks never count as probabilities."""
    folder = predictions if predictions.name == PROBABILITIES else predictions / PROBABILITIES
    if predictions.is_dir() and not folder.is_dir():
        raise InputError(
            f"{predictions} contains no probabilities, only masks. Write them with `segpl predict "
            f"RUN --out {predictions} --probabilities`, optionally with --samples N."
        )
    pairing = pair_cases(folder, labels, region=region)
    manifest = read_class_numbers(folder.parent) or read_class_numbers(folder)
    if manifest is None or len(manifest.classes) < 2:
        raise InputError(
            f"no {MANIFEST} next to {folder} says which channel is which class. Write it with "
            "`segpl predict RUN --probabilities --out DIR`, and evaluate DIR."
        )
    known = {case: entry for case, entry in manifest.files.items() if case in pairing.pairs}
    if stale := [n for n, e in known.items() if e.outdated or PROBABILITIES not in e.maps]:
        raise InputError(
            f"the probabilities of {name_some(sorted(stale), 3)} in {folder} are older than "
            f"the masks: {MANIFEST} does not list them. Write both with `segpl predict RUN --out "
            f"{folder.parent} --probabilities --overwrite`."
        )
    return replace(pairing, classes=manifest.classes, ignore=manifest.ignore)


def score_probabilities(
    pairing: Pairing, *, advance: Callable[[], object] = lambda: None
) -> list[Score]:
    """All measures for each labeled case and foreground class, paired by `pair_probabilities`.

    Each class is a binary question: does a voxel belong to it? Voxels of unknown truth are left
    out; a case without any known voxel scores nan. `advance` is called once per case.
    """
    assert pairing.classes is not None, "pair_probabilities sets the classes"
    scores: list[Score] = []
    for case, (probability_file, label_file) in pairing.pairs.items():
        stored = pairing.truth(case)
        image = read_image([probability_file], len(stored.grid.shape))
        truth = pairing.truth_on(image.grid, case, stored)
        index = class_indices(truth.array, pairing.classes, pairing.ignore, str(label_file))
        if mask := pairing.regions.get(case):
            index[~read_region(mask, truth.grid, case)] = IGNORE
        scores += case_scores(image.array, index, list(pairing.classes), case=case)
        advance()
    return scores


def require_channels(probability: FloatArray, classes: Collection[str], *, case: str) -> None:
    channels = 1 if len(classes) == 2 else len(classes)
    if len(probability) != channels:
        raise InputError(
            f"case {case}: the probabilities have "
            f"{count_noun(len(probability), 'channel')}, but the "
            f"{len(classes)} classes {', '.join(classes)} need {channels}. Predict again."
        )


def case_scores(
    probability: FloatArray, label: NDArray[np.integer], classes: list[str], *, case: str
) -> list[Score]:
    """All measures of probabilities (K, *S) against class indices (*S) or IGNORE."""
    require_channels(probability, classes, case=case)
    asked, answers = questions(probability, label)
    first = 0 if len(classes) == 2 else 1  # foreground channel
    return [
        Score(case, name, measure, function(p, y), "nats" if measure == "nll" else "")
        for name, p, y in zip(classes[1:], asked[first:], answers[first:], strict=True)
        for measure, function in MEASURES.items()
    ]
