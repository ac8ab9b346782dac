"""Intensity operations that imitate differences between scanners.

Every operation takes one normalized image (C, *S) with mean 0 and standard deviation 1, an amount
in [-1, 1] and a generator. It ignores the sign where only one direction makes sense. An amount of 0
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.resize import resize_linear
from segpl.views.geometry import wide_axes
from segpl.views.noise import add_noise

Operation = Callable[[Tensor, float, torch.Generator], Tensor]

SHADING_GRID = 4  # control points of the shading field per axis


def identity(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    return image


def brightness(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    return image + 0.5 * amount


def contrast(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    mean = image.mean(tuple(range(1, image.dim())), keepdim=True)  # (C, 1...)
    return mean + math.exp(0.5 * amount) * (image - mean)


def gamma(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Apply a power to intensities rescaled to [0, 1], so that negative values are safe."""
    low, span = intensity_range(image)
    # the derivative of a root is infinite at 0
    scaled = ((image - low) / span).clamp(1e-6, 1)
    return low + span * scaled ** math.exp(0.5 * amount)


def noise(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    return add_noise(image, 0.4 * abs(amount), generator)


def blur(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    return gaussian_blur(image, 1.5 * abs(amount))


def sharpen(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    return image + 1.5 * abs(amount) * (image - gaussian_blur(image, 1.0))


def low_resolution(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Downsample the wide axes by up to 2 and interpolate back linearly."""
    sides = list(image.shape[1:])
    coarse = list(sides)
    for axis in wide_axes(sides):
        coarse[axis] = max(1, round(sides[axis] / (1 + abs(amount))))
    if coarse == sides:
        return image
    return resize_linear(F.interpolate(image.unsqueeze(0), coarse, mode="area"), sides)[0]


def shading(image: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Multiply the intensity above the darkest value by a smooth random field."""
    coarse = (1, 1, *[SHADING_GRID] * (image.dim() - 1))
    drawn = torch.randn(coarse, generator=generator, device=image.device, dtype=image.dtype)
    field = resize_linear(drawn, list(image.shape[1:]))[0]  # (1, *S)
    low, _ = intensity_range(image)
    return low + (image - low) * (0.3 * abs(amount) * field).exp()


INTENSITY: dict[str, Operation] = {
    "identity": identity,
    "brightness": brightness,
    "contrast": contrast,
    "gamma": gamma,
    "noise": noise,
    "blur": blur,
    "sharpen": sharpen,
    "low-resolution": low_resolution,
    "shading": shading,
}


def intensity_range(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and the range of each channel, (C, 1...) each."""
    axes = tuple(range(1, image.dim()))
    low = image.detach().amin(axes, keepdim=True)
    return low, (image.detach().amax(axes, keepdim=True) - low).clamp(min=1e-6)


def gaussian_blur(image: Tensor, std: float) -> Tensor:
    """Convolve the wide axes with a Gaussian of `std` voxels; edge values are replicated."""
    radius = math.ceil(3 * std)
    if radius == 0:
        return image
    offset = torch.arange(-radius, radius + 1, device=image.device, dtype=image.dtype)
    kernel = (-0.5 * (offset / std) ** 2).exp()
    kernel = (kernel / kernel.sum()).view(1, 1, -1)
    for axis in wide_axes(list(image.shape[1:])):
        lines = image.movedim(1 + axis, -1)
        padded = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (radius, radius), mode="replicate")
        image = F.conv1d(padded, kernel).reshape(lines.shape).movedim(-1, 1 + axis)
    return image
