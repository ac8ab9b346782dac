"""Predict and score what a comparison or a report needs. This loads models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from segpl.data.case import Dataset
from segpl.display import bar, say
from segpl.errors import UserError, count_noun
from segpl.evaluate.folders import evaluate_folders
from segpl.evaluate.metrics import DEFAULT_METRICS, METRICS
from segpl.evaluate.scores import Score, write_scores
from segpl.predict.outputs import OutdatedMasksError, reject_corrected
from segpl.report.page.slices import evenly_spaced
from segpl.report.run_record import RunRecord, read_run
from segpl.report.run_scores import MASK_FOLDERS
from segpl.run import Run, load_run

SAMPLES = 5
SHOWN_SCANS = 6  # predicted for the pictures of a run without test cases


def predict_again(run: Run, out: Path, **options: Any) -> list[Path]:
    """Predict the test cases. Masks of other weights or images are replaced unless corrected."""
    try:
        return run.predict(out=out, **options)  # keeps finished masks of the same weights
    except OutdatedMasksError:
        reject_corrected(out)
        # without repeating the note about components
        return run.predict(out=out, overwrite=True, **{"largest": run.largest, **options})


def score_run(run: Run) -> list[Score]:
    """Predict and score the test cases; masks and `scores.csv` stay in the run folder."""
    predictions = run.path / "predictions"
    predict_again(run, predictions)
    return score_masks(predictions, run.open_dataset(), run.path / "scores.csv")


def score_masks(predictions: Path, dataset: Dataset, out: Path, **options: Any) -> list[Score]:
    """Score masks, by default by the metrics that a report needs, and write the table."""
    options = {"metrics": (*DEFAULT_METRICS, "volume", "label_volume"), **options}
    scores = evaluate_folders(predictions, dataset, **options)
    write_scores(out, scores)
    return scores


def predict_missing(paths: Sequence[Path], *, device: str = "auto", quiet: bool = False) -> None:
    """Score the test cases of runs without scores, or else predict a few unlabeled scans.

    Nothing is replaced: runs that have predictions are only scored.
    """
    for path in paths:
        try:
            predict_for_report(read_run(path), device=device, quiet=quiet)
        except UserError as error:
            say(f"note: nothing was predicted with {path}: {error}", style="yellow")


def predict_for_report(record: RunRecord, *, device: str, quiet: bool) -> None:
    path, split = record.path, record.split
    if split is None:
        return  # the report says why
    is_new = not any((path / name).exists() for name in MASK_FOLDERS)
    unlabeled = split.unlabeled or split.validation
    if set(record.predicted) & set(split.test):
        score_masks(path / "predictions", record.open_dataset(), path / "scores.csv")
    elif is_new and split.test:
        if not quiet:
            say(f"Predicting and scoring the {count_noun(len(split.test), 'test case')} of {path}")
        score_run(load_run(path, device=device, quiet=quiet))
    elif is_new and unlabeled:
        names = tuple(unlabeled[place] for place in evenly_spaced(len(unlabeled), SHOWN_SCANS))
        if not quiet:
            say(f"Predicting {count_noun(len(names), 'unlabeled scan')} with {path}")
        run = load_run(path, device=device, quiet=quiet)
        # a run predicts its test cases by default
        run = replace(run, split=replace(run.split, test=names))
        run.predict(out=path / "samples", samples=SAMPLES)


def fill(path: Path, *, device: str = "auto", quiet: bool = False) -> None:
    """Predict the test cases with probabilities and samples, and score them by every metric.

    Without test cases, do what a report does without `--fill`.
    """
    run = load_run(path, device=device, quiet=quiet)
    if not run.split.test:
        if not quiet:
            say(f"{path} has no test cases to score.", style="yellow")
        predict_for_report(read_run(path), device=device, quiet=quiet)
        return
    predictions = path / "predictions"
    predict_again(run, predictions, probabilities=True)
    # the note about components was printed for the predictions
    predict_again(run, path / "samples", samples=SAMPLES, largest=run.largest)
    with bar("scoring", len(run.split.test), quiet=quiet) as advance:
        options = {"metrics": tuple(METRICS), "advance": advance}
        score_masks(predictions, run.open_dataset(), path / "scores.csv", **options)


def fill_all(paths: Sequence[Path], *, device: str = "auto", quiet: bool = False) -> list[Path]:
    """Fill in every run that can be loaded; returns the others, whose scores may be old."""
    failed = []
    for number, path in enumerate(paths, 1):
        if not quiet:
            say(
                f"Scoring run {number} of {len(paths)}: {path}. Missing masks, probabilities and "
                f"{SAMPLES} samples are predicted first."
            )
        try:
            fill(path, device=device, quiet=quiet)
        except UserError as error:
            failed.append(path)
            say(
                f"{path} could not be scored: {error} The report shows its earlier scores, if "
                "there are any.",
                style="yellow",
            )
    return failed
