"""Run records with made-up scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segpl.data.split import Split
from segpl.evaluate.scores import Score
from segpl.evaluate.validation import ValidationRow
from segpl.report.collection import RunCollection, group_runs
from segpl.report.run_record import RunRecord, RunSummary


def make_record(
    method: str,
    seed: int = 0,
    dice: Sequence[float] = (),
    *,
    dataset: str = "/data/a",
    case: str = "case",
    class_name: str = "vessel",
    validation: Sequence[float] = (),
    settings: dict[str, Any] | None = None,
    **parts: Any,
) -> RunRecord:
    """A run whose test cases `case0`, `case1`, ... have these Dice scores."""
    names = [f"{case}{index}" for index in range(len(dice))]
    own = {"method.name": method, "train.seed": seed, "train.steps": 10, "data.path": dataset}
    scores = [
        Score(name, class_name, "dice", float(value), "", "no")
        for name, value in zip(names, dice, strict=True)
    ]
    rows = [
        ValidationRow(10, f"v{index}", class_name, value, value)
        for index, value in enumerate(validation)
    ]
    facts: dict[str, Any] = {
        "name": f"{method}-{seed}",
        "path": Path(f"/runs/{Path(dataset).name}/{method}-{seed}-{settings}"),
        "settings": {**own, **(settings or {})},
        "split": Split((), (), (), tuple(names), ()),
        "scores": scores,
        "validation": rows,
        "seconds": 10.0 + seed,
        "peak_bytes": 2.0**30,
        "summary": RunSummary(1234, ("train.seed", *(settings or {}))),
    }
    return RunRecord(**facts | parts)


def collect(*runs: RunRecord) -> RunCollection:
    return group_runs(runs, {})
