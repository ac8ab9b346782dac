"""Score a trained run on its test cases."""

from __future__ import annotations

from segpl.evaluate.folders import evaluate_folders
from segpl.evaluate.metrics import DEFAULT_METRICS
from segpl.evaluate.scores import Score, write_scores
from segpl.run import Run


def score_run(run: Run) -> list[Score]:
    """Predict and score the test cases; masks and `scores.csv` stay in the run folder."""
    predictions = run.path / "predictions"
    run.predict(out=predictions, overwrite=True)
    scores = evaluate_folders(
        predictions, run.config.data.path, metrics=(*DEFAULT_METRICS, "volume")
    )
    write_scores(run.path / "scores.csv", scores)
    return scores
