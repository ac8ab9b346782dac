"""Batches of crops, each a function of the seed and the step alone.

Nothing is remembered between steps, so a resumed training sees exactly the batches that it would
have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.augment import AugmentSettings, augment, scanned
from segpl.data.cache import Volume
from segpl.types import IGNORE, Batch, Labeled, Unlabeled

RESIDENT_SHARE = 0.4  # of the free memory that volumes may take; the rest is for training
# after seed and step, streams of their own; a 0 there would change no draw
HELD, SCANNED = 1, 2


@dataclass(frozen=True, slots=True)
class Resident:
    """A volume where the crops are taken: on the device, or memory-mapped on the host."""

    image: Tensor | NDArray[Any]  # (C, *S)
    label: Tensor | NDArray[np.int16] | None  # (*S)
    foreground: NDArray[np.int32] | None  # (N, dims)
    # the same positions, those of each class apart; empty: a crop may seek any of them
    by_class: tuple[NDArray[np.int32], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.image.shape[1:])

    @property
    def has_foreground(self) -> bool:
        return self.foreground is not None and len(self.foreground) > 0


def settle(
    volumes: Sequence[Volume], device: torch.device, memory: int, *, balance: bool = False
) -> list[Resident]:
    """Put all volumes on the device if they fit into their share of `memory` bytes.

    With `balance` the classes of their foreground are told apart, so that crops can seek each.
    """
    size = sum(v.image.nbytes + (v.label.nbytes if v.label is not None else 0) for v in volumes)
    groups = [places_by_class(v) if balance else () for v in volumes]
    if size > RESIDENT_SHARE * memory:
        return [
            Resident(v.image, v.label, v.foreground, group)
            for v, group in zip(volumes, groups, strict=True)
        ]
    return [
        Resident(
            torch.from_numpy(np.array(v.image)).to(device),
            None if v.label is None else torch.from_numpy(np.array(v.label)).to(device),
            v.foreground,
            group,
        )
        for v, group in zip(volumes, groups, strict=True)
    ]


def places_by_class(volume: Volume) -> tuple[NDArray[np.int32], ...]:
    """Foreground positions (N, dims), those of each class apart; the label says which is which."""
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
    foreground: float  # share of labeled crops centered on a foreground voxel
    augment: AugmentSettings
    seed: int
    device: torch.device
    # what `unlabeled` hides: labels (1, *S) in place of images, IGNORE where there is none
    hidden: Sequence[Resident] = ()
    held: Sequence[Resident] = ()  # validation cases, where a method wants crops of them
    unlabeled_foreground: float = 0.0  # share of unlabeled crops where labeled scans have some
    mirrors: tuple[int, ...] = ()  # axes that `augment.mirror` may mirror
    spacing: tuple[float, ...] = ()  # of the voxels; none: all axes alike

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        generator = torch.Generator(self.device)
        generator.manual_seed(int(rng.integers(2**62)))
        plain = self.crops_of(self.labeled, rng, self.foreground)
        image, label = augment(
            plain.image, plain.label, self.augment, rng, generator, self.mirrors, self.spacing
        )
        assert label is not None
        if self.augment.scanner:
            # harder views of unlabeled crops are up to a method, which needs the plain ones too
            choices = np.random.default_rng([self.seed, step, SCANNED])
            chance, blur = self.augment.scanner, self.augment.blur
            image = scanned(image, chance, choices, generator, blur)
        unlabeled = None
        if self.unlabeled_crops:
            unlabeled = self.images_of(self.unlabeled_crops, rng, generator)
        held = None
        if self.held:
            # where unlabeled crops are: probabilities are calibrated for those
            apart = np.random.default_rng([self.seed, step, HELD])
            held = self.crops_of(self.held, apart, 0.0, blindly=True)
        return Batch(Labeled(image, label), unlabeled, generator, held)

    def images_of(
        self, count: int, rng: np.random.Generator, generator: torch.Generator
    ) -> Unlabeled:
        """`count` crops of unlabeled volumes, augmented."""
        crops, insides = [], []
        for _ in range(count):
            volume = self.unlabeled[int(rng.integers(len(self.unlabeled)))]
            start = self.unlabeled_start(volume, rng)
            crops.append(self.crop(volume.image, start, fill=0.0))
            insides.append(self.inside(volume, start))
        scans, inside = augment(
            torch.stack(crops),
            torch.stack(insides),
            self.augment,
            rng,
            generator,
            self.mirrors,
            self.spacing,
        )
        return Unlabeled(scans, inside)

    def crops_of(
        self,
        volumes: Sequence[Resident],
        rng: np.random.Generator,
        foreground: float,
        *,
        blindly: bool = False,
    ) -> Labeled:
        """`labeled_crops` crops of labeled volumes, as they are; a share is sought out.

        The others lie anywhere, or `blindly` where those of an unlabeled volume would.
        """
        images, labels = [], []
        for _ in range(self.labeled_crops):
            volume = volumes[int(rng.integers(len(volumes)))]
            if rng.random() < foreground:
                start = self.start(volume, rng, foreground=True)
            elif blindly:
                start = self.unlabeled_start(volume, rng)
            else:
                start = self.start(volume, rng, foreground=False)
            images.append(self.crop(volume.image, start, fill=0.0))
            assert volume.label is not None
            labels.append(self.crop(volume.label[None], start, fill=IGNORE)[0])
        return Labeled(torch.stack(images), torch.stack(labels).long())

    def hidden_labels(self, step: int) -> Tensor:
        """(B, *S) labels of the unlabeled crops of a step, for onlookers; no batch holds them.

        They are cropped and moved as images are, by the same draws: those of geometry depend on no
        setting of intensity.
        """
        still = replace(self.augment, intensity=0.0, scanner=0.0)
        onlooker = replace(self, unlabeled=self.hidden, held=(), augment=still)
        crops = onlooker.batch(step).unlabeled
        assert crops is not None
        assert crops.inside is not None
        return torch.where(crops.inside, crops.image[:, 0].long(), IGNORE)

    def start(
        self, volume: Resident, rng: np.random.Generator, *, foreground: bool
    ) -> tuple[int, ...]:
        """First voxel of a crop, below 0 where a volume begins inside of it."""
        if foreground and volume.has_foreground:
            return self.around(self.place(volume, rng), volume)
        return tuple(int(rng.integers(low, high + 1)) for low, high in self.bounds(volume))

    def unlabeled_start(self, volume: Resident, rng: np.random.Generator) -> tuple[int, ...]:
        """First voxel of a crop of a volume whose label, if it has one, is not looked at.

        A share of crops is centered where a labeled volume has foreground, by the position
        relative to its sides: scans of one anatomy are taken alike. Others lie anywhere.
        """
        if self.unlabeled_foreground and rng.random() < self.unlabeled_foreground:
            known = [one for one in self.labeled if one.has_foreground]
            if known:
                source = known[int(rng.integers(len(known)))]
                place = (self.place(source, rng) + 0.5) / source.shape  # (dims,) in [0, 1]
                return self.around(np.floor(place * volume.shape).astype(np.int32), volume)
        return self.start(volume, rng, foreground=False)

    def place(self, volume: Resident, rng: np.random.Generator) -> NDArray[np.int32]:
        """A foreground voxel (dims,): any, or one of a class that was drawn first."""
        places = volume.foreground
        if volume.by_class:
            places = volume.by_class[int(rng.integers(len(volume.by_class)))]
        assert places is not None
        place: NDArray[np.int32] = places[int(rng.integers(len(places)))]
        return place

    def around(self, center: NDArray[np.int32], volume: Resident) -> tuple[int, ...]:
        """First voxel of the crop with this center, or the nearest to it that can be one."""
        wanted = [int(c) - side // 2 for c, side in zip(center, self.patch, strict=True)]
        bounds = self.bounds(volume)
        return tuple(min(max(w, low), high) for w, (low, high) in zip(wanted, bounds, strict=True))

    def bounds(self, volume: Resident) -> list[tuple[int, int]]:
        """The first and the last voxel of each axis at which a crop can start.

        A volume thinner than the patch may lie at either end of it, or between. Were it always in
        the middle, nothing would be learned about the margins, where a thicker volume has voxels.
        """
        gaps = [size - side for size, side in zip(volume.shape, self.patch, strict=True)]
        return [(min(gap, 0), max(gap, 0)) for gap in gaps]

    def crop(
        self,
        array: Tensor | NDArray[Any],
        start: tuple[int, ...],
        *,
        fill: float,
    ) -> Tensor:
        """A patch of (C, *S) on the device, filled up where the volume ends."""
        shown = self.shown(array.shape[1:], start)
        places = zip(start, shown, strict=True)
        box = (slice(None), *(slice(s + own.start, s + own.stop) for s, own in places))
        if isinstance(array, Tensor):
            part = array[box]
        else:
            part = torch.from_numpy(np.array(array[box])).to(self.device, non_blocking=True)
        if part.shape[1:] == self.patch:
            return part
        pads = [(own.start, n - own.stop) for n, own in zip(self.patch, shown, strict=True)]
        flat = [side for pair in reversed(pads) for side in pair]
        return torch.nn.functional.pad(part, flat, value=fill)

    def inside(self, volume: Resident, start: tuple[int, ...]) -> Tensor:
        """(*patch) bool: where the crop that starts there shows the volume and no filling."""
        mask = torch.zeros(self.patch, dtype=torch.bool, device=self.device)
        mask[self.shown(volume.shape, start)] = True
        return mask

    def shown(self, sizes: Sequence[int], start: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of a crop that a volume with these sides fills."""
        return tuple(
            slice(max(-first, 0), min(size - first, side))
            for size, first, side in zip(sizes, start, self.patch, strict=True)
        )
