"""Generated T2-weighted slices through a male pelvis; the prostate is the foreground.

Organs and scanner vary from case to case: size, shape and position of the organs, filling of
bladder and rectum, nodules in the gland, brightness of each tissue, shading by the coil, blur and
noise. A few labeled cases show only part of this variety, as in real datasets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Pixels = NDArray[np.float64]
SIDE = 64  # pixels
WARP = 0.04  # standard deviation of the deformation of all organs


@dataclass(frozen=True, slots=True)
class _Tissues:
    """Brightness of each tissue; fat suppression makes fat dark."""

    fat: float
    marrow: float
    muscle: float
    wall: float  # of bladder and rectum
    central: float  # zone of the prostate
    peripheral: float
    urine: float


@dataclass(frozen=True, slots=True)
class _Organ:
    """An ellipse. Lengths are in half image sides, and y points to the back of the body."""

    x: float
    y: float
    width: float  # half axes
    height: float
    power: float = 2.0  # above 2: closer to a rectangle
    angle: float = 0.0  # radians

    def grown(self, margin: float) -> _Organ:
        sides = (self.width + margin, self.height + margin)
        return _Organ(self.x, self.y, *sides, self.power, self.angle)


class _Canvas:
    """An image to paint organs on, in a coordinate system that is deformed smoothly."""

    def __init__(self, rng: np.random.Generator, side: int) -> None:
        self.rng, self.side = rng, side
        axis = (np.arange(side) + 0.5) * 2 / side - 1
        rows, columns = np.meshgrid(axis, axis, indexing="ij")
        self.y = rows + WARP * self.texture(side / 8)
        self.x = columns + WARP * self.texture(side / 8)
        self.image: Pixels = np.zeros((side, side))

    def texture(self, scale: float) -> Pixels:
        """A random field (H, W), smooth over `scale` pixels, with mean 0 and deviation 1."""
        field: Pixels = ndimage.gaussian_filter(self.rng.standard_normal((self.side,) * 2), scale)
        field -= field.mean()
        field /= field.std()
        return field

    def coverage(self, organ: _Organ) -> Pixels:
        """How much of each pixel the organ covers, in [0, 1]."""
        cosine, sine = np.cos(organ.angle), np.sin(organ.angle)
        right, down = self.x - organ.x, self.y - organ.y
        along = np.abs((right * cosine + down * sine) / organ.width)
        across = np.abs((down * cosine - right * sine) / organ.height)
        radius = (along**organ.power + across**organ.power) ** (1 / organ.power)
        depth = (1 - radius) * min(organ.width, organ.height)
        covered: Pixels = np.clip(depth * self.side / 2 + 0.5, 0, 1)
        return covered

    def paint(self, organ: _Organ, value: float | Pixels, *, inside: _Organ | None = None) -> None:
        cover = self.coverage(organ)
        if inside is not None:
            cover = cover * self.coverage(inside)
        self.image += cover * (value - self.image)


def pelvis_phantom(seed: int, side: int = SIDE) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A gray image (H, W) from 0 to 255 and its prostate mask (H, W), determined by the seed."""
    rng = np.random.default_rng(seed)
    draw = rng.uniform
    canvas, tissues = _Canvas(rng, side), _draw_tissues(rng)
    prostate = _Organ(
        x=draw(-0.08, 0.08),
        y=draw(-0.15, 0.05),
        width=draw(0.32, 0.5),
        height=draw(0.26, 0.4),
        power=draw(2.0, 2.8),
        angle=draw(-0.15, 0.15),
    )
    rectum = _draw_rectum(rng, prostate)
    _paint_body(canvas, tissues)
    _paint_bladder(canvas, tissues, prostate)
    _paint_rectum(canvas, tissues, rectum)
    _paint_prostate(canvas, tissues, prostate)
    mask = canvas.coverage(prostate) >= 0.5
    return _scan(canvas, rectum), mask.astype(np.uint8)


def _draw_tissues(rng: np.random.Generator) -> _Tissues:
    fat, central = rng.uniform(0.25, 0.95), rng.uniform(0.35, 0.5)
    return _Tissues(
        fat=fat,
        marrow=fat * rng.uniform(0.6, 0.95),
        muscle=rng.uniform(0.1, 0.25),
        wall=rng.uniform(0.2, 0.4),
        central=central * rng.uniform(0.75, 1.0),
        peripheral=central + rng.uniform(0.15, 0.4),
        urine=rng.uniform(0.8, 1.1),
    )


def _draw_rectum(rng: np.random.Generator, prostate: _Organ) -> _Organ:
    width, height = rng.uniform(0.16, 0.34), rng.uniform(0.13, 0.26)
    gap = rng.uniform(0.0, 0.08)
    back = prostate.y + prostate.height + height + gap
    return _Organ(prostate.x + rng.uniform(-0.12, 0.12), back, width, height)


