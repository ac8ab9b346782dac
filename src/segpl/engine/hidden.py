"""Score pseudo-labels against the labels a benchmark hides. Training never uses these labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from segpl.data.cache import Volume
from segpl.losses import targets_of
from segpl.types import IGNORE, PseudoLabels, StepOutput

COUNTS = ("hidden_overlap", "hidden_both", "hidden_counted", "hidden_known")


def count_hidden(output: StepOutput, label: Tensor) -> StepOutput:
    """Add voxel counts to the monitors; `label` (B, *S) is the hidden label of the unlabeled crops.

    Outputs without pseudo-labels, or with spatially transformed ones, stay unchanged.
    """
    if not output.pseudo or not output.pseudo[0].on_grid:
        return output
    return replace(output, monitors={**output.monitors, **hidden_counts(output.pseudo[0], label)})


@torch.no_grad()
def hidden_counts(pseudo: PseudoLabels, label: Tensor) -> dict[str, Tensor]:
    """Voxel counts over all foreground channels, as integers on the device.

    In this order: foreground in both; foreground in the label plus foreground in the pseudo-label;
    weight above 0; label known. Soft pseudo-labels are thresholded at 0.5.
    """
    target, known = targets_of(label, pseudo.target.shape[1])  # (B, K, *S)
    first = 0 if target.shape[1] == 1 else 1  # with several channels, the first is background
    truth, is_known, found, is_counted = (
        part[:, first:] for part in (target > 0, known > 0, pseudo.target > 0.5, pseudo.weight > 0)
    )
    is_counted = is_counted & is_known
    truth, found = truth & is_counted, found & is_counted
    values = ((truth & found).sum(), truth.sum() + found.sum(), is_counted.sum(), is_known.sum())
    return dict(zip(COUNTS, values, strict=True))


def with_hidden_scores(row: Mapping[str, float]) -> dict[str, float]:
    r"""Replace the counts in a log line with `hidden_dice` and `hidden_kept`.

    $$\text{dice} = \frac{2 \sum w\, y\, \hat y}{\sum w\, (y + \hat y)}, \qquad
      \text{kept} = \frac{\sum w}{\sum 1}$$

    over the known voxels of all steps of the line, where $w$ is 1 for voxels with a pseudo-label
    weight above 0. Both are nan if no voxel is known. Two empty masks agree fully.
    """
    if COUNTS[0] not in row:
        return dict(row)
    overlap, both, counted, known = (row[name] for name in COUNTS)
    dice = 2 * overlap / both if both else 1.0 if counted else float("nan")
    scores = {"hidden_dice": dice, "hidden_kept": counted / known if known else float("nan")}
    return {name: value for name, value in row.items() if name not in COUNTS} | scores


def hidden_volumes(unlabeled: Sequence[Volume], labeled: Sequence[Volume]) -> list[Volume]:
    """A volume for each unlabeled one, with its hidden label in place of the image."""
    labels = {volume.name: volume.label for volume in labeled}
    volumes = []
    for volume in unlabeled:
        label, shape = labels.get(volume.name), (1, *volume.image.shape[1:])
        if label is None:
            label = np.broadcast_to(np.int8(IGNORE), shape)
        volumes.append(Volume(volume.name, label.reshape(shape), None, None))
    return volumes
