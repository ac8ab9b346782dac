"""Scanner artifacts of adjustable severity, for robustness tests.

Every artifact takes one normalized image (C, *S) with a standard deviation of about 1, a severity
$s$ in [0, 1] and a generator. Severity 0 returns the image bit for bit. The random numbers do not
depend on the severity: one generator state always gives the same field, ghosts or streaks, so a
curve over severities follows a single disturbance. They are drawn on the generator's device, so
that a CPU and a GPU produce the same artifact. Lengths are in voxels or fractions of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.views.geometry import wide_axes
from segpl.views.intensity import gaussian_blur, intensity_range

Artifact = Callable[[Tensor, float, torch.Generator], Tensor]

OOD_CONTRAST = (0.5, 1.0)  # absolute log of the contrast factor
OOD_NOISE_STD = 1.0
MAX_GAIN = 3.0  # of a bias field; the smallest is 1 / MAX_GAIN
BIAS_ORDER = 2  # half waves of a bias field per axis
GHOST_SHIFT = (0.05, 0.1)  # of the moved body, as a fraction of the side
GHOST_PERIODS = (2, 3, 4)  # one in this many k-space lines shows the moved body
SPIKES = 3
SPIKE_AMPLITUDE = 1.0  # of the stripes of one spike, in standard deviations
SPIKE_FREQUENCY = (0.05, 0.35)  # per axis, in cycles per voxel
MAX_BLUR = 3.0  # voxels
MAX_DOWNSAMPLING = 4.0
STREAKS = 14
STREAK_AMPLITUDE, METAL_AMPLITUDE = 2.5, 6.0  # standard deviations


def out_of_distribution(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Blend an image of unseen contrast and noise into the image [Xu2024, section 5.6].

    $$\hat x = \gamma x' + (1 - \gamma) x, \quad x' = m + c\,(x - m) + \sigma n, \quad
      n \sim \mathcal{N}(0, 1)$$

    with the mean $m$ of a channel. The source gives the mixture and mentions random contrast and
    Gaussian noise without numbers. Ours: $|\log c|$ uniform in [0.5, 1] with a random sign for each
    channel, and $\sigma = 1$.
    """
    axes = (image.shape[0], *[1] * (image.dim() - 1))
    size = _uniform(axes, *OOD_CONTRAST, generator)
    sign = 1 - 2 * (torch.rand(axes, generator=generator, device=generator.device) < 0.5).float()
    factor = (sign * size).exp().to(image)  # (C, 1...)
    noise = torch.randn(image.shape, generator=generator, device=generator.device).to(image)
    mean = image.mean(tuple(range(1, image.dim())), keepdim=True)
    other = mean + factor * (image - mean) + OOD_NOISE_STD * noise
    return severity * other + (1 - severity) * image


