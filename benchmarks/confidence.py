"""Compare the confidence of masks with their Dice, before and after calibration.

python benchmarks/confidence.py --runs default/*/runs/*

Five random test cases at a time calibrate the confidence of the others. They stand for the cases
that cross-validation holds out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segpl.data.manifest import read_manifest
from segpl.data.summary import shifted
from segpl.evaluate.fold_scores import FoldScore, fit_shift
from segpl.evaluate.scores import read_scores

HELD_OUT, DRAWS = 5, 200


@dataclass(frozen=True)
class Errors:
    """Of one class in one run, averaged over the cases."""

    confidence: float
    dice: float
    before: float  # absolute difference between confidence and Dice
    after: float


def read_run(path: Path) -> dict[str, list[FoldScore]]:
    """Dice and confidence of every test case, by class."""
    manifest = read_manifest(path / "predictions")
    if manifest is None:
        raise SystemExit(f"{path} contains no predictions.")
    found: dict[str, list[FoldScore]] = {}
    for score in read_scores(path / "scores.csv"):
        summary = manifest.files[score.case].summary
        confidence = summary.classes[score.class_name].confidence if summary else None
        if score.metric == "dice" and np.isfinite(score.value) and confidence is not None:
            row = FoldScore(0, 0, score.case, score.class_name, score.value, confidence)
            found.setdefault(score.class_name, []).append(row)
    return found


def measure(rows: Sequence[FoldScore]) -> Errors:
    rng = np.random.default_rng(0)
    confidence, dice = np.array([(row.confidence, row.dice) for row in rows]).T
    after = []
    for _ in range(DRAWS):
        order = rng.permutation(len(rows))
        held_out, others = order[:HELD_OUT], order[HELD_OUT:]
        shift = fit_shift(confidence[held_out].tolist(), dice[held_out].tolist())
        corrected = [shifted(one, shift) for one in confidence[others]]
        after.append(np.abs(corrected - dice[others]).mean())
    before = np.abs(confidence - dice).mean()
    return Errors(confidence.mean(), dice.mean(), before, np.mean(after))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, nargs="+", required=True, help="runs of `segpl compare`"
    )
    groups: dict[str, list[Errors]] = {}
    for path in parser.parse_args().runs:
        label = f"{path.parents[1].name}, {path.name.rsplit('-', 2)[0]}"  # without seed and hash
        groups.setdefault(label, []).extend(map(measure, read_run(path).values()))
    print("| runs | confidence | Dice | error | calibrated |\n| --- | --- | --- | --- | --- |")
    for label, found in groups.items():
        values = [(one.confidence, one.dice, one.before, one.after) for one in found]
        print(f"| {label} | " + " | ".join(f"{value:.3f}" for value in np.mean(values, 0)) + " |")


if __name__ == "__main__":
    main()
