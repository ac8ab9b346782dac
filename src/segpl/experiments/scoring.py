"""Score a trained run on its test cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segpl.evaluate.folders import evaluate_folders
from segpl.evaluate.metrics import DEFAULT_METRICS
from segpl.evaluate.scores import Score, write_scores
from segpl.predict.outputs import OtherWeightsError, reject_corrected
from segpl.run import Run


def predict_again(run: Run, out: Path, **options: Any) -> list[Path]:
    """Predict the test cases. Masks of other weights are replaced unless they were corrected."""
    try:
        return run.predict(out=out, **options)  # keeps finished masks of the same weights
    except OtherWeightsError:
        reject_corrected(out)
        return run.predict(out=out, overwrite=True, **options)


def score_run(run: Run) -> list[Score]:
    """Predict and score the test cases; masks and `scores.csv` stay in the run folder."""
    predictions = run.path / "predictions"
    predict_again(run, predictions)
    data = run.config.data
    return score_masks(predictions, data.path, run.path / "scores.csv", layout=data.layout)


def score_masks(
    predictions: Path, labels: str | Path, out: Path, *, layout: str | None
) -> list[Score]:
    """Score masks by the metrics that a report needs, and write the table."""
    metrics = (*DEFAULT_METRICS, "volume", "label_volume")
    scores = evaluate_folders(predictions, labels, metrics=metrics, layout=layout)
    write_scores(out, scores)
    return scores
