"""Predict an image in memory: windows, samples, labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.masks import keep_largest, label_values, voxel_entropy
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image, restore
from segpl.data.readers import Grid, Image
from segpl.data.summary import CaseSummary
from segpl.engine.device import free_memory
from segpl.errors import DivergedError
from segpl.predict.averaging import Prediction, average_samples
from segpl.predict.familiarity import ScanJudge
from segpl.predict.samples import Maps, Predict, RunSampler
from segpl.predict.summary import summarize_case
from segpl.predict.window import predict_windows

MOST_AHEAD = 4  # scans to read ahead, and as many to write meanwhile
COPIES = 2  # of a scan and its maps while it is read or written


@dataclass(frozen=True, slots=True, eq=False)
class PredictedImage:
    """A prediction in memory; arrays have the axes of the image, channels first."""

    labels: NDArray[Any] = field(repr=False)  # (*S), numbers of `classes`
    probabilities: Maps = field(repr=False)  # (K, *S); one channel for a single foreground class
    classes: dict[str, int]  # name -> number
    summary: CaseSummary
    entropy: Maps | None = field(default=None, repr=False)  # (K, *S), with samples
    std: Maps | None = field(default=None, repr=False)
    # the labels as an image of nibabel or SimpleITK, if the input was one
    image: Any = field(default=None, repr=False)


def predict_image(
    image: Image,
    predict: Predict,
    plan: Plan,
    *,
    device: torch.device,
    name: str = "",
    overlap: float = 0.5,
    samplers: Sequence[RunSampler] = (),
    largest: Sequence[str] = (),
    judge: ScanJudge | None = None,
) -> PredictedImage:
    """What `predict_jobs` would write for an image in a file; `name` seeds random samples."""
    infer = Inference(predict, plan, tuple(samplers), device, overlap, judge)
    prediction = infer(name, infer.prepare(image))()
    labels = chosen_labels(prediction, plan, largest)
    return PredictedImage(
        labels=labels,
        probabilities=np.ascontiguousarray(prediction.probability),
        classes=plan.classes,
        summary=infer.summarize(name, labels, prediction, image.grid),
        entropy=entropy_of(prediction) if samplers else None,
        std=prediction.std,
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedScan:
    images: list[NDArray[np.float32]]  # (C, *S), one for each distinct plan
    grid: Grid


@dataclass(frozen=True, slots=True)
class Inference:
    """Run the network on a loaded image; the function returned does the rest, off the device."""

    predict: Predict
    plan: Plan
    samplers: tuple[RunSampler, ...]
    device: torch.device
    overlap: float
    judge: ScanJudge | None = None

    @property
    def plans(self) -> list[Plan]:
        """The plan of the run, or the distinct plans of all runs of an ensemble."""
        plans = [sampler.plan for sampler in self.samplers] or [self.plan]
        return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]

    def prepare(self, image: Image) -> PreparedScan:
        return PreparedScan([prepare_image(image, plan) for plan in self.plans], image.grid)

    def most_ahead(self, scan: PreparedScan) -> int:
        """How many scans like this one to read ahead, and as many to write meanwhile."""
        size = sum(image.nbytes for image in scan.images)
        maps = self.plan.outputs * math.prod(scan.grid.shape) * 4
        free = free_memory(torch.device("cpu")) // 2
        return min(MOST_AHEAD, free // (2 * COPIES * (size + maps)))

    def __call__(self, case: str, scan: PreparedScan) -> Callable[[], Prediction]:
        images, grid = [torch.from_numpy(image) for image in scan.images], scan.grid
        if self.judge:
            self.judge(case, images[0], grid)
        if not self.samplers:
            maps = [self.windows(images[0], self.predict, self.plan, self.plan.outputs)]
            # the function must keep neither the maps on the grid of the plan nor the image alive
            return lambda: Prediction(restore(maps.pop(), grid, self.plan))

        def on_file_grid(image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
            return restore(self.windows(image, predict, plan, channels), grid, plan)

        # the runs of an ensemble may have plans of different spacing: average on the file's grid
        plans = self.plans
        prepared = [images[plans.index(sampler.plan)] for sampler in self.samplers]
        prediction = average_samples(self.samplers, prepared, case, on_file_grid)
        return lambda: prediction

    def summarize(
        self, case: str, labels: NDArray[Any], prediction: Prediction, grid: Grid
    ) -> CaseSummary:
        summary = summarize_case(labels, grid, self.plan.classes, prediction.probability)
        if self.judge is None:
            return summary
        found = self.judge.judgments[case]
        return replace(summary, out_of_distribution=found.score, unfamiliar=found.reasons)

    def windows(self, image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
        whole = predict_windows(
            image, predict, plan, overlap=self.overlap, outputs=channels, device=self.device
        )
        if not bool(whole.sum().isfinite()):
            raise DivergedError(
                "the network's output is not finite. Check whether training diverged (log.csv), "
                "and predict from an earlier checkpoint."
            )
        result: Maps = whole.cpu().numpy()
        return result


def chosen_labels(prediction: Prediction, plan: Plan, largest: Sequence[str]) -> NDArray[Any]:
    decisive = prediction.probability if prediction.decisive is None else prediction.decisive
    return keep_largest(label_values(decisive, plan), plan.classes, largest)


def entropy_of(prediction: Prediction) -> Maps:
    return voxel_entropy(prediction.probability).astype(np.float32)
