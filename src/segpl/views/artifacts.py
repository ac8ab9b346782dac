"""What scanners do to images, by how badly: severities for tests of robustness.

Every artifact takes one normalized image (C, *S), with a deviation of about 1, a severity $s$ in
[0, 1] and a generator. A severity of 0 gives the image to the bit. The random numbers do not depend
on the severity: the same generator state gives the same field, ghosts or streaks, stronger or
weaker, so a curve over severities is that of one and the same disturbance. They are drawn on the
generator's device, whatever that of the image, so that a CPU and a GPU disturb alike. Lengths are
voxels or shares of the image, never millimetres.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from segpl.errors import InputError, unknown
from segpl.views.geometry import wide_axes
from segpl.views.intensity import gaussian_blur, intensity_range

Artifact = Callable[[Tensor, float, torch.Generator], Tensor]

CONTRAST = (0.5, 1.0)  # logarithm of the factor of an unseen contrast, up or down
NOISE = 1.0  # deviation of its noise
GAIN = 3.0  # of a bias field, and one over it
ORDER = 2  # half waves of a bias field along each axis
SHIFT = (0.05, 0.1)  # of a moving body, as a share of the side
PERIODS = (2, 3, 4)  # one line of k-space in so many is of the moved body
SPIKES = 3
SPIKE = 1.0  # amplitude of the stripes of one spike, in deviations
FREQUENCY = (0.05, 0.35)  # of those stripes along an axis, in cycles for each voxel
BLUR = 3.0  # voxels
COARSER = 4.0  # times
STREAKS = 14
STREAK, METAL = 2.5, 6.0  # deviations


def out_of_distribution(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Unseen contrast and noise, mixed into the image by $\gamma$ [Xu2024, section 5.6].

    $$\hat x = \gamma x' + (1 - \gamma) x, \quad x' = m + c\,(x - m) + \sigma n, \quad
      n \sim \mathcal{N}(0, 1)$$

    with the mean $m$ of a channel. The source prints the mixture, and names random contrast and
    Gaussian noise without numbers. Ours: $|\log c|$ uniform in [0.5, 1] with a random sign, for
    each channel, and $\sigma = 1$.
    """
    axes = (image.shape[0], *[1] * (image.dim() - 1))
    size = _uniform(axes, *CONTRAST, generator)
    sign = 1 - 2 * (torch.rand(axes, generator=generator, device=generator.device) < 0.5).float()
    factor = (sign * size).exp().to(image)  # (C, 1...)
    noise = torch.randn(image.shape, generator=generator, device=generator.device).to(image)
    mean = image.mean(tuple(range(1, image.dim())), keepdim=True)
    return mixed(image, mean + factor * (image - mean) + NOISE * noise, severity)


def mixed(image: Tensor, other: Tensor, gamma: float) -> Tensor:
    r"""$\gamma x' + (1 - \gamma) x$, as printed in section 5.6 of [Xu2024]."""
    return gamma * other + (1 - gamma) * image


