"""Detect scans unlike the training images of a run, and say how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.cache import load_volumes
from segpl.data.case import Case
from segpl.data.geometry import reorient_axes
from segpl.data.plan import Plan
from segpl.data.readers import Grid
from segpl.display import say
from segpl.engine.device import autocast, memory_format
from segpl.errors import InputError, MissingFileError, UserError, count_noun
from segpl.networks.network import Network
from segpl.predict.window import pad_to_patch, window_box
from segpl.records import read_record, write_json
from segpl.types import NetOutput

MOST_IMAGES = 64
FEWEST_IMAGES = 3  # fewer cannot show how much images of one kind differ
MOST_WINDOWS = 4  # per image, for the network features
MOST_WARNINGS = 5
FALSE_ALARMS = 0.002  # nominal rate of each criterion; real distances have longer tails
# smallest standard deviation and lowest limit; lengths are logarithms, so 0.1 is about 10 %
LENGTH, INTENSITY, FEATURE = (0.1, 3.0), (0.05, 1.0), (0.02, 1.0)

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
MOST_VOXELS = 200_000  # per channel, for the quantiles

Measures = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Appearance:
    """What an image looks like, in a few numbers."""

    spacing: tuple[float, ...] | None  # mm, along the axes of the plan; None if not stored
    extent: tuple[float, ...]  # field of view in mm; in pixels if no spacing is stored
    intensities: tuple[float, ...]  # quantiles of each channel after normalization
    features: tuple[float, ...] = ()  # of the network; empty if not measured


def appearance_of(
    prepared: NDArray[np.float32], grid: Grid, plan: Plan, features: tuple[float, ...] = ()
) -> Appearance:
    """The appearance of an image (C, *S) prepared for the plan, whose file has this grid."""
    spacing = reorient_axes(grid.spacing, grid.affine, plan.orientation)
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    quantiles = [
        np.quantile(channel.reshape(-1)[:: max(1, channel.size // MOST_VOXELS)], QUANTILES)
        for channel in prepared
    ]
    return Appearance(
        None if grid.stored_spacing is None else tuple(map(float, spacing)),
        tuple(float(n * side) for n, side in zip(shape, spacing, strict=True)),
        tuple(np.concatenate(quantiles).tolist()),
        features,
    )


@dataclass(frozen=True, slots=True)
class TrainingImages:
    """The appearance of up to MOST_IMAGES training images."""

    weights: str  # hash of the checkpoint whose features were measured
    images: tuple[Appearance, ...]


@dataclass(frozen=True, slots=True)
class Judgment:
    """`score` is 1 at the limit for a scan like the training images."""

    score: float
    reasons: tuple[str, ...]  # in words; empty up to a score of 1


def distance_score(
    images: Sequence[Measures], least: float, lowest: float
) -> Callable[[Measures], float]:
    """A function that gives the distance to the training `images`, relative to its limit.

    The limit is calibrated by leave-one-out: each image is compared with the others, and one more
    image of the same kind exceeds the limit with probability FALSE_ALARMS.
    """
    values = np.stack(images)  # (N, D)
    distances = [
        scaled_distance(value, *shrunk_moments(np.delete(values, index, 0), least))
        for index, value in enumerate(values)
    ]
    mean, std = shrunk_moments(values, least)
    limit = max(lowest, _upper_bound(np.array(distances)))
    return lambda value: scaled_distance(value, mean, std) / limit


def shrunk_moments(values: Measures, least: float) -> tuple[Measures, Measures]:
    """Mean and standard deviation of each column of (N, D).

    Variances of a few images are unreliable: they are averaged with the mean over all columns,
    which counts like three images.
    """
    variance = values.var(0)
    shrunk = (len(values) * variance + 3 * variance.mean()) / (len(values) + 3)
    return values.mean(0), np.sqrt(shrunk + least**2)


def scaled_distance(value: Measures, mean: Measures, std: Measures) -> float:
    return float(np.sqrt(np.mean(((value - mean) / std) ** 2)))


def _upper_bound(distances: Measures) -> float:
    """The largest distance, or the bound that one more normal distance rarely exceeds."""
    from scipy.special import stdtrit

    count = len(distances)
    quantile = stdtrit(count - 1, 1 - FALSE_ALARMS) * np.sqrt(1 + 1 / count)  # of Student's t
    bound = distances.mean() + quantile * distances.std(ddof=1)
    return max(float(distances.max()), float(bound))


def _lengths(images: Sequence[Sequence[float]]) -> str:
    """'35-50x40-60', one range per axis."""
    ranges = []
    for axis in zip(*images, strict=True):
        low, high = f"{min(axis):.3g}", f"{max(axis):.3g}"
        ranges.append(low if low == high else f"{low}-{high}")
    return "x".join(ranges)


@torch.no_grad()
def network_features(network: Network, image: Tensor, plan: Plan) -> tuple[float, ...]:
    """Mean and standard deviation of each feature channel over a few windows of (C, *S)."""
    device = next(network.parameters()).device
    windows = torch.stack(_some_windows(image, plan.patch)).to(device)
    with autocast(device, "auto"):
        output: NetOutput = network(
            windows.contiguous(memory_format=memory_format(device, plan.dims))
        )
    moments = []
    for part in (output.logits, output.features, output.trunk):
        values = part.float().flatten(2)  # (b, F, voxels)
        mean = values.mean((0, 2), keepdim=True)
        # torch.std takes several times as long
        moments += [mean.flatten(), (values - mean).square_().mean((0, 2)).sqrt()]
    return tuple(torch.cat(moments).cpu().double().numpy().round(5).tolist())


def _some_windows(image: Tensor, patch: Sequence[int]) -> list[Tensor]:
    """Up to MOST_WINDOWS windows, evenly spaced over the image, which is zero-padded if small."""
    padded, _ = pad_to_patch(image, patch)
    starts = [
        sorted({0, (size - side) // 2, size - side})
        for size, side in zip(padded.shape[1:], patch, strict=True)
    ]
    places = list(product(*starts))
    count = min(len(places), MOST_WINDOWS)
    chosen = [places[(2 * index + 1) * len(places) // (2 * count)] for index in range(count)]
    return [padded[:, *window_box(place, patch)] for place in chosen]


def record_training_images(
    path: Path, cases: Sequence[Case], network: Network, plan: Plan, *, weights: str
) -> None:
    """Write the appearance of some training images to `path`, unless it has that of `weights`."""
    with suppress(InputError, MissingFileError):  # a missing or damaged file is written again
        if read_training_images(path).weights == weights:
            return
    count = min(MOST_IMAGES, len(cases))
    chosen = [cases[index * len(cases) // count] for index in range(count)]
    device = next(network.parameters()).device
    was_training = network.is_in_training
    network.eval()
    images = []
    for case in chosen:
        try:
            (volume,) = load_volumes([case], plan, labeled=())
        except UserError as error:  # the file has changed since training began
            say(
                "note: the training is complete, but the record for detecting unfamiliar scans "
                f"lacks an image: {error}",
                style="yellow",
            )
            continue
        assert volume.grid is not None, "it was read from a file"
        image = np.asarray(volume.image)
        features = network_features(network, torch.from_numpy(image).to(device), plan)
        images.append(appearance_of(image, volume.grid, plan, features))
    network.train(was_training)
    if len(images) < min(FEWEST_IMAGES, count):
        say("note: too few images remain, so unfamiliar scans are not detected.", style="yellow")
    write_json(path, asdict(TrainingImages(weights, tuple(images))))


def read_training_images(path: Path) -> TrainingImages:
    remedy = (
        f"Write it again with `segpl train --resume --out {path.parent}`, or delete it to predict "
        "without detecting unfamiliar scans."
    )
    record = read_record(path, TrainingImages, remedy)
    for name in ("spacing", "extent", "intensities", "features"):
        values = [getattr(one, name) for one in record.images]
        if len({len(value) for value in values if value is not None}) > 1:
            raise InputError(
                f"{path} cannot be used: images differ in length in '{name}'. {remedy}"
            )
        if name in ("spacing", "extent") and min((min(v) for v in values if v), default=1) <= 0:
            raise InputError(f"{path} cannot be used: '{name}' is not positive. {remedy}")
    return record


class ScanJudge:
    """Judges scans by their distance to the training images, and remembers the judgments by case.

    Features of other `weights` are not compared.
    """

    def __init__(self, record: TrainingImages, network: Network, plan: Plan, weights: str) -> None:
        self.images = record.images
        self.has_features = record.weights == weights
        self.network, self.plan = network, plan
        self.judgments: dict[str, Judgment] = {}

    @cached_property
    def criteria(self) -> dict[str, Callable[[Measures], float]]:
        found = {
            "field of view": distance_score([np.log(one.extent) for one in self.images], *LENGTH),
            "intensities": distance_score(
                [np.array(one.intensities) for one in self.images], *INTENSITY
            ),
        }
        spacings = [one.spacing for one in self.images if one.spacing is not None]
        if len(spacings) == len(self.images):
            found["spacing"] = distance_score([np.log(one) for one in spacings], *LENGTH)
        if self.has_features:
            features = [np.array(one.features) for one in self.images]
            found["network features"] = distance_score(features, *FEATURE)
        return found

    def __call__(self, case: str, image: Tensor, grid: Grid) -> None:
        """Judge a prepared image (C, *S)."""
        features = network_features(self.network, image, self.plan) if self.has_features else ()
        scan = appearance_of(image.cpu().numpy(), grid, self.plan, features)
        self.judgments[case] = self.judge(scan)

    def judge(self, scan: Appearance) -> Judgment:
        values = {
            "field of view": np.log(scan.extent),
            "intensities": np.array(scan.intensities),
            "network features": np.array(scan.features),
        }
        if scan.spacing is not None:
            values["spacing"] = np.log(scan.spacing)
        scores = {
            name: score(values[name]) for name, score in self.criteria.items() if name in values
        }
        far = sorted((name for name in scores if scores[name] > 1), key=lambda name: -scores[name])
        reasons = tuple(self._reason(name, scores[name], scan) for name in far)
        return Judgment(max(scores.values()), reasons)

    def _reason(self, name: str, score: float, scan: Appearance) -> str:
        unit = "px" if scan.spacing is None else "mm"
        if name == "field of view":
            usual = [one.extent for one in self.images]
            return f"{name} {_lengths([scan.extent])} {unit}, in training {_lengths(usual)} {unit}"
        if name == "spacing" and scan.spacing is not None:
            usual = [one.spacing for one in self.images if one.spacing is not None]
            return f"{name} {_lengths([scan.spacing])} mm, in training {_lengths(usual)} mm"
        return f"{name} ({score:.1f} times the limit)"

    def warnings(self) -> list[str]:
        """One line per unfamiliar scan, the least familiar first; only some if there are many."""
        found = [(case, one) for case, one in self.judgments.items() if one.reasons]
        found.sort(key=lambda pair: -pair[1].score)
        lines = [
            f"{case or 'the image'} is unlike the training images: {'; '.join(one.reasons)}."
            for case, one in found[:MOST_WARNINGS]
        ]
        if len(found) > MOST_WARNINGS:
            more = count_noun(len(found) - MOST_WARNINGS, "more scan")
            lines.append(f"Also unlike the training images: {more}.")
        return lines
