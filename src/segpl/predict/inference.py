"""Predict an image in memory: windows, samples, labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.masks import voxel_entropy
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image, restore, restore_rows
from segpl.data.readers import Grid, Image
from segpl.data.summary import Calibration, CaseSummary
from segpl.engine.device import free_memory, second_stream
from segpl.errors import DivergedError
from segpl.predict.familiarity import ScanJudge
from segpl.predict.labeling import Segmentation, label_rows, summarize_case
from segpl.predict.samples import Maps, Predict, Prediction, RunSampler, average_samples
from segpl.predict.window import fits_on_device, predict_rows, predict_windows

MOST_AHEAD = 4  # scans to read ahead, and as many to write meanwhile
PIECE_VALUES = 2**21  # map values to label at a time
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


def predict_image(infer: Inference, image: Image, name: str = "") -> PredictedImage:
    """What `predict_jobs` would write for an image in a file; `name` seeds random samples."""
    found = infer(name, infer.prepare(image))()
    assert found.maps is not None, "needs_maps is set"
    summary = infer.summarize(name, found, image.grid)
    return PredictedImage(
        labels=found.labels,
        probabilities=np.ascontiguousarray(found.maps.probability),
        classes=infer.plan.classes,
        summary=infer.calibration.apply(summary),
        entropy=entropy_of(found.maps) if infer.samplers else None,
        std=found.maps.std,
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
    samplers: tuple[RunSampler, ...]  # average their samples instead of calling `predict`
    device: torch.device
    overlap: float = 0.5
    judge: ScanJudge | None = None
    largest: tuple[str, ...] = ()  # classes that keep only their largest component
    needs_maps: bool = False  # without them, only a few rows of the maps are in memory
    calibration: Calibration = field(default_factory=Calibration)  # of the confidence
    # gets the fractions of a scan that have been predicted; a large one takes hours on a CPU
    advance: Callable[[float], None] = lambda part: None

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
        values = self.plan.outputs if self.needs_maps or self.samplers else 1
        maps = values * math.prod(scan.grid.shape) * 4
        free = free_memory(torch.device("cpu")) // 2
        return min(MOST_AHEAD, free // (2 * COPIES * (size + maps)))

    def __call__(self, case: str, scan: PreparedScan) -> Callable[[], Segmentation]:
        images, grid = [torch.from_numpy(image) for image in scan.images], scan.grid
        if self.judge:
            self.judge(case, images[0], grid)
        # the function returned must keep neither the image nor the maps on the plan's grid alive
        if not self.samplers and self.needs_maps:
            maps = [self.windows(images[0], self.predict, self.plan, self.plan.outputs)]
            return lambda: self.label_maps(Prediction(restore(maps.pop(), grid, self.plan)), grid)
        if not self.samplers:
            return self.label(images[0], grid)

        def on_file_grid(image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
            return restore(self.windows(image, predict, plan, channels), grid, plan)

        # the runs of an ensemble may have plans of different spacing: average on the file's grid
        plans = self.plans
        prepared = [images[plans.index(sampler.plan)] for sampler in self.samplers]
        prediction = average_samples(self.samplers, prepared, case, on_file_grid)
        return lambda: self.label_maps(prediction, grid)

    def label(self, image: Tensor, grid: Grid) -> Callable[[], Segmentation]:
        """Labels without the maps of the whole scan in main memory."""
        fits = _fits_on_gpu(image, self.plan, self.device)
        options: Any = {"overlap": self.overlap, "device": self.device, "advance": self.advance}
        parts = predict_rows(image, self.predict, self.plan, at_once=fits, **options)
        if not fits:
            return self.label_parts(parts, grid)
        maps, stream = [next(parts)], second_stream(self.device)

        def copy_and_label() -> Segmentation:
            with stream:  # otherwise copies wait for the network, which predicts the next scan
                return self.label_parts(iter([maps.pop()]), grid)()

        return copy_and_label

    def label_parts(self, parts: Iterator[Tensor], grid: Grid) -> Callable[[], Segmentation]:
        """Labels from maps (K, rows, *S[1:]) on the grid of the plan."""
        pieces = (finite_array(piece) for part in parts for piece in _split_rows(part))
        rows = ((row, row) for row in restore_rows(pieces, grid, self.plan))
        return label_rows(rows, grid, self.plan, self.largest, self.plan.orientation)

    def label_maps(self, maps: Prediction, grid: Grid) -> Segmentation:
        decisive = maps.probability if maps.decisive is None else maps.decisive
        rows = (slice(row, row + 1) for row in range(grid.shape[0]))
        pairs = ((maps.probability[:, row], decisive[:, row]) for row in rows)
        return replace(label_rows(pairs, grid, self.plan, self.largest)(), maps=maps)

    def summarize(self, case: str, found: Segmentation, grid: Grid) -> CaseSummary:
        summary = summarize_case(found.labels, grid, self.plan.classes, found.confidence)
        if self.judge is None:
            return summary
        judged = self.judge.judgments[case]
        return replace(summary, out_of_distribution=judged.score, unfamiliar=judged.reasons)

    def windows(self, image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
        passes = sum(sampler.passes for sampler in self.samplers) or 1
        options: Any = {"overlap": self.overlap, "outputs": channels, "device": self.device}
        maps = predict_windows(
            image, predict, plan, **options, advance=lambda part: self.advance(part / passes)
        )
        return finite_array(maps)


def _fits_on_gpu(image: Tensor, plan: Plan, device: torch.device) -> bool:
    return device.type == "cuda" and fits_on_device(image, plan.outputs, device)


def _split_rows(part: Tensor) -> tuple[Tensor, ...]:
    """Split (K, rows, *S[1:]) so that copies of a piece are small."""
    rows = max(1, PIECE_VALUES // part[:, 0].numel())
    pieces: tuple[Tensor, ...] = part.split(rows, 1)  # type: ignore[no-untyped-call]  # missing in torch
    return pieces


def finite_array(maps: Tensor) -> Maps:
    values = maps.cpu()
    if not bool(values.sum().isfinite()):
        raise DivergedError(
            "the network's output is not finite. Check whether training diverged (log.csv), "
            "and predict from an earlier checkpoint."
        )
    result: Maps = values.numpy()
    return result


def entropy_of(prediction: Prediction) -> Maps:
    return voxel_entropy(prediction.probability).astype(np.float32)
