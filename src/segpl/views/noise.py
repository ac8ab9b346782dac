"""Gaussian noise for weak views of an image."""

from __future__ import annotations

import torch
from torch import Tensor


def add_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add independent noise of standard deviation `std` to every voxel."""
    noise = torch.randn(image.shape, generator=generator, device=image.device, dtype=image.dtype)
    return image + std * noise


def add_clipped_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add noise clipped at two standard deviations, as in the code of [Yu2019]."""
    noise = torch.randn(image.shape, generator=generator, device=image.device, dtype=image.dtype)
    return image + std * noise.clamp(-2, 2)
