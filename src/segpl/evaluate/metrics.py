"""How well a predicted mask fits the true one. A row of `METRICS` can be asked for by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from segpl.errors import unknown
from segpl.evaluate import surface
from segpl.evaluate.surface import SurfaceDistances, surface_distances

Mask = NDArray[np.bool_]
Kind = Literal["share", "distance", "error", "volume"]
Empty = Literal["no", "both", "prediction", "label"]  # which masks hold no voxel of a class

TOLERANCE = 1.0  # of surface Dice, in mm
# what is given where a formula has no value; volumes always have one
POLICIES: dict[Kind, str] = {
    "share": "both empty scores 1, only one empty scores 0",
    "distance": "a distance is 0 if both are, the diagonal of the image if only one is",
    "error": "a volume error is 0 if both are, +1 if only the label is",
}


def dice(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the mean size, $2|P \cap T| / (|P| + |T|)$; two empty masks give 1."""
    total = np.count_nonzero(prediction) + np.count_nonzero(truth)
    if total == 0:
        return 1.0
    return 2 * int(np.count_nonzero(prediction & truth)) / int(total)


def iou(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the union, $|P \cap T| / |P \cup T|$; two empty masks give 1."""
    union = np.count_nonzero(prediction | truth)
    if union == 0:
        return 1.0
    return int(np.count_nonzero(prediction & truth)) / int(union)


def precision(prediction: Mask, truth: Mask) -> float:
    r"""Share of the prediction that is right, $|P \cap T| / |P|$.

    Two empty masks give 1; an empty prediction alone gives 0, since none of it is right.
    """
    predicted = int(np.count_nonzero(prediction))
    if predicted == 0:
        return float(not truth.any())
    return int(np.count_nonzero(prediction & truth)) / predicted


def recall(prediction: Mask, truth: Mask) -> float:
    r"""Share of the truth that is found, $|P \cap T| / |T|$, also called sensitivity.

    Two empty masks give 1; an empty truth alone gives 0, so that no false alarm scores well.
    """
    return precision(truth, prediction)


def volume_error(prediction: Mask, truth: Mask) -> float:
    r"""Signed and relative to the truth, $(|P| - |T|) / |T|$: above 0 where too much is found.

    Two empty masks give 0; an empty truth alone gives +1, the mirror of the -1 of an empty
    prediction.
    """
    predicted, true = int(np.count_nonzero(prediction)), int(np.count_nonzero(truth))
    if true == 0:
        return float(predicted > 0)
    return (predicted - true) / true


def volume(mask: Mask, spacing: Sequence[float] | None) -> float:
    """Millilitres of a volume, square millimetres of a picture; voxels where no spacing is known.

    A voxel of 1 mm is a thousandth of a millilitre.
    """
    voxels = int(np.count_nonzero(mask))
    if spacing is None:
        return float(voxels)
    return voxels * float(np.prod(spacing)) / (1000 if mask.ndim == 3 else 1)


@dataclass(frozen=True, eq=False)
class Masks:
    """Two masks of one class on one grid, and what several metrics need of them, once."""

    prediction: Mask
    truth: Mask
    spacing: Sequence[float] | None = None  # mm; None where the files store none
    tolerance: float = TOLERANCE  # mm, or voxels without a spacing

    @cached_property
    def distances(self) -> SurfaceDistances:
        spacing = self.spacing or (1.0,) * self.truth.ndim
        return surface_distances(self.prediction, self.truth, spacing)

    @property
    def empty(self) -> Empty:
        found, there = bool(self.prediction.any()), bool(self.truth.any())
        if found:
            return "no" if there else "label"
        return "prediction" if there else "both"


@dataclass(frozen=True, slots=True)
class Metric:
    title: str  # as it is read
    kind: Kind
    best: Literal["high", "low", "zero", "none"]  # none: it is not a score
    score: Callable[[Masks], float]

    def __call__(
        self,
        prediction: Mask,
        truth: Mask,
        *,
        spacing: Sequence[float] | None = None,
        tolerance: float = TOLERANCE,
    ) -> float:
        return self.score(Masks(prediction, truth, spacing, tolerance))


def _overlap(function: Callable[[Mask, Mask], float]) -> Callable[[Masks], float]:
    return lambda masks: function(masks.prediction, masks.truth)


METRICS: dict[str, Metric] = {
    "dice": Metric("Dice", "share", "high", _overlap(dice)),
    "iou": Metric("IoU", "share", "high", _overlap(iou)),
    "precision": Metric("precision", "share", "high", _overlap(precision)),
    "recall": Metric("recall", "share", "high", _overlap(recall)),
    "surface_dice": Metric(
        "surface Dice",
        "share",
        "high",
        lambda masks: surface.surface_dice(masks.distances, masks.tolerance),
    ),
    "hd95": Metric("HD95", "distance", "low", lambda masks: surface.hd95(masks.distances)),
    "assd": Metric("ASSD", "distance", "low", lambda masks: surface.assd(masks.distances)),
    "volume_error": Metric("volume error", "error", "zero", _overlap(volume_error)),
    "volume": Metric(
        "volume", "volume", "none", lambda masks: volume(masks.prediction, masks.spacing)
    ),
    "label_volume": Metric(
        "label volume", "volume", "none", lambda masks: volume(masks.truth, masks.spacing)
    ),
}

# what a comparison of methods scores and shows; other metrics are computed when asked for
DEFAULT_METRICS = ("dice", "iou")


def known_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repetition; one that is no metric is refused."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    return chosen


def unit_of(metric: str, masks: Masks) -> str:
    """What a value is measured in: '' for a plain number; of surface Dice, how near is near."""
    is_volume = masks.truth.ndim == 3
    length, size = "mm", "ml" if is_volume else "mm²"
    if masks.spacing is None:
        length = size = "voxel" if is_volume else "px"
    if metric == "surface_dice":
        return f"at {masks.tolerance:g} {length}"
    return {"distance": length, "volume": size}.get(METRICS[metric].kind, "")


def empty_policy(metrics: Iterable[str]) -> str:
    """What these metrics give for empty masks, as a sentence; '' if the question never arises."""
    kinds = {METRICS[metric].kind for metric in metrics if metric in METRICS}
    said = [policy for kind, policy in POLICIES.items() if kind in kinds]
    return f"Empty masks: {'; '.join(said)}." if said else ""


EMPTY_POLICY = empty_policy(DEFAULT_METRICS)
