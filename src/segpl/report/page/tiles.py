"""A single slice with its overlay as one picture."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageColor

from segpl.report.page.slices import CaseArrays, MaskArrays, jpeg_url, layers_of, planes
from segpl.report.pictures import gray

TILE_SIDE = 288  # pixels of the longer side
TILE_QUALITY = 80
STRENGTH = 0.5  # of the overlay


def tile_url(case: CaseArrays, mask: MaskArrays, reference: MaskArrays) -> str:
    """The slice with the most foreground; without a label, `reference` decides which one."""
    _, turn, (height, width) = planes(case.grid)[0]
    _, values, colors = next(layers_of(case, mask))  # errors, or the prediction
    wanted = turn(reference.prediction if case.truth is None else case.truth)
    counts = np.count_nonzero(wanted, axis=(1, 2))
    place = int(counts.argmax()) if counts.any() else len(wanted) // 2
    picture, shown = turn(gray(case.image))[place], turn(values)[place]
    sides = np.array([picture.shape[0] * height, picture.shape[1] * width])
    down, across = (max(1, round(side)) for side in TILE_SIDE * sides / sides.max())
    rgb = np.repeat(resized(picture, down, across)[..., None], 3, axis=-1)
    for index, (color, _) in enumerate(colors, 1):
        # resized masks are smooth, so edges blend into the image
        cover = STRENGTH / 255 * resized(255 * (shown == index), down, across)[..., None]
        rgb = (1 - cover) * rgb + cover * np.array(ImageColor.getrgb(color))
    return jpeg_url(np.rint(rgb).astype(np.uint8), TILE_QUALITY)


def resized(slice_: np.ndarray, down: int, across: int) -> np.ndarray:
    picture = Image.fromarray(np.ascontiguousarray(slice_).astype(np.uint8))
    return np.asarray(picture.resize((across, down), Image.Resampling.BICUBIC), np.float64)
