"""Metrics of a predicted mask against the true one, by name in `METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from segpl.data.masks import Mask, volume, volume_unit
from segpl.errors import unknown
from segpl.evaluate import surface
from segpl.evaluate.surface import SurfaceDistances, surface_distances

Kind = Literal["share", "distance", "error", "volume"]
Empty = Literal["no", "both", "prediction", "label"]  # which of the two masks is empty

TOLERANCE = 1.0  # of surface Dice, in mm
# values for empty masks, for which the formulas have none
POLICIES: dict[Kind, str] = {
    "share": "overlaps are 1 if both are empty, 0 if only one is",
    "distance": "distances are 0 if both are empty, the diagonal of the image if only one is",
    "error": "the volume error is 0 if both are empty, +100 % if only the label is",
}


def dice(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the mean size, $2|P \cap T| / (|P| + |T|)$; two empty masks give 1."""
    total = int(np.count_nonzero(prediction) + np.count_nonzero(truth))
    return 2 * int(np.count_nonzero(prediction & truth)) / total if total else 1.0


def iou(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the union, $|P \cap T| / |P \cup T|$; two empty masks give 1."""
    union = int(np.count_nonzero(prediction | truth))
    return int(np.count_nonzero(prediction & truth)) / union if union else 1.0


def precision(prediction: Mask, truth: Mask) -> float:
    r"""Fraction of the prediction that is correct, $|P \cap T| / |P|$.

    Two empty masks give 1; an empty prediction alone gives 0.
    """
    predicted = int(np.count_nonzero(prediction))
    if predicted == 0:
        return float(not truth.any())
    return int(np.count_nonzero(prediction & truth)) / predicted


def recall(prediction: Mask, truth: Mask) -> float:
    r"""Fraction of the truth that is found, $|P \cap T| / |T|$; also called sensitivity.

    Two empty masks give 1; an empty truth alone gives 0, so that a false alarm scores badly.
    """
    return precision(truth, prediction)


def volume_error(prediction: Mask, truth: Mask) -> float:
    r"""Signed error relative to the truth, $(|P| - |T|) / |T|$; positive for over-segmentation.

    Two empty masks give 0; an empty truth alone gives +1, and an empty prediction alone -1.
    """
    predicted, true = int(np.count_nonzero(prediction)), int(np.count_nonzero(truth))
    return (predicted - true) / true if true else float(predicted > 0)


@dataclass(frozen=True, eq=False)
class Masks:
    """Predicted and true mask of one class; caches what several metrics share."""

    prediction: Mask
    truth: Mask
    spacing: Sequence[float] | None = None  # mm; None if the files store none
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
    title: str
    kind: Kind
    best: Literal["high", "low", "zero", "none"]  # none: not a score
    score: Callable[[Masks], float]


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

MEANINGS = {
    "iou": "IoU: intersection over union",
    "surface_dice": "Surface Dice: fraction of both surfaces that is within the tolerance",
    "hd95": "HD95: 95th percentile of the distances between the surfaces",
    "assd": "ASSD: average distance between the surfaces, in both directions",
}

# metrics that comparisons show; the others are opt-in
DEFAULT_METRICS = ("dice", "iou")


def known_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """The names without duplicates; an unknown name is an error."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    return chosen


def unit_of(metric: str, masks: Masks) -> str:
    """The unit of a metric; '' for a plain number, the tolerance for surface Dice."""
    size = volume_unit(masks.truth.ndim, masks.spacing)
    length = size if masks.spacing is None else "mm"
    if metric == "surface_dice":
        return f"at {masks.tolerance:g} {length}"
    return {"distance": length, "volume": size}.get(METRICS[metric].kind, "")


def empty_policy(metrics: Iterable[str]) -> str:
    """How these metrics score empty masks; '' if they need no rule."""
    kinds = {METRICS[metric].kind for metric in metrics if metric in METRICS}
    rules = [policy for kind, policy in POLICIES.items() if kind in kinds]
    return f"Empty masks: {'; '.join(rules)}." if rules else ""


def meanings(metrics: Iterable[str]) -> str:
    """A sentence for each metric whose title needs one, for the note of a table."""
    chosen = set(metrics)
    return "".join(f"{meaning}. " for name, meaning in MEANINGS.items() if name in chosen)


EMPTY_POLICY = empty_policy(DEFAULT_METRICS)
