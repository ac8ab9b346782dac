"""Slices of one case as pictures: image, truth, predictions and uncertainty.

A volume is cut along its three axes. All slices of one axis are tiled into one picture, a sheet;
all predictions of a case share the sheets of its image.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor

from segpl.data.readers import Grid
from segpl.display import class_color

AnyArray = NDArray[Any]
# Okabe and Ito's palette for color-blind readers; these three also differ in lightness
ERROR_COLORS = {
    "true positive": "#F0E442",
    "false positive": "#D55E00",
    "false negative": "#56B4E9",
}
WINDOW_VOXELS = 2**20  # percentiles of a larger image use an evenly spaced subset
JPEG_QUALITY = 60
PICTURE_SCALE = 4  # a 2D image has a single slice, which may have so many times longer sides
SHADES = 8  # of uncertainty
UNCERTAIN = "#FF5FD2"
TILE_SIDE = 288  # pixels of the longer side
TILE_QUALITY = 80
STRENGTH = 0.5  # of the overlay of a tile
LAYERS = {
    "errors": "errors",
    "truth": "ground truth",
    "prediction": "prediction",
    "uncertainty": "uncertainty",
}


@dataclass(frozen=True, slots=True, eq=False)
class CaseArrays:
    """The image of a case and, if it is known, its label."""

    image: AnyArray  # (*S)
    grid: Grid
    truth: AnyArray | None = None  # (*S) class indices, 0 is background


@dataclass(frozen=True, slots=True, eq=False)
class MaskArrays:
    """One prediction, on the grid of the case."""

    prediction: AnyArray  # (*S) class indices, 0 is background
    uncertainty: AnyArray | None = None  # (*S) in [0, 1]


@dataclass(frozen=True, slots=True)
class View:
    """All slices of one axis, tiled into sheets with `across` slices per row."""

    name: str
    count: int  # slices in the sheets
    total: int  # slices in the volume
    across: int
    down: int
    ratio: float  # width of a slice, relative to its height
    start: int  # the slice with the most foreground
    places: tuple[int, ...]  # index of each slice in the volume
    image: str  # name of a sheet


@dataclass(frozen=True, slots=True)
class Resolution:
    slices: int  # per axis
    side: int  # pixels

    def size(self, shape: Sequence[int], *, is_volume: bool) -> tuple[int, int]:
        """Height and width in pixels, scaled down so that the longer side fits."""
        longest = self.side if is_volume else PICTURE_SCALE * self.side
        scale = min(1.0, longest / max(shape))
        return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def draw_case(
    key: str, case: CaseArrays, masks: Sequence[MaskArrays], resolution: Resolution
) -> tuple[tuple[View, ...], list[tuple[dict[str, str], ...]], dict[str, str]]:
    """The views, the layers of each mask by view (layer -> name of a sheet), and the sheets.

    Names of sheets start with `key`.
    """
    picture = gray(case.image)
    reference = masks[0].prediction if case.truth is None else case.truth
    sheets: dict[str, str] = {}
    views = []
    layers: list[list[dict[str, str]]] = [[] for _ in masks]
    for name, turn, (height, width) in planes(case.grid):
        turned = turn(reference)  # (slices, H, W)
        busiest = busiest_slice(turned)
        places = evenly_spaced(len(turned), resolution.slices)
        size = resolution.size(turned.shape[1:], is_volume=len(case.grid.shape) == 3)
        across = math.ceil(math.sqrt(len(places)))
        view = View(
            name=name,
            count=len(places),
            total=len(turned),
            across=across,
            down=math.ceil(len(places) / across),
            ratio=turned.shape[2] * width / (turned.shape[1] * height),
            start=int(np.abs(np.array(places) - busiest).argmin()),
            places=tuple(places),
            image=f"{key}/{name}",
        )
        views.append(view)
        sheets[view.image] = jpeg_url(_sheet(turn(picture), places, size, across))
        for number, mask in enumerate(masks):
            named = {}
            for layer, values, colors in layers_of(case, mask):
                # the truth is the same for every mask
                named[layer] = f"{view.image}/{layer}" + ("" if layer == "truth" else f"/{number}")
                if named[layer] not in sheets:
                    pixels = _sheet(
                        turn(values), places, size, across, nearest=layer != "uncertainty"
                    )
                    sheets[named[layer]] = palette_url(pixels, colors)
            layers[number].append(named)
    return tuple(views), [tuple(each) for each in layers], sheets


def gray_window(image: NDArray[Any]) -> tuple[float, float]:
    """The intensities shown as black and as white: the 1st and the 99.5th percentile."""
    step = max(1, round((image.size / WINDOW_VOXELS) ** (1 / image.ndim)))
    low, high = np.percentile(image[(slice(None, None, step),) * image.ndim], (1, 99.5))
    return float(low), float(high)


def gray(image: NDArray[Any], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """8-bit gray values, by default in the image's own window."""
    low, high = window or gray_window(image)
    scaled = (np.asarray(image, np.float64) - low) / max(high - low, 1e-9)
    shown: NDArray[np.uint8] = np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
    return shown


