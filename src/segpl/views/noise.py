"""Gaussian noise for weak views of an image."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal numbers of this shape."""
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def add_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add independent noise of standard deviation `std` to every voxel."""
    return torch.add(image, draw_noise(image, generator), alpha=std)


def add_clipped_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add noise clipped at two standard deviations, as in the code of [Yu2019]."""
    return torch.add(image, draw_noise(image, generator).clamp_(-2, 2), alpha=std)
