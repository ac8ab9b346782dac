"""Slices of cases for a page: image, truth, prediction and uncertainty, at a bounded size.

A volume is cut along its three axes. All slices of one axis are tiled into one picture, a sheet;
runs that show the same case share the sheets of its image.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image

from segpl.data.readers import Grid
from segpl.display import CLASS_COLORS
from segpl.errors import UserError
from segpl.report.figures import ERROR_COLORS, gray

AnyArray = NDArray[Any]
# slices per axis and pixels per side; the first level at which all cases fit is used
LEVELS = ((32, 192), (24, 160), (16, 128), (12, 96), (8, 64), (4, 48))
JPEG_QUALITY = 60
SHADES = 8  # of uncertainty
UNCERTAIN = "#FF5FD2"
LAYERS = {
    "errors": "errors",
    "truth": "ground truth",
    "prediction": "prediction",
    "uncertainty": "uncertainty",
}


@dataclass(frozen=True, slots=True, eq=False)
class CaseArrays:
    """One case and its prediction, on one grid."""

    name: str
    image: AnyArray  # (*S)
    truth: AnyArray  # (*S) class indices, 0 is background
    prediction: AnyArray  # (*S)
    grid: Grid
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
    layers: dict[str, str] = field(default_factory=dict)  # layer -> name of a sheet


@dataclass(frozen=True, slots=True)
class ShownCase:
    rank: str  # worst, median, best
    case: str
    score: str
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Browser:
    """The cases that a page shows of one run."""

    run: str
    label: str
    seed: int
    cases: tuple[ShownCase, ...]
    missing: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        known = {layer for case in self.cases for layer in case.views[0].layers}
        return tuple(layer for layer in LAYERS if layer in known)


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """A case to show; its arrays are read when they are needed."""

    run: str
    label: str
    seed: int
    rank: str
    score: float
    image_key: str  # requests with the same key show the same image
    read: Callable[[], CaseArrays]


def browse(
    requests: Sequence[CaseRequest],
    *,
    budget: int,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[Browser], dict[str, str], str]:
    """Browsers, their sheets as data URLs, and a note about the resolution.

    The sheets stay below `budget` bytes: the resolution is chosen by the first case that can be
    read, and cases that no longer fit are left out.
    """
    level = _level(requests, budget)
    sheets: dict[str, str] = {}
    shown: dict[str, list[ShownCase]] = {}
    missing: dict[str, list[str]] = {}
    used, left_out = 0, 0
    # worst cases first: if space runs out, every run still shows one
    order = sorted(
        range(len(requests)), key=lambda place: requests[place].rank not in ("worst", "only")
    )
    for place in order:
        one = requests[place]
        try:
            arrays = one.read()
            views, made = _views(arrays, one.image_key, str(place), level, sheets)
        except (UserError, OSError, ValueError) as error:
            missing.setdefault(one.run, []).append(f"{one.rank} case: {error}")
            continue
        finally:
            advance()
        size = sum(map(len, made.values()))
        if used + size > budget:
            left_out += 1
            continue
        used += size
        sheets |= made
        shown.setdefault(one.run, []).append(
            ShownCase(one.rank, arrays.name, f"{one.score:.3f}", views)
        )
    facts = {one.run: (one.label, one.seed) for one in requests}
    browsers = [
        Browser(run, *fact, tuple(shown.get(run, ())), tuple(missing.get(run, ())))
        for run, fact in facts.items()
        if run in shown or run in missing
    ]
    note = (
        f"Up to {level[0]} evenly spaced slices per axis, at most {level[1]} pixels per side."
        if shown
        else ""
    )
    if left_out:
        note += f" {left_out} of {len(requests)} cases are left out to limit the size of the page."
    return browsers, sheets, note.strip()


def _level(requests: Sequence[CaseRequest], budget: int) -> tuple[int, int]:
    """The finest resolution at which all cases fit, if they are like the first one."""
    for one in requests:
        try:
            arrays = one.read()
        except (UserError, OSError, ValueError):
            continue
        for level in LEVELS:
            _, made = _views(arrays, one.image_key, "0", level, {})
            if len(requests) * sum(map(len, made.values())) <= budget:
                return level
        break
    return LEVELS[-1]


def _views(
    arrays: CaseArrays,
    image_key: str,
    key: str,
    level: tuple[int, int],
    known: dict[str, str],
) -> tuple[tuple[View, ...], dict[str, str]]:
    """The views of a case, and the sheets that are not `known` yet."""
    slices, side = level
    picture = gray(arrays.image)
    made: dict[str, str] = {}
    views = []
    for name, turn, (height, width) in planes(arrays.grid):
        truth = turn(arrays.truth)  # (slices, H, W)
        counts = np.count_nonzero(truth, axis=(1, 2))
        busiest = int(counts.argmax()) if counts.any() else len(truth) // 2
        places = evenly_spaced(len(truth), slices)
        # a 2D image has a single view, which may be larger
        size = fit_size(truth.shape[1:], side if len(arrays.grid.shape) == 3 else 2 * side)
        across = math.ceil(math.sqrt(len(places)))
        image = f"{image_key}/{name}"
        if image not in known:
            made[image] = _jpeg_url(_sheet(turn(picture), places, size, across))
        layers: dict[str, str] = {}
        for layer, values, colors in _layers(arrays):
            nearest = layer != "uncertainty"
            pixels = _sheet(turn(values), places, size, across, nearest=nearest)
            layers[layer] = f"{key}/{name}/{layer}"
            made[layers[layer]] = _palette_url(pixels, colors)
        views.append(
            View(
                name=name,
                count=len(places),
                total=len(truth),
                across=across,
                down=math.ceil(len(places) / across),
                ratio=truth.shape[2] * width / (truth.shape[1] * height),
                start=int(np.abs(np.array(places) - busiest).argmin()),
                places=tuple(places),
                image=image,
                layers=layers,
            )
        )
    return tuple(views), made


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


def evenly_spaced(count: int, most: int) -> list[int]:
    """Up to `most` indices of `count`, both ends included."""
    return [round(place) for place in np.linspace(0, count - 1, min(count, most))]


def fit_size(shape: Sequence[int], longest: int) -> tuple[int, int]:
    """Height and width in pixels, scaled down so that the longer side fits."""
    scale = min(1.0, longest / max(shape))
    return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def _layers(arrays: CaseArrays) -> Iterator[tuple[str, AnyArray, Sequence[tuple[str, float]]]]:
    """Name, palette indices and colors (with opacity) of each overlay."""
    truth, prediction = arrays.truth, arrays.prediction
    errors = np.zeros(truth.shape, np.uint8)
    errors[(prediction != 0) & (prediction == truth)] = 1
    errors[(prediction != 0) & (prediction != truth)] = 2
    errors[(prediction == 0) & (truth != 0)] = 3
    yield "errors", errors, [(color, 1.0) for color in ERROR_COLORS.values()]
    classes = [(CLASS_COLORS[index % len(CLASS_COLORS)], 1.0) for index in range(255)]
    for layer, values in (("truth", truth), ("prediction", prediction)):
        most = int(values.max(initial=0))
        yield layer, np.clip(values, 0, 255).astype(np.uint8), classes[:most]
    if arrays.uncertainty is not None:
        shades = np.rint(np.clip(arrays.uncertainty, 0, 1) * (SHADES - 1)).astype(np.uint8)
        opacities = [index / (SHADES - 1) for index in range(1, SHADES)]
        yield "uncertainty", shades, [(UNCERTAIN, opacity) for opacity in opacities]


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
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = (
            np.asarray(picture.resize((width, height), method))
        )
    return sheet


def _jpeg_url(sheet: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "jpeg", quality=JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _palette_url(sheet: NDArray[np.uint8], colors: Sequence[tuple[str, float]]) -> str:
    """A PNG with a palette: 0 is transparent, every other index has its color and opacity."""
    picture = Image.frombytes("P", sheet.shape[::-1], sheet.tobytes())
    table = [0, 0, 0]
    opacities = [0]
    for color, opacity in colors:
        table += [round(255 * part) for part in to_rgb(color)]
        opacities.append(round(255 * opacity))
    picture.putpalette(table)
    buffer = io.BytesIO()
    bits = max(1, math.ceil(math.log2(len(opacities))))
    picture.save(
        buffer,
        "png",
        transparency=bytes(opacities),
        bits=next(size for size in (1, 2, 4, 8) if size >= bits),
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
