"""Batches of crops. A batch depends on the seed and the step only.

The sampler keeps no state, so a resumed run sees the batches of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.augment import AugmentSettings, augment, simulate_scanner
from segpl.data.cache import Volume
from segpl.types import IGNORE, Batch, Labeled, Unlabeled

RESIDENT_SHARE = 0.4  # of the free memory, for volumes; training needs the rest
# random streams besides [seed, step]; numpy treats [seed, step, 0] like [seed, step]
VALIDATION_STREAM, SCANNER_STREAM = 1, 2


@dataclass(frozen=True, slots=True)
class Resident:
    """A volume to crop from: on the device, or memory-mapped on the host."""

    image: Tensor | NDArray[Any]  # (C, *S)
    label: Tensor | NDArray[Any] | None  # (*S)
    foreground: NDArray[np.int32] | None  # (N, dims) positions
    by_class: tuple[NDArray[np.int32], ...] = ()  # the same, one array per class, if balanced

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.image.shape[1:])


def place_volumes(
    volumes: Sequence[Volume], device: torch.device, memory: int, *, balance: bool = False
) -> list[Resident]:
    """Copy all volumes to the device if they fit in their share of `memory` bytes.

    With `balance`, foreground positions are grouped by class, so that crops can be centered on
    each class equally often.
    """
    size = sum(v.image.nbytes + (v.label.nbytes if v.label is not None else 0) for v in volumes)
    fits = size <= RESIDENT_SHARE * memory

    def place(array: NDArray[Any]) -> Tensor | NDArray[Any]:
        return torch.from_numpy(np.array(array)).to(device) if fits else array

    return [
        Resident(
            place(v.image),
            None if v.label is None else place(v.label),
            v.foreground,
            positions_by_class(v) if balance else (),
        )
        for v in volumes
    ]


def positions_by_class(volume: Volume) -> tuple[NDArray[np.int32], ...]:
    """Foreground positions (N, dims), one array per class."""
    if volume.label is None or volume.foreground is None:
        return ()
    classes = np.asarray(volume.label[tuple(volume.foreground.T)])  # (N,)
    return tuple(volume.foreground[classes == index] for index in np.unique(classes))


@dataclass(frozen=True, slots=True)
class Sampler:
    labeled: Sequence[Resident]
    unlabeled: Sequence[Resident]
    patch: tuple[int, ...]
    labeled_crops: int
    unlabeled_crops: int
    foreground: float  # fraction of labeled crops centered on a foreground voxel
    augment: AugmentSettings
    seed: int
    device: torch.device
    # hidden labels (1, *S) of `unlabeled`, in place of images; IGNORE where a case has no label
    hidden: Sequence[Resident] = ()
    validation: Sequence[Resident] = ()  # for methods that need validation crops
    mirror_axes: tuple[int, ...] = ()
    spacing: tuple[float, ...] = ()  # of the voxels; isotropic by default

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        generator = torch.Generator(self.device)
        generator.manual_seed(int(rng.integers(2**62)))
        labeled = self.augment_crops(self.labeled_batch(self.labeled, rng, self.foreground), rng)
        if self.augment.scanner:
            # methods that need stronger views of unlabeled crops create their own
            changes = np.random.default_rng([self.seed, step, SCANNER_STREAM])
            image = simulate_scanner(labeled.image, self.augment, changes, generator)
            labeled = replace(labeled, image=image)
        unlabeled = self.unlabeled_batch(rng) if self.unlabeled_crops else None
        validation = None
        if self.validation:
            # random positions, as for the unlabeled crops whose probabilities are calibrated
            stream = np.random.default_rng([self.seed, step, VALIDATION_STREAM])
            validation = self.labeled_batch(self.validation, stream, 0.0)
        return Batch(labeled, unlabeled, generator, validation)

    def hidden_labels(self, step: int) -> Tensor:
        """Hidden labels (B, *S) of the unlabeled crops of a step, for monitoring only.

        The label maps take the place of the unlabeled images, so the same random numbers crop and
        transform them. Intensity changes have their own random stream.
        """
        geometry = replace(self.augment, scanner=0.0)
        crops = replace(self, unlabeled=self.hidden, validation=(), augment=geometry)
        unlabeled = crops.batch(step).unlabeled
        assert unlabeled is not None
        assert unlabeled.inside is not None
        return torch.where(unlabeled.inside, unlabeled.image[:, 0].long(), IGNORE)

    def labeled_batch(
        self, volumes: Sequence[Resident], rng: np.random.Generator, foreground: float
    ) -> Labeled:
        """Crops of labeled volumes, without augmentation."""
        images, labels = [], []
        for _ in range(self.labeled_crops):
            volume = volumes[int(rng.integers(len(volumes)))]
            start = self.start(volume, rng, foreground=rng.random() < foreground)
            images.append(self.crop(volume.image, start, fill=0.0))
            assert volume.label is not None
            labels.append(self.crop(volume.label[None], start, fill=IGNORE)[0])
        return Labeled(torch.stack(images), torch.stack(labels).long())

    def augment_crops(self, crops: Labeled, rng: np.random.Generator) -> Labeled:
        image, label = augment(
            crops.image, crops.label, self.augment, rng, self.mirror_axes, self.spacing
        )
        assert label is not None
        return Labeled(image, label)

    def unlabeled_batch(self, rng: np.random.Generator) -> Unlabeled:
        """Augmented crops of unlabeled volumes."""
        images, insides = [], []
        for _ in range(self.unlabeled_crops):
            volume = self.unlabeled[int(rng.integers(len(self.unlabeled)))]
            start = self.start(volume, rng, foreground=False)
            images.append(self.crop(volume.image, start, fill=0.0))
            insides.append(self.inside(volume, start))
        image, inside = augment(
            torch.stack(images),
            torch.stack(insides),
            self.augment,
            rng,
            self.mirror_axes,
            self.spacing,
        )
        return Unlabeled(image, inside)

    def start(
        self, volume: Resident, rng: np.random.Generator, *, foreground: bool
    ) -> tuple[int, ...]:
        """First voxel of a crop, negative where the crop begins outside the volume.

        A volume smaller than the patch is placed at random in it. If it were always centered,
        the network would never learn the margins, where larger volumes have voxels.
        """
        gaps = [size - side for size, side in zip(volume.shape, self.patch, strict=True)]
        bounds = [(min(gap, 0), max(gap, 0)) for gap in gaps]
        if not foreground or volume.foreground is None or not len(volume.foreground):
            return tuple(int(rng.integers(low, high + 1)) for low, high in bounds)
        positions = volume.foreground
        if volume.by_class:
            positions = volume.by_class[int(rng.integers(len(volume.by_class)))]
        center = positions[int(rng.integers(len(positions)))]
        starts = [int(c) - side // 2 for c, side in zip(center, self.patch, strict=True)]
        return tuple(min(max(s, low), high) for s, (low, high) in zip(starts, bounds, strict=True))

    def crop(self, array: Tensor | NDArray[Any], start: tuple[int, ...], *, fill: float) -> Tensor:
        """A patch of (C, *S) on the device, padded with `fill` outside the volume."""
        covered = self.covered_slices(array.shape[1:], start)
        box = tuple(
            slice(first + own.start, first + own.stop)
            for first, own in zip(start, covered, strict=True)
        )
        if isinstance(array, Tensor):
            part = array[:, *box]
        else:
            part = torch.from_numpy(np.array(array[:, *box])).to(self.device, non_blocking=True)
        if part.shape[1:] == self.patch:
            return part
        pads = [(own.start, n - own.stop) for n, own in zip(self.patch, covered, strict=True)]
        flat = [side for pair in reversed(pads) for side in pair]
        return torch.nn.functional.pad(part, flat, value=fill)

    def inside(self, volume: Resident, start: tuple[int, ...]) -> Tensor:
        """(*patch) bool: which voxels of the crop lie inside the volume."""
        mask = torch.zeros(self.patch, dtype=torch.bool, device=self.device)
        mask[self.covered_slices(volume.shape, start)] = True
        return mask

    def covered_slices(self, sizes: Sequence[int], start: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of a crop that a volume with these sides covers."""
        return tuple(
            slice(max(-first, 0), min(size - first, side))
            for size, first, side in zip(sizes, start, self.patch, strict=True)
        )
