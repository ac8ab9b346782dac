"""Weak augmentation of batches of crops, on the device where they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segpl.errors import InputError


@dataclass(frozen=True, slots=True)
class AugmentSettings:
    """All off by default, as in the paper."""

    flip: float = 0.0  # chance of mirroring each axis
    rotate: float = 0.0  # chance of a turn by a multiple of 90 degrees, in planes of equal sides
    intensity: float = 0.0  # spread of random brightness, contrast and noise; 0.1 is mild

    def __post_init__(self) -> None:
        for name in ("flip", "rotate", "intensity"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"augment.{name} is {getattr(self, name)}: it must lie from 0, which is off, "
                    "to 1."
                )


def augment(
    image: Tensor,
    label: Tensor | None,
    settings: AugmentSettings,
    rng: np.random.Generator,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor | None]:
    """Images (B, C, *S) and labels (B, *S), changed alike where the change is geometric.

    Choices of geometry are drawn on the host and cost no synchronisation.
    """
    if settings.flip or settings.rotate:
        image, label = turn(image, label, settings, rng)
    if settings.intensity:
        image = change_intensity(image, settings.intensity, generator)
    return image, label


def turn(
    image: Tensor, label: Tensor | None, settings: AugmentSettings, rng: np.random.Generator
) -> tuple[Tensor, Tensor | None]:
    dims = image.dim() - 2
    planes = [
        (a, b)
        for a in range(dims)
        for b in range(a + 1, dims)
        if image.shape[2 + a] == image.shape[2 + b]
    ]
    images, labels = [], []
    for index in range(image.shape[0]):
        axes = [a for a in range(dims) if rng.random() < settings.flip]
        plane = planes[int(rng.integers(len(planes)))] if planes else None
        turns = int(rng.integers(1, 4)) if plane and rng.random() < settings.rotate else 0
        images.append(move(image[index], axes, plane, turns, channels=1))
        if label is not None:
            labels.append(move(label[index], axes, plane, turns, channels=0))
    return torch.stack(images), torch.stack(labels) if label is not None else None


def move(
    array: Tensor, axes: list[int], plane: tuple[int, int] | None, turns: int, *, channels: int
) -> Tensor:
    array = torch.flip(array, [a + channels for a in axes])
    if plane and turns:
        array = torch.rot90(array, turns, (plane[0] + channels, plane[1] + channels))
    return array


def change_intensity(image: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Brightness and contrast of each channel, then noise on each voxel."""
    size = (*image.shape[:2], *[1] * (image.dim() - 2))  # (B, C, 1...)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=image.device, dtype=image.dtype)

    contrast = (spread * normal(size)).exp()
    noise = 0.5 * spread * normal(image.shape)
    return image * contrast + spread * normal(size) + noise
