"""Draw the picture on the first page: a scan, the masks of two runs, and the ground truth.

    python docs/pictures/before_after.py DATASET COMPARISON docs/images/before-after.png

COMPARISON is the folder that `segpl compare DATASET --methods bpl-mix --labeled N --out COMPARISON`
wrote. The rows are the test cases with the median and the largest gain in Dice.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel
import numpy as np
from numpy.typing import NDArray

CORRECT, WRONG, MISSED = (0.98, 0.82, 0.22), (0.93, 0.35, 0.16), (0.22, 0.60, 0.98)
MARGIN = 28  # pixels around the object
RUNS = {"supervised-0": "labels only", "bpl-mix-0": "with unlabeled scans"}


def dice(run: Path) -> dict[str, float]:
    with (run / "scores.csv").open(newline="", encoding="utf-8") as handle:
        rows = [row for row in csv.DictReader(handle) if row["metric"] == "dice"]
    return {row["case"]: float(row["value"]) for row in rows}


def load(path: Path) -> NDArray[np.float32]:
    return np.asarray(nibabel.load(path).dataobj, dtype=np.float32)


def colored(scan: NDArray[np.float32], mask: NDArray[np.bool_], truth: NDArray[np.bool_]):
    picture = np.repeat(scan[..., None], 3, axis=-1)
    for color, where in ((CORRECT, mask & truth), (WRONG, mask & ~truth), (MISSED, truth & ~mask)):
        picture[where] = 0.45 * picture[where] + 0.55 * np.array(color)
    return picture


def main(data: Path, comparison: Path, target: Path) -> None:
    before, after = (dice(comparison / "runs" / run) for run in RUNS)
    ranked = sorted(after, key=lambda case: after[case] - before[case])
    cases = [ranked[len(ranked) // 2], ranked[-1]]
    figure, axes = plt.subplots(len(cases), 4, figsize=(9.6, 5.0), layout="constrained")
    for row, case in zip(axes, cases, strict=True):
        scan = load(data / "imagesTr" / f"{case}_0000.nii.gz")
        truth = load(data / "labelsTr" / f"{case}.nii.gz") > 0
        level = int(truth.sum((0, 1)).argmax())  # the slice with the largest object
        low, high = np.argwhere(truth[..., level]).min(0), np.argwhere(truth[..., level]).max(0)
        window = tuple(
            slice(max(start - MARGIN, 0), stop + MARGIN)
            for start, stop in zip(low, high, strict=True)
        )
        gray = scan[..., level][window]
        limits = np.percentile(gray, (1, 99))
        gray = np.clip((gray - limits[0]) / np.ptp(limits), 0, 1)
        true = truth[..., level][window]
        panels = {"scan": colored(gray, np.zeros_like(true), np.zeros_like(true))}
        for (run, title), scores in zip(RUNS.items(), (before, after), strict=True):
            found = load(comparison / "runs" / run / "predictions" / f"{case}.nii.gz") > 0
            text = f"{title}\nDice {scores[case]:.2f}"
            panels[text] = colored(gray, found[..., level][window], true)
        panels["ground truth"] = colored(gray, true, true)
        for axis, (title, picture) in zip(row, panels.items(), strict=True):
            axis.imshow(picture.transpose(1, 0, 2), interpolation="bilinear")
            axis.set_title(title, fontsize=11)
            axis.set_axis_off()
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
