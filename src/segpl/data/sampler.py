"""Batches of crops. A batch depends only on the seed and the step.

The sampler keeps no state, so a resumed run sees the batches of an uninterrupted one. `read` draws
the random numbers of a step and crops its volumes; `batch` augments the crops on the device. If
several processes train together, both return only the crops of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segpl.data.augment import (
    AugmentSettings,
    Geometry,
    draw_geometry,
    draw_scanner,
    transform,
    transform_labels,
)
from segpl.data.cache import Volume
from segpl.data.stored import Array
from segpl.types import IGNORE, WHOLE, Batch, CropShares, Labeled, Unlabeled
from segpl.views.intensity import change_intensities

RESIDENT_SHARE = 0.4  # of the free memory, for volumes; training needs the rest
PLACED_AT_ONCE = 4  # volumes read in parallel
SCANNER_STREAM = 2  # of random numbers besides [seed, step]


@dataclass(frozen=True, slots=True)
class Resident:
    """A volume to crop from: a tensor on the device, or an array on the host, usually on disk."""

    image: Tensor | Array  # (C, *S)
    label: Tensor | Array | None  # (*S)
    foreground: Array | None  # (N, dims) positions
    by_class: tuple[range, ...] = ()  # the rows of each class in `foreground`, if balanced

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.image.shape[1:])


def place_volumes(
    volumes: Sequence[Volume], device: torch.device, memory: float, *, balance: bool = False
) -> list[Resident]:
    """Copy all volumes to the device if they fit in their share of `memory` bytes.

    With `balance`, foreground positions are grouped by class, so that crops can be centered on
    each class equally often.
    """
    size = sum(v.image.nbytes + (v.label.nbytes if v.label is not None else 0) for v in volumes)
    fits = size <= RESIDENT_SHARE * memory

    def place(array: Array) -> Tensor | Array:
        return torch.from_numpy(np.array(array)).to(device) if fits else array

    def place_volume(volume: Volume) -> Resident:
        label = None if volume.label is None else place(volume.label)
        rows = rows_by_class(volume) if balance else ()
        return Resident(place(volume.image), label, volume.foreground, rows)

    with ThreadPoolExecutor(PLACED_AT_ONCE) as pool:
        return list(pool.map(place_volume, volumes))


def rows_by_class(volume: Volume) -> tuple[range, ...]:
    """The rows of each class in the foreground positions of a volume."""
    if volume.label is None or volume.foreground is None:
        return ()
    positions = np.asarray(volume.foreground)  # (N, dims)
    classes = np.asarray(volume.label)[tuple(positions.T)]  # (N,)
    starts = np.flatnonzero(np.diff(classes, prepend=0)).tolist()  # foreground is above 0
    return tuple(map(range, starts, [*starts[1:], len(classes)]))


class Crop(NamedTuple):
    volume: int
    start: tuple[int, ...]  # first voxel, negative where the crop begins outside the volume


@dataclass(frozen=True, slots=True)
class Draws:
    """The random choices of one step."""

    seed: int  # of the generator of the batch
    labeled: list[Crop]
    labeled_geometry: Geometry
    unlabeled: list[Crop]
    unlabeled_geometry: Geometry

    def select(self, own: slice) -> Draws:
        """The choices for the crops of one process."""
        return Draws(
            self.seed,
            self.labeled[own],
            self.labeled_geometry.select(own),
            self.unlabeled[own],
            self.unlabeled_geometry.select(own),
        )


@dataclass(frozen=True, slots=True)
class StepCrops:
    """The crops of one step before augmentation, on the host unless the volumes are resident."""

    draws: Draws
    labeled: Labeled
    unlabeled: Tensor | None  # (B, C, *S)


@dataclass(frozen=True, slots=True)
class Sampler:
    labeled: Sequence[Resident]
    unlabeled: Sequence[Resident]
    patch: tuple[int, ...]
    classes: int  # of the labels, background included
    labeled_crops: int
    unlabeled_crops: int
    foreground: float  # fraction of labeled crops centered on a foreground voxel
    augment: AugmentSettings
    seed: int
    device: torch.device
    # hidden labels (1, *S) of `unlabeled`, in place of images; IGNORE where a case has no label
    hidden: Sequence[Resident] = ()
    mirror_axes: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()  # of the voxels; isotropic by default
    shares: CropShares = WHOLE  # crops of this process

    @property
    def is_resident(self) -> bool:
        """Whether the volumes are on the device."""
        return isinstance(self.labeled[0].image, Tensor)

    def batch(self, step: int, crops: StepCrops | None = None) -> Batch:
        """The batch of a step, from the crops that `read` returned for it, if given."""
        crops = crops or self.read(step)
        draws = crops.draws
        generator = torch.Generator(self.device)
        generator.manual_seed(draws.seed)
        image = crops.labeled.image.to(self.device, non_blocking=True)
        label = crops.labeled.label.to(self.device, non_blocking=True).long()
        labeled = Labeled(*transform(image, label, draws.labeled_geometry, self.classes))
        if self.augment.scanner:
            # methods that need stronger views of unlabeled crops create their own
            rng = np.random.default_rng([self.seed, step, SCANNER_STREAM])
            channels = labeled.image.shape[1]
            changes = draw_scanner(self.labeled_crops, channels, self.augment, rng)
            image = change_intensities(labeled.image, changes, generator, self.shares.own)
            labeled = replace(labeled, image=image)
        unlabeled = None
        if crops.unlabeled is not None:
            image, inside = crops.unlabeled.to(self.device, non_blocking=True), self.inside(draws)
            geometry = draws.unlabeled_geometry
            unlabeled = Unlabeled(*transform(image, inside, geometry, self.classes))
        return Batch(labeled, unlabeled, generator)

    def hidden_labels(self, step: int) -> Tensor:
        """Hidden labels (B, *S) of the unlabeled crops of a step, for monitoring only."""
        draws = self.draw(step)
        labels = [self.hidden[crop.volume].image for crop in draws.unlabeled]
        crops = self.cut(labels, draws.unlabeled, fill=IGNORE).to(self.device, non_blocking=True)
        return transform_labels(crops[:, 0].long(), draws.unlabeled_geometry, self.classes)

    def read(self, step: int) -> StepCrops:
        """Draw and crop a step. Several threads may call this at once."""
        draws, unlabeled = self.draw(step).select(self.shares.own), None
        if draws.unlabeled:
            images = [self.unlabeled[crop.volume].image for crop in draws.unlabeled]
            unlabeled = self.cut(images, draws.unlabeled)
        return StepCrops(draws, self.cut_labeled(draws.labeled), unlabeled)

    def draw(self, step: int) -> Draws:
        rng = np.random.default_rng([self.seed, step])
        seed = int(rng.integers(2**62))
        labeled = self.draw_crops(self.labeled, self.labeled_crops, rng, self.foreground)
        labeled_geometry = self.draw_geometry(labeled, rng)
        unlabeled = self.draw_crops(self.unlabeled, self.unlabeled_crops, rng)
        unlabeled_geometry = self.draw_geometry(unlabeled, rng)
        return Draws(seed, labeled, labeled_geometry, unlabeled, unlabeled_geometry)

    def draw_crops(
        self,
        volumes: Sequence[Resident],
        count: int,
        rng: np.random.Generator,
        foreground: float | None = None,
    ) -> list[Crop]:
        crops = []
        for _ in range(count):
            volume = int(rng.integers(len(volumes)))
            is_centered = foreground is not None and rng.random() < foreground
            crops.append(Crop(volume, self.start(volumes[volume], rng, foreground=is_centered)))
        return crops

    def draw_geometry(self, crops: Sequence[Crop], rng: np.random.Generator) -> Geometry:
        return draw_geometry(
            len(crops), self.patch, self.augment, rng, self.mirror_axes, self.spacing
        )

    def start(
        self, volume: Resident, rng: np.random.Generator, *, foreground: bool
    ) -> tuple[int, ...]:
        """First voxel of a crop.

        A volume smaller than the patch is placed at random in it. If it were always centered,
        the network would never learn the margins, where larger volumes have voxels.
        """
        gaps = [size - side for size, side in zip(volume.shape, self.patch, strict=True)]
        bounds = [(min(gap, 0), max(gap, 0)) for gap in gaps]
        if not foreground or volume.foreground is None or not len(volume.foreground):
            return tuple(int(rng.integers(low, high + 1)) for low, high in bounds)
        rows = range(len(volume.foreground))
        if volume.by_class:
            rows = volume.by_class[int(rng.integers(len(volume.by_class)))]
        row = rows[int(rng.integers(len(rows)))]
        (center,) = volume.foreground[slice(row, row + 1),].tolist()
        starts = [place - side // 2 for place, side in zip(center, self.patch, strict=True)]
        return tuple(min(max(s, low), high) for s, (low, high) in zip(starts, bounds, strict=True))

    def cut_labeled(self, crops: Sequence[Crop]) -> Labeled:
        labels = []
        for crop in crops:
            label = self.labeled[crop.volume].label
            assert label is not None
            labels.append(label.reshape((1, *label.shape)))
        image = self.cut([self.labeled[crop.volume].image for crop in crops], crops)
        return Labeled(image, self.cut(labels, crops, fill=IGNORE)[:, 0])

    def cut(
        self, arrays: Sequence[Tensor | Array], crops: Sequence[Crop], *, fill: int | None = None
    ) -> Tensor:
        """Patches (B, C, *patch) of arrays (C, *S): labels with `fill` as padding, or images."""
        is_resident = isinstance(arrays[0], Tensor)
        batch = torch.full(
            (len(crops), arrays[0].shape[0], *self.patch),
            0 if fill is None else fill,
            dtype=torch.float32 if fill is None else torch.int16,
            device=self.device if is_resident else "cpu",
            pin_memory=self.device.type == "cuda" and not is_resident,
        )
        # numpy on the host: torch would start its own threads in every reading thread
        patches: Any = batch if is_resident else batch.numpy()
        for patch, array, crop in zip(patches, arrays, crops, strict=True):
            covered = self.covered_slices(array.shape[1:], crop.start)
            box = tuple(
                slice(first + own.start, first + own.stop)
                for first, own in zip(crop.start, covered, strict=True)
            )
            patch[:, *covered] = array[:, *box]
        return batch

    def inside(self, draws: Draws) -> Tensor:
        """(B, *patch) bool: which voxels of the unlabeled crops lie inside their volume."""
        mask = torch.zeros(
            (len(draws.unlabeled), *self.patch), dtype=torch.bool, device=self.device
        )
        for patch, crop in zip(mask, draws.unlabeled, strict=True):
            patch[self.covered_slices(self.unlabeled[crop.volume].shape, crop.start)] = True
        return mask

    def covered_slices(self, sizes: Sequence[int], start: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of a crop that a volume with these sides covers."""
        return tuple(
            slice(max(-first, 0), min(size - first, side))
            for size, first, side in zip(sizes, start, self.patch, strict=True)
        )
