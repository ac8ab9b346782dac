"""Intensity operations that imitate differences between scanners.

Every operation takes one normalized image (C, *S) with mean 0 and standard deviation 1, an amount
in [-1, 1] for all channels or one for each, and a generator. It ignores the sign where only one
direction makes sense. An amount of 0 changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.resize import resize_linear
from segpl.views.geometry import wide_axes
from segpl.views.separable import (
    AxisMatrix,
    coarse_matrix,
    copy_to,
    gaussian_matrix,
    transform_axes,
)

Amount = float | NDArray[np.float64]  # for all channels, or (C,)
Operation = Callable[[Tensor, Amount, torch.Generator], Tensor]
Changes = Sequence[tuple[str, Amount]]  # operations on one image, by name

SHADING_GRID = 4  # control points of the shading field per axis


def identity(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    return image


def brightness(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    return image + per_channel(0.5 * amount, image)


def contrast(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    mean = image.mean(tuple(range(1, image.dim())), keepdim=True)  # (C, 1...)
    return torch.lerp(mean, image, per_channel(np.exp(0.5 * amount), image))


def gamma(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    """Apply a power to intensities rescaled to [0, 1], so that negative values are safe."""
    low, span = intensity_range(image)
    # the derivative of a root is infinite at 0
    scaled = ((image - low) / span).clamp(1e-6, 1)
    return torch.addcmul(low, span, scaled ** per_channel(np.exp(0.5 * amount), image))


def noise(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    std = per_channel(0.4 * np.abs(amount), image)
    if isinstance(std, float):
        return add_noise(image, std, generator)
    # one draw per channel, to keep the random stream of earlier experiments
    drawn = torch.stack([draw_noise(channel, generator) for channel in image])
    return torch.addcmul(image, drawn, std)


def blur(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    return gaussian_blur(image, 1.5 * np.abs(amount))


def sharpen(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    return torch.lerp(image, gaussian_blur(image, 1.0), per_channel(-1.5 * np.abs(amount), image))


def low_resolution(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    """Downsample the wide axes by up to 2 and interpolate back linearly."""
    return along_wide_axes(image, np.abs(amount), coarse_matrix)


def shading(image: Tensor, amount: Amount, generator: torch.Generator) -> Tensor:
    """Multiply the intensity above the darkest value by a smooth random field."""
    coarse = (1, 1, *[SHADING_GRID] * (image.dim() - 1))
    drawn = torch.randn(coarse, generator=generator, device=image.device, dtype=image.dtype)
    field = resize_linear(drawn, list(image.shape[1:]))[0]  # (1, *S)
    low, _ = intensity_range(image)
    strength = per_channel(0.3 * np.abs(amount), image)
    return torch.addcmul(low, image - low, (strength * field).exp())


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
DRAWING = ("noise", "shading")  # operations that use the generator


def change_intensities(
    images: Tensor,
    changes: Sequence[Changes],
    generator: torch.Generator,
    own: slice = slice(None),
) -> Tensor:
    """Apply the changes of each crop of a batch to those crops (B, C, *S) that are in `own`.

    The generator always draws the numbers of all crops, so that no result depends on `own`.
    """
    views = dict(zip(range(len(changes))[own], images, strict=True))  # (C, *S) each
    for index, operations in enumerate(changes):
        for name, amount in operations:
            if index in views:
                views[index] = INTENSITY[name](views[index], amount, generator)
            elif name in DRAWING:
                INTENSITY[name](images[0], amount, generator)
    return torch.stack(list(views.values()))


def per_channel(values: Amount, image: Tensor) -> float | Tensor:
    """One number for all channels, or one each as (C, 1...) on the device of the image (C, *S)."""
    if np.size(values) == 1:
        return float(np.reshape(values, ()))
    return copy_to(torch.from_numpy(values), image).view(-1, *[1] * (image.dim() - 1))


def intensity_range(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and the range of each channel, (C, 1...) each."""
    low, high = image.detach().flatten(1).aminmax(dim=1)
    shape = (-1, *[1] * (image.dim() - 1))
    return low.view(shape), (high - low).clamp(min=1e-6).view(shape)


def gaussian_blur(image: Tensor, std: Amount) -> Tensor:
    """Convolve the wide axes with a Gaussian of `std` voxels; edge values are replicated."""
    return along_wide_axes(image, std, gaussian_matrix)


def along_wide_axes(image: Tensor, amount: Amount, matrix: AxisMatrix) -> Tensor:
    """Multiply the wide axes by a matrix that depends on the side and the amount."""
    if not np.any(amount):
        return image
    amounts = np.atleast_1d(amount).tolist()
    return transform_axes(image, wide_axes(image.shape[1:]), amounts, matrix)


def draw_noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal numbers of this shape."""
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def add_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add independent noise of standard deviation `std` to every voxel."""
    return torch.add(image, draw_noise(image, generator), alpha=std)


def add_clipped_noise(image: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add noise clipped at two standard deviations, as in the code of [Yu2019]."""
    return torch.add(image, draw_noise(image, generator).clamp_(-2, 2), alpha=std)
