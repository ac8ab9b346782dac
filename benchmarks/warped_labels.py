"""Accuracy of labels warped as in training, with nearest-neighbor and linear interpolation.

python benchmarks/warped_labels.py --labels DATASETS/Task04_Hippocampus/labelsTr
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.data.augment import random_motion
from segpl.data.readers import read_label
from segpl.views.geometry import Matrix, affine_grids, sample_labels

SIDES = (28, 32, 28)  # of the crops with an ellipsoid, in voxels
RADII = (4.0, 7.0, 4.0)  # of the ellipsoid, in voxels
MARGIN = 12  # voxels around a real label, so that it stays inside its crop


def nearest(label: Tensor, grid: Tensor, classes: int) -> Tensor:
    return F.grid_sample(
        label.unsqueeze(1).float(), grid, mode="nearest", align_corners=False
    ).squeeze(1)


RULES = {"nearest": nearest, "linear": sample_labels}


def warp(rule: str, label: Tensor, motion: Matrix, classes: int) -> Tensor:
    """Warp one label (*S) by a motion; voxels from outside the crop become background."""
    grid = affine_grids([motion], label[None, None].float())
    return RULES[rule](label[None], grid, classes)[0].clamp(min=0).long()


def mean_dice(a: Tensor, b: Tensor, classes: int) -> float:
    """Mean over the foreground classes in either label."""
    pairs = [(a == number, b == number) for number in range(1, classes)]
    sizes = [(x & y, x.sum() + y.sum()) for x, y in pairs]
    return float(np.mean([2 * float(both.sum() / size) for both, size in sizes if size]))


def of_ellipsoids(count: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Dice of each rule with the exact shape, for ellipsoids of random position and orientation."""
    axes = [np.arange(side) - (side - 1) / 2 for side in SIDES]
    positions = np.stack(np.meshgrid(*axes, indexing="ij"), -1)  # (*S, 3)
    rows = []
    for _ in range(count):
        center, turn = rng.uniform(-3, 3, 3), np.linalg.qr(rng.normal(size=(3, 3)))[0]
        motion = random_motion(SIDES, rng)
        moved = positions @ motion[:-1, :-1].T + motion[:-1, -1]
        label, exact = (
            torch.from_numpy(((((points - center) @ turn) / RADII) ** 2).sum(-1) < 1).long()
            for points in (positions, moved)
        )
        rows.append({rule: mean_dice(warp(rule, label, motion, 2), exact, 2) for rule in RULES})
    return rows


def of_files(paths: list[Path], rng: np.random.Generator) -> list[dict[str, float]]:
    """Dice of each rule with the label itself, after a motion and its inverse."""
    rows = []
    for path in paths:
        label = torch.from_numpy(np.pad(read_label(path).array.astype(np.int64), MARGIN))
        motion, classes = random_motion(label.shape, rng), int(label.max()) + 1
        scores = {}
        for rule in RULES:
            there = warp(rule, label, motion, classes)
            back = warp(rule, there, np.linalg.inv(motion), classes)
            scores[rule] = mean_dice(back, label, classes)
        rows.append(scores)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, help="folder of label files")
    parser.add_argument("--ellipsoids", type=int, default=60)
    parser.add_argument("--files", type=int, default=100)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    tables = {"ellipsoids, compared with their exact shape": of_ellipsoids(args.ellipsoids, rng)}
    if args.labels:
        paths = sorted(args.labels.glob("[!.]*"))[: args.files]
        tables["labels, warped and warped back"] = of_files(paths, rng)
    for name, rows in tables.items():
        means = ", ".join(f"{rule} {np.mean([row[rule] for row in rows]):.3f}" for rule in RULES)
        better = sum(row["linear"] > row["nearest"] for row in rows)
        print(f"{len(rows)} {name}: {means}; linear is better in {better}")


if __name__ == "__main__":
    main()