def bias_field(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Smooth gain of a receiver coil, applied above the darkest value $l$.

    $$\hat x = x + (x - l)\,(3^{\,s f} - 1), \quad
      f(v) \propto \sum_{0 < |k|,\ k_a \le 2} a_k \prod_a \cos(\pi k_a u_a), \quad
      \max_v |f(v)| = 1$$

    with normal $a_k$ and $u \in (0, 1)$ across the image. All channels share the gain.
    """
    sides = image.shape[1:]
    waves = (BIAS_ORDER + 1,) * len(sides)
    field = torch.randn(waves, generator=generator, device=generator.device).to(image)
    field[(0,) * len(sides)] = 0  # a constant gain is not a bias
    for side in sides:
        position = (torch.arange(side, device=image.device, dtype=image.dtype) + 0.5) / side
        number = torch.arange(BIAS_ORDER + 1, device=image.device, dtype=image.dtype)
        cosines = torch.cos(math.pi * number[:, None] * position)  # (waves, side)
        field = torch.tensordot(field, cosines, ([0], [0]))  # the new axis comes last
    field = field / field.abs().max().clamp(min=1e-6)
    low, _ = intensity_range(image)
    return image + (image - low) * torch.expm1(severity * math.log(MAX_GAIN) * field)


def motion_ghosts(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Ghosts of a body that moved while every $p$-th line of k-space was measured.

    $$\hat x = x + s\, \mathcal{F}^{-1}\big[1[p \mid k]\,(e^{-2 \pi i k d} - 1)\,
      \mathcal{F} x\big]$$

    along a random wide axis, for a shift $d$ of 5 to 10 % of its side and $p$ of 2, 3 or 4. A scan
    averages several acquisitions, and the body moved in a fraction $s$ of them.
    """
    axes = wide_axes(list(image.shape[1:]))
    axis = 1 + axes[_choice(len(axes), generator)]
    period = GHOST_PERIODS[_choice(len(GHOST_PERIODS), generator)]
    shift = _uniform((), *GHOST_SHIFT, generator).to(image) * (1 - 2 * _choice(2, generator))
    side = image.shape[axis]
    line = torch.fft.fftfreq(side, 1 / side, device=image.device, dtype=image.dtype)
    rotation = torch.polar(torch.ones_like(line), -2 * math.pi * line * shift) - 1
    change = torch.where(line % period == 0, rotation, 0)  # (side,)
    spectrum = torch.fft.fft(image.movedim(axis, -1)) * change
    ghosts: Tensor = torch.fft.ifft(spectrum).real.movedim(-1, axis)
    return image + severity * ghosts


def spikes(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Stripes across the image, each from one corrupted value in k-space.

    $$\hat x = x + s\, \sigma \sum_{j=1}^{3} \cos(2 \pi\, q_j \cdot v + \phi_j)$$

    with the standard deviation $\sigma$ of a channel, random phases, and frequencies $|q_{ja}|$ of
    0.05 to 0.35 cycles per voxel along each axis. Each channel is acquired separately, so each has
    its own spikes.
    """
    channels, *sides = image.shape
    stripes = torch.zeros_like(image)
    for _ in range(SPIKES):
        angle = 2 * math.pi * _uniform((channels,), 0, 1, generator).to(image)
        angle = angle.view(channels, *[1] * len(sides))
        for axis, side in enumerate(sides):
            sign = 1 - 2 * _choice(2, generator)
            cycles = sign * _uniform((channels,), *SPIKE_FREQUENCY, generator).to(image)
            position = torch.arange(side, device=image.device, dtype=image.dtype)
            along = 2 * math.pi * cycles[:, None] * position  # (C, side)
            shape = [channels, *[1] * len(sides)]
            shape[1 + axis] = side
            angle = angle + along.view(shape)
        stripes += angle.cos()
    return image + severity * SPIKE_AMPLITUDE * channel_std(image) * stripes


def blur_artifact(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    """Convolve the wide axes with a Gaussian of $3 s$ voxels; edge values are replicated."""
    return gaussian_blur(image, MAX_BLUR * severity)


def truncate_kspace(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""Reduce the resolution of the wide axes by $1 + 3 s$ and keep the grid.

    $$\hat x = \mathcal{C}^{-1}\big[1[k_a < N_a / (1 + 3 s)]\ \mathcal{C} x\big]$$

    with the cosine transform $\mathcal{C}$: the Fourier transform of the image and its mirror
    image. It removes high frequencies like a scan with fewer lines and zero-filled k-space,
    including slight ringing at edges.
    """
    for axis in wide_axes(list(image.shape[1:])):
        side = image.shape[1 + axis]
        kept = max(1, round(side / (1 + (MAX_DOWNSAMPLING - 1) * severity)))
        if kept < side:
            lines = image.movedim(1 + axis, -1)
            spectrum = torch.fft.rfft(torch.cat([lines, lines.flip(-1)], -1))
            spectrum[..., kept:] = 0
            lines = torch.fft.irfft(spectrum, n=2 * side)[..., :side]
            image = lines.movedim(-1, 1 + axis)
    return image


def metal_streaks(image: Tensor, severity: float, generator: torch.Generator) -> Tensor:
    r"""A bright piece of metal with bright and dark streaks in the plane of the slices.

    $$\hat x = x + s\, \sigma\, h(z) \Big[6\, e^{-(r / r_m)^4} + 2.5\, e^{-r / R}
      \sum_{j=1}^{14} (-1)^j w_j\, e^{-d_j^2 / 2 b(r)^2}\Big]$$

    with the distance $r$ from the metal near the center of the image, and the distances $d_j$ from
    lines through it whose width $b$ grows with $r$. Across slices, $h$ is a Gaussian around the
    metal. The plane is that of the first two wide axes. It resembles beam hardening in CT but does
    not simulate it.
    """
    sides = list(image.shape[1:])
    axes = wide_axes(sides)
    first, second = axes[:2] if len(axes) > 1 else (0, 1)
    size = (sides[first] + sides[second]) / 2
    middle = _uniform((len(sides),), 0.3, 0.7, generator)
    tilt = _uniform((), 0, math.pi, generator)
    jitter, weight = _uniform((2, STREAKS), 0.4, 1.0, generator).to(image)
    offsets = []  # voxels from the metal along each axis, (1..., side, ...1) each
    for axis, side in enumerate(sides):
        position = torch.arange(side, device=image.device, dtype=image.dtype)
        shape = [1] * len(sides)
        shape[axis] = side
        offsets.append((position - middle[axis].item() * side).view(shape))
    radius = torch.hypot(offsets[first], offsets[second])
    width = 0.008 * size + 0.025 * radius
    streaks = torch.zeros_like(radius)
    for index in range(STREAKS):
        angle = tilt.to(image) + math.pi * (index + jitter[index]) / STREAKS
        distance = angle.cos() * offsets[first] + angle.sin() * offsets[second]
        profile = (-0.5 * (distance / width) ** 2).exp()
        streaks += (-1) ** index * weight[index] * profile
    field = METAL_AMPLITUDE * (-((radius / (0.025 * size)) ** 4)).exp()
    field = field + STREAK_AMPLITUDE * (-radius / (0.4 * size)).exp() * streaks
    for axis, side in enumerate(sides):
        if axis not in (first, second):
            field = field * (-0.5 * (offsets[axis] / (0.2 * side)) ** 2).exp()
    return image + severity * channel_std(image) * field


ARTIFACTS: dict[str, Artifact] = {
    "gamma": out_of_distribution,
    "bias-field": bias_field,
    "ghosts": motion_ghosts,
    "spikes": spikes,
    "blur": blur_artifact,
    "low-resolution": truncate_kspace,
    "streaks": metal_streaks,
}


def require_severity(severity: float) -> None:
    if not 0 <= severity <= 1:
        raise InputError(
            f"severity {severity} is outside [0, 1]: 0 leaves the image unchanged, 1 is the worst. "
            "Choose severities in between, for example 0.2 0.6 1."
        )


def channel_std(image: Tensor) -> Tensor:
    """Return the standard deviation of each channel, (C, 1...)."""
    return image.std(tuple(range(1, image.dim())), correction=0, keepdim=True)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return low + (high - low) * drawn


def _choice(count: int, generator: torch.Generator) -> int:
    drawn = torch.randint(count, (), generator=generator, device=generator.device)
    return int(drawn.item())