def planes(grid: Grid) -> list[tuple[str, Callable[[AnyArray], AnyArray], tuple[float, float]]]:
    """For each view: its name, a function to (slices, H, W), and the pixel size.

    If the file has an orientation, views follow the radiological convention: the patient's right is
    on the left, anterior or superior is up. Otherwise the axes stay as they are stored.
    """
    if len(grid.shape) == 2:
        return [("image", lambda array: array[None], (grid.spacing[0], grid.spacing[1]))]
    forward = 1  # slices run upwards, to the front and to the right
    if grid.affine is None:
        names, spacing = ("axis 3", "axis 2", "axis 1"), grid.spacing

        def upright(array: AnyArray) -> AnyArray:
            return array
    else:
        from nibabel.orientations import apply_orientation, io_orientation

        turns = io_orientation(grid.affine)
        order = np.argsort(turns[:, 0])
        names, forward = ("axial", "coronal", "sagittal"), -1
        spacing = tuple(grid.spacing[int(axis)] for axis in order)

        def upright(array: AnyArray) -> AnyArray:
            turned: AnyArray = apply_orientation(array, turns)
            # RAS axes; pictures start at the far ends
            return turned[::-1, ::-1, ::-1]

    x, y, z = spacing
    return [
        (names[0], lambda array: upright(array).transpose(2, 1, 0)[::forward], (y, x)),
        (names[1], lambda array: upright(array).transpose(1, 2, 0)[::forward], (z, x)),
        (names[2], lambda array: upright(array).transpose(0, 2, 1)[::forward], (z, y)),
    ]


def busiest_slice(stack: AnyArray) -> int:
    """The slice of (slices, H, W) with the most foreground; the middle one without any."""
    counts = np.count_nonzero(stack, axis=(1, 2))
    return int(counts.argmax()) if counts.any() else len(stack) // 2


def evenly_spaced(count: int, most: int) -> list[int]:
    """Up to `most` indices of `count`, both ends included."""
    return [round(place) for place in np.linspace(0, count - 1, min(count, most))]


def layers_of(
    case: CaseArrays, mask: MaskArrays
) -> Iterator[tuple[str, AnyArray, Sequence[tuple[str, float]]]]:
    """Name, palette indices and colors (with opacity) of each overlay."""
    truth, prediction = case.truth, mask.prediction
    if truth is not None:
        yield "errors", errors_of(prediction, truth), [(c, 1.0) for c in ERROR_COLORS.values()]
        yield "truth", *class_layer(truth)
    yield "prediction", *class_layer(prediction)
    if mask.uncertainty is not None:
        shades = np.rint(np.clip(mask.uncertainty, 0, 1) * (SHADES - 1)).astype(np.uint8)
        opacities = [index / (SHADES - 1) for index in range(1, SHADES)]
        yield "uncertainty", shades, [(UNCERTAIN, opacity) for opacity in opacities]


def errors_of(prediction: AnyArray, truth: AnyArray) -> NDArray[np.uint8]:
    """1: correct foreground, 2: false positive or another class, 3: false negative."""
    errors = np.zeros(truth.shape, np.uint8)
    errors[(prediction != 0) & (prediction == truth)] = 1
    errors[(prediction != 0) & (prediction != truth)] = 2
    errors[(prediction == 0) & (truth != 0)] = 3
    return errors


def class_layer(values: AnyArray) -> tuple[NDArray[np.uint8], list[tuple[str, float]]]:
    count = int(values.max(initial=0))
    colors = [(class_color(index), 1.0) for index in range(min(count, 255))]
    return np.clip(values, 0, 255).astype(np.uint8), colors


def _sheet(
    stack: AnyArray,
    places: Sequence[int],
    size: tuple[int, int],
    across: int,
    *,
    nearest: bool = False,
) -> NDArray[np.uint8]:
    """The slices at `places`, resized and tiled."""
    height, width = size
    down = math.ceil(len(places) / across)
    sheet = np.zeros((down * height, across * width), np.uint8)
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.BOX
    for index, place in enumerate(places):
        picture = Image.fromarray(np.ascontiguousarray(stack[place]).astype(np.uint8))
        row, column = divmod(index, across)
        tile = sheet[row * height :, column * width :][:height, :width]
        tile[:] = np.asarray(picture.resize((width, height), method))
    return sheet


def jpeg_url(sheet: NDArray[np.uint8], quality: int = JPEG_QUALITY) -> str:
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "jpeg", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def palette_url(sheet: NDArray[np.uint8], colors: Sequence[tuple[str, float]]) -> str:
    """A PNG with a palette: 0 is transparent, every other index has its color and opacity."""
    picture = Image.frombytes("P", sheet.shape[::-1], sheet.tobytes())
    picture.putpalette([0, 0, 0, *(part for name, _ in colors for part in ImageColor.getrgb(name))])
    opacities = bytes([0, *(round(255 * opacity) for _, opacity in colors)])
    buffer = io.BytesIO()
    picture.save(buffer, "png", transparency=opacities)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def tile_url(case: CaseArrays, mask: MaskArrays, reference: MaskArrays) -> str:
    """The slice with the most foreground and its overlay as one picture.

    Without a label, `reference` decides which slice.
    """
    _, turn, (height, width) = planes(case.grid)[0]
    _, values, colors = next(layers_of(case, mask))  # errors, or the prediction
    wanted = turn(reference.prediction if case.truth is None else case.truth)
    place = busiest_slice(wanted)
    picture, shown = turn(gray(case.image))[place], turn(values)[place]
    sides = np.array([picture.shape[0] * height, picture.shape[1] * width])
    down, across = (max(1, round(side)) for side in TILE_SIDE * sides / sides.max())
    rgb = np.repeat(resized(picture, down, across)[..., None], 3, axis=-1)
    for index, (color, _) in enumerate(colors, 1):
        # resized masks are smooth, so edges blend into the image
        cover = STRENGTH / 255 * resized(255 * (shown == index), down, across)[..., None]
        rgb = (1 - cover) * rgb + cover * np.array(ImageColor.getrgb(color))
    return jpeg_url(np.rint(rgb).astype(np.uint8), TILE_QUALITY)


def resized(slice_: AnyArray, down: int, across: int) -> NDArray[np.float64]:
    picture = Image.fromarray(np.ascontiguousarray(slice_).astype(np.uint8))
    return np.asarray(picture.resize((across, down), Image.Resampling.BICUBIC), np.float64)
