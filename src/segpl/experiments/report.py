"""Predict and score what a report needs. This loads models; writing the report does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segpl.display import bar, say
from segpl.errors import UserError
from segpl.evaluate.folders import evaluate_folders
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.scores import write_scores
from segpl.experiments.scoring import predict_again
from segpl.run import load_run

SAMPLES = 5


def fill(path: Path, *, device: str = "auto", quiet: bool = False) -> None:
    """Predict the test cases with probabilities and samples, and score them by every metric."""
    run = load_run(path, device=device, quiet=quiet)
    predictions = path / "predictions"
    predict_again(run, predictions, probabilities=True)
    predict_again(run, path / "samples", samples=SAMPLES)
    with bar("scoring", len(run.split.test), quiet=quiet) as advance:
        scores = evaluate_folders(
            predictions, run.config.data.path, metrics=tuple(METRICS), advance=advance
        )
    write_scores(path / "scores.csv", scores)


def fill_all(paths: Sequence[Path], *, device: str = "auto", quiet: bool = False) -> list[Path]:
    """Fill in every run that can be loaded; returns the others, whose scores may be old."""
    failed = []
    for number, path in enumerate(paths, 1):
        if not quiet:
            say(f"Predicting and scoring {path}, {number} of {len(paths)}")
        try:
            fill(path, device=device, quiet=quiet)
        except UserError as error:
            failed.append(path)
            say(
                f"{path} could not be filled in: {error} The report shows its earlier scores, if "
                "there are any.",
                style="yellow",
            )
    return failed