def bias_field(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""A smooth gain, as of a receiver coil, on what is above the darkest value $l$.

    $$\hat x = x + (x - l)\,(3^{\,s f} - 1), \quad
      f(v) \propto \sum_{0 < |k|,\ k_a \le 2} a_k \prod_a \cos(\pi k_a u_a), \quad
      \max_v |f(v)| = 1$$

    with normal $a_k$ and $u \in (0, 1)$ across the image; all channels have the same gain.
    """
    sides = image.shape[1:]
    waves = (ORDER + 1,) * len(sides)
    field = torch.randn(waves, generator=generator, device=generator.device).to(image)
    field[(0,) * len(sides)] = 0  # a constant gain is no bias
    for side in sides:
        place = (torch.arange(side, device=image.device, dtype=image.dtype) + 0.5) / side
        number = torch.arange(ORDER + 1, device=image.device, dtype=image.dtype)
        cosines = torch.cos(math.pi * number[:, None] * place)  # (waves, side)
        field = torch.tensordot(field, cosines, ([0], [0]))  # the new axis comes last
    field = field / field.abs().max().clamp(min=1e-6)
    low, _ = intensity_range(image)
    return image + (image - low) * torch.expm1(severity * math.log(GAIN) * field)


def motion_ghosts(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Ghosts of a body that moved while every $p$-th line of k-space was measured.

    $$\hat x = x + s\, \mathcal{F}^{-1}\big[1[p \mid k]\,(e^{-2 \pi i k d} - 1)\,
      \mathcal{F} x\big]$$

    along a random wide axis, for a shift $d$ of 5 to 10 % of its side and $p$ of 2, 3 or 4. A scan
    is the mean of several measurements: the body moved in the share $s$ of them.
    """
    axes = wide_axes(list(image.shape[1:]))
    axis = 1 + axes[_choice(len(axes), generator)]
    period = PERIODS[_choice(len(PERIODS), generator)]
    shift = _uniform((), *SHIFT, generator).to(image) * (1 - 2 * _choice(2, generator))
    side = image.shape[axis]
    line = torch.fft.fftfreq(side, 1 / side, device=image.device, dtype=image.dtype)
    turned = torch.polar(torch.ones_like(line), -2 * math.pi * line * shift) - 1
    change = torch.where(line % period == 0, turned, 0)  # (side,)
    spectrum = torch.fft.fft(image.movedim(axis, -1)) * change
    ghosts: Tensor = torch.fft.ifft(spectrum).real.movedim(-1, axis)
    return image + severity * ghosts


def spikes(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Stripes across the image, each from one wrong number in k-space.

    $$\hat x = x + s\, \sigma \sum_{j=1}^{3} \cos(2 \pi\, q_j \cdot v + \phi_j)$$

    with the deviation $\sigma$ of a channel, random phases, and frequencies $|q_{ja}|$ of 0.05 to
    0.35 cycles for each voxel along each axis. Every channel has spikes of its own, as it was
    measured on its own.
    """
    channels, *sides = image.shape
    stripes = torch.zeros_like(image)
    for _ in range(SPIKES):
        angle = 2 * math.pi * _uniform((channels,), 0, 1, generator).to(image)
        angle = angle.view(channels, *[1] * len(sides))
        for axis, side in enumerate(sides):
            sign = 1 - 2 * _choice(2, generator)
            cycles = sign * _uniform((channels,), *FREQUENCY, generator).to(image)
            place = torch.arange(side, device=image.device, dtype=image.dtype)
            along = 2 * math.pi * cycles[:, None] * place  # (C, side)
            shape = [channels, *[1] * len(sides)]
            shape[1 + axis] = side
            angle = angle + along.view(shape)
        stripes += angle.cos()
    return image + severity * SPIKE * channel_std(image) * stripes


def blur(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Convolution with a Gaussian of $3 s$ voxels along the wide axes; edges are repeated."""
    return gaussian_blur(image, BLUR * severity)


def low_resolution(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Measured up to $1 + 3 s$ times as coarse along the wide axes, and shown on the old grid.

    $$\hat x = \mathcal{C}^{-1}\big[1[k_a < N_a / (1 + 3 s)]\ \mathcal{C} x\big]$$

    with the cosine transform $\mathcal{C}$, which is the Fourier transform of the image and its
    mirror image: fine waves are cut off, as in a scan with fewer lines whose k-space is filled up
    with 0. Edges ring a little, as they do there.
    """
    for axis in wide_axes(list(image.shape[1:])):
        side = image.shape[1 + axis]
        kept = max(1, round(side / (1 + (COARSER - 1) * severity)))
        if kept < side:
            lines = image.movedim(1 + axis, -1)
            spectrum = torch.fft.rfft(torch.cat([lines, lines.flip(-1)], -1))
            spectrum[..., kept:] = 0
            lines = torch.fft.irfft(spectrum, n=2 * side)[..., :side]
            image = lines.movedim(-1, 1 + axis)
    return image


def metal_streaks(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""A bright piece of metal, and bright and dark streaks that leave it in the plane of slices.

    $$\hat x = x + s\, \sigma\, h(z) \Big[6\, e^{-(r / r_m)^4} + 2.5\, e^{-r / R}
      \sum_{j=1}^{14} (-1)^j w_j\, e^{-d_j^2 / 2 b(r)^2}\Big]$$

    with the distance $r$ from the metal, which lies in the middle of the image, and the distances
    $d_j$ from straight lines through it, whose breadth $b$ grows with $r$. Across slices,
    $h$ is a Gaussian around the metal. The plane is that of the first two wide axes. It looks like
    beam hardening in CT, and is no simulation of it.
    """
    sides = list(image.shape[1:])
    axes = wide_axes(sides)
    first, second = axes[:2] if len(axes) > 1 else (0, 1)
    size = (sides[first] + sides[second]) / 2
    middle = _uniform((len(sides),), 0.3, 0.7, generator)
    tilt = _uniform((), 0, math.pi, generator)
    jitter, weight = _uniform((2, STREAKS), 0.4, 1.0, generator).to(image)
    places = []  # voxels from the metal along each axis, (1..., side, ...1) each
    for axis, side in enumerate(sides):
        place = torch.arange(side, device=image.device, dtype=image.dtype)
        shape = [1] * len(sides)
        shape[axis] = side
        places.append((place - middle[axis].item() * side).view(shape))
    radius = torch.hypot(places[first], places[second])
    breadth = 0.008 * size + 0.025 * radius
    streaks = torch.zeros_like(radius)
    for index in range(STREAKS):
        angle = tilt.to(image) + math.pi * (index + jitter[index]) / STREAKS
        distance = angle.cos() * places[first] + angle.sin() * places[second]
        profile = (-0.5 * (distance / breadth) ** 2).exp()
        streaks += (-1) ** index * weight[index] * profile
    field = METAL * (-((radius / (0.025 * size)) ** 4)).exp()
    field = field + STREAK * (-radius / (0.4 * size)).exp() * streaks
    for axis, side in enumerate(sides):
        if axis not in (first, second):
            field = field * (-0.5 * (places[axis] / (0.2 * side)) ** 2).exp()
    return image + severity * channel_std(image) * field


ARTIFACTS: dict[str, Artifact] = {
    "gamma": out_of_distribution,
    "bias-field": bias_field,
    "ghosts": motion_ghosts,
    "spikes": spikes,
    "blur": blur,
    "low-resolution": low_resolution,
    "streaks": metal_streaks,
}


def corrupt(image: Tensor, name: str, severity: float, generator: torch.Generator) -> Tensor:
    """`image` (C, *S) with the artifact of that name."""
    if name not in ARTIFACTS:
        raise unknown("artifact", name, ARTIFACTS)
    require_severity(severity)
    return ARTIFACTS[name](image, severity, generator)


def require_severity(severity: float) -> None:
    if not 0 <= severity <= 1:
        raise InputError(
            f"a severity of {severity} is outside of [0, 1]: 0 leaves an image as it is, 1 is the "
            "worst. Give numbers such as 0.2 0.6 1."
        )


def channel_std(image: Tensor) -> Tensor:
    """Standard deviation of each channel, (C, 1...)."""
    return image.std(tuple(range(1, image.dim())), correction=0, keepdim=True)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return low + (high - low) * drawn


def _choice(count: int, generator: torch.Generator) -> int:
    drawn = torch.randint(count, (), generator=generator, device=generator.device)
    return int(drawn.item())
