"""Gaussian noise: the weak views of an image."""

from __future__ import annotations

import torch
from torch import Tensor


def add_noise(image: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """`image` with noise of standard deviation `spread` on every voxel, each its own."""
    noise = torch.randn(image.shape, generator=generator, device=image.device, dtype=image.dtype)
    return image + spread * noise


def add_clipped_noise(image: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """The same with noise that is cut off at twice its spread, as in the code of [Yu2019]."""
    noise = torch.randn(image.shape, generator=generator, device=image.device, dtype=image.dtype)
    return image + spread * noise.clamp(-2, 2)