def _paint_body(canvas: _Canvas, tissues: _Tissues) -> None:
    """Fat, then the hip bones and muscles of both sides and the pubic bone."""
    draw = canvas.rng.uniform
    canvas.image += tissues.fat + 0.06 * canvas.texture(2.0) + 0.05 * canvas.texture(5.0)
    spread = draw(0.92, 1.1)
    for side in (-1, 1):
        lean = side * draw(0.1, 0.35)
        bone = _Organ(side * spread, -0.25, 0.3, 0.5, 3.0, lean)
        obturator = _Organ(side * spread * 0.66, 0.0, draw(0.1, 0.16), 0.55, 2.5, lean)
        gluteus = _Organ(side * spread * 0.62, 0.95, 0.36, 0.25, 2.0, -2 * lean)
        canvas.paint(bone.grown(0.04), 0.05)
        canvas.paint(bone, tissues.marrow)
        canvas.paint(obturator, tissues.muscle * draw(0.9, 1.1))
        canvas.paint(gluteus, tissues.muscle * draw(0.9, 1.1))
    canvas.paint(_Organ(draw(-0.05, 0.05), -1.0, 0.28, 0.22), draw(0.05, 0.2))


def _paint_bladder(canvas: _Canvas, tissues: _Tissues, prostate: _Organ) -> None:
    """Most slices show the bladder in front of the prostate."""
    draw = canvas.rng.uniform
    if draw() > 0.7:
        return
    width, height = draw(0.2, 0.45), draw(0.1, 0.28)
    front = prostate.y - prostate.height - height - draw(-0.06, 0.08)
    bladder = _Organ(prostate.x + draw(-0.1, 0.1), front, width, height)
    canvas.paint(bladder.grown(0.05), tissues.wall)
    canvas.paint(bladder, tissues.urine)


def _paint_rectum(canvas: _Canvas, tissues: _Tissues, rectum: _Organ) -> None:
    """The rectum holds gas, which is dark, or stool."""
    draw = canvas.rng.uniform
    content = draw(0.0, 0.15) if draw() < 0.4 else draw(0.3, 0.75)
    canvas.paint(rectum.grown(draw(0.04, 0.08)), tissues.wall)
    canvas.paint(rectum, content + 0.1 * canvas.texture(2.5))


def _paint_prostate(canvas: _Canvas, tissues: _Tissues, prostate: _Organ) -> None:
    """Levator muscles beside the gland, its capsule, its two zones, and nodules."""
    draw = canvas.rng.uniform
    for side in (-1, 1):
        x = prostate.x + side * (prostate.width + 0.1)
        canvas.paint(_Organ(x, prostate.y + 0.2, 0.035, 0.4, 2.0, side * 0.25), tissues.muscle)
    grain = 0.05 * canvas.texture(1.2) + 0.05 * canvas.texture(3.0)
    canvas.paint(prostate.grown(0.02), 0.7 * tissues.wall)
    canvas.paint(prostate, tissues.peripheral + grain)
    zone = _Organ(
        prostate.x,
        prostate.y - prostate.height * draw(0.2, 0.32),
        prostate.width * draw(0.7, 0.88),
        prostate.height * draw(0.65, 0.8),
        angle=prostate.angle,
    )
    canvas.paint(zone, tissues.central + 1.3 * grain, inside=prostate)
    for _ in range(canvas.rng.integers(4)):
        direction, distance = draw(0, 2 * np.pi), draw(0, 0.5)
        nodule = _Organ(
            zone.x + distance * prostate.width * np.cos(direction),
            zone.y + distance * prostate.height * np.sin(direction),
            draw(0.04, 0.12),
            draw(0.04, 0.12),
        )
        canvas.paint(nodule, tissues.central * draw(0.6, 1.5), inside=zone)


def _scan(canvas: _Canvas, rectum: _Organ) -> NDArray[np.uint8]:
    """The image as a scanner shows it: shading by the coils, blur, noise, and a gray scale."""
    rng, draw = canvas.rng, canvas.rng.uniform
    shading = np.exp(draw(0.05, 0.2) * canvas.texture(canvas.side / 4))
    distance = (canvas.x - rectum.x) ** 2 + (canvas.y - rectum.y) ** 2
    endorectal = 1 + draw(0, 0.5) * np.exp(-distance / draw(0.3, 0.8))
    image = ndimage.gaussian_filter(canvas.image * shading * endorectal, draw(0.3, 1.0))
    noise = draw(0.02, 0.06) * rng.standard_normal((2, *image.shape))
    image = np.hypot(image + noise[0], noise[1]) ** draw(0.8, 1.3)  # magnitude of a complex signal
    low, high = np.percentile(image, (0.5, 99.5))
    gray: Pixels = np.rint(255 * np.clip((image - low) / (high - low), 0, 1))
    return gray.astype(np.uint8)
