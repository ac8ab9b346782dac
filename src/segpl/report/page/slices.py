"""Slices of cases for a page: image, truth, prediction and uncertainty, at a bounded size.

A volume is cut along its three axes. All slices of one axis lie side by side in one picture, a
sheet; sheets of the image are shared by all runs that show the case.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image

from segpl.data.readers import Grid
from segpl.errors import UserError
from segpl.report.figures import FALSE_NEGATIVE, FALSE_POSITIVE, TRUE_POSITIVE, gray

Array = NDArray[Any]
BUDGET = 11 * 2**20  # bytes of all pictures of a page, as they stand in it
# slices of an axis and pixels of a side, tried in turn until all pictures fit
LEVELS = ((32, 192), (24, 160), (16, 128), (12, 96), (8, 64), (4, 48))
TOO_LARGE = "The pictures do not fit into this page."
QUALITY = 60  # of the gray images
# classes, from the palette of Okabe and Ito, those of `ERRORS` last; a ninth begins anew
CLASS_COLORS = (
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#0072B2",
    "#FFFFFF",
    "#F0E442",
    "#56B4E9",
    "#D55E00",
)
ERRORS = (TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE)
SHADES = 8  # of uncertainty
UNSURE = "#FF5FD2"

Layer = Literal["errors", "truth", "prediction", "uncertainty"]


@dataclass(frozen=True, slots=True, eq=False)
class CaseArrays:
    """One case on one grid, with what a run made of it."""

    name: str
    image: Array  # (*S)
    truth: Array  # (*S) indices of classes, 0 is background
    prediction: Array  # (*S)
    grid: Grid
    uncertainty: Array | None = None  # (*S), from 0 to `most`
    most: float = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """All slices of one axis, in sheets of `across` slices beside each other."""

    name: str
    count: int  # of slices in the sheets
    total: int  # of slices in the volume
    across: int
    down: int
    ratio: float  # width of a slice, relative to its height
    start: int  # the slice with the most true foreground
    places: tuple[int, ...]  # of each slice in the volume
    image: str  # names of sheets
    layers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shown:
    word: str  # worst, median, best
    case: str
    score: str
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Browser:
    run: str
    label: str
    seed: int
    cases: tuple[Shown, ...]
    layers: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case to show; its arrays are read when they are needed."""

    run: str
    label: str
    seed: int
    word: str
    score: float
    shared: str  # what tells its image from others
    read: Callable[[], CaseArrays]


def browse(
    wanted: Sequence[Wanted],
    *,
    budget: int = BUDGET,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[Browser], dict[str, str], str]:
    """Browsers, their sheets, and what was done to keep these within the budget.

    `advance` is called once for each case, however often it is drawn.
    """
    if not wanted:
        return [], {}, TOO_LARGE
    drawn: set[int] = set()

    def seen(number: int) -> None:
        if number not in drawn:
            drawn.add(number)
            advance()

    for slices, side in LEVELS:
        made = _at_level(wanted, slices, side, budget, seen)
        if made is not None:
            browsers, sheets = made
            note = (
                f"Volumes are shown by up to {slices} slices of each axis, evenly spaced, at up to "
                f"{side} pixels; the files hold the rest."
            )
            return browsers, sheets, note
    half = [one for one in wanted if one.word in ("worst", "only")]
    if len(half) < len(wanted):
        browsers, sheets, note = browse(half, budget=budget)
        return browsers, sheets, f"For want of space only the worst case is shown. {note}"
    if len(wanted) > 1:
        browsers, sheets, note = browse(wanted[: len(wanted) // 2], budget=budget)
        return browsers, sheets, f"For want of space only some runs are shown. {note}"
    return [], {}, TOO_LARGE


def _at_level(
    wanted: Sequence[Wanted], slices: int, side: int, budget: int, seen: Callable[[int], None]
) -> tuple[list[Browser], dict[str, str]] | None:
    sheets: dict[str, str] = {}
    shown: dict[str, list[Shown]] = {}
    missing: dict[str, list[str]] = {}
    layers: dict[str, set[str]] = {}
    facts: dict[str, tuple[str, int]] = {}
    for number, one in enumerate(wanted):
        facts[one.run] = (one.label, one.seed)
        seen(number)
        shown.setdefault(one.run, [])
        try:
            arrays = one.read()
        except (UserError, OSError, ValueError) as error:
            missing.setdefault(one.run, []).append(f"{one.word} case: {error}")
            continue
        views = tuple(_views(arrays, one.shared, f"{number}", sheets, slices, side))
        layers.setdefault(one.run, set()).update(views[0].layers)
        shown[one.run].append(Shown(one.word, arrays.name, f"{one.score:.3f}", views))
        if _expected(sheets, number + 1, wanted) > budget:
            return None
    order = ("errors", "truth", "prediction", "uncertainty")
    return [
        Browser(
            run,
            *facts[run],
            tuple(cases),
            tuple(layer for layer in order if layer in layers.get(run, ())),
            tuple(missing.get(run, ())),
        )
        for run, cases in shown.items()
    ], sheets


def _expected(sheets: dict[str, str], done: int, wanted: Sequence[Wanted]) -> float:
    """Bytes of all sheets, if those to come are like those that are there.

    An image is stored once, however many runs show it.
    """
    images = {one.shared: 0 for one in wanted}
    layers = 0
    for name, sheet in sheets.items():
        shared = name.rpartition("/")[0]
        if shared in images:
            images[shared] += len(sheet)
        else:
            layers += len(sheet)
    there = [size for size in images.values() if size]
    return sum(there) / max(1, len(there)) * len(images) + layers / done * len(wanted)


def _views(
    arrays: CaseArrays, shared: str, key: str, sheets: dict[str, str], slices: int, side: int
) -> Iterator[View]:
    picture = gray(arrays.image)
    painted = list(_layers(arrays))
    for name, turn, (height, width) in planes(arrays.grid):
        truth = turn(arrays.truth)  # (slices, H, W)
        counts = np.count_nonzero(truth, axis=(1, 2))
        busiest = int(counts.argmax()) if counts.any() else len(truth) // 2
        places = chosen_places(len(truth), slices)
        # a picture of two axes is the only one, and may be larger
        longest = side if len(arrays.grid.shape) == 3 else 2 * side
        size = fitted_size(truth.shape[1:], longest)
        across = math.ceil(math.sqrt(len(places)))
        image = f"{shared}/{name}"
        if image not in sheets:
            sheets[image] = _gray_address(_sheet(turn(picture), places, size, across))
        layers: dict[str, str] = {}
        for layer, values, colors in painted:
            pixels = _sheet(turn(values), places, size, across, nearest=layer != "uncertainty")
            layers[layer] = f"{key}/{name}/{layer}"
            sheets[layers[layer]] = _palette_address(pixels, colors)
        yield View(
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


def planes(
    grid: Grid,
) -> list[tuple[str, Callable[[Array], Array], tuple[float, float]]]:
    """Name, a turn of the array to (slices, H, W), and the size of a pixel, of each view.

    Where the file tells where axes point, as a radiologist looks: the right of the patient is on
    the left, the front or the head is on top. Otherwise the axes are as they are stored.
    """
    if len(grid.shape) == 2:
        return [("picture", lambda array: array[None], (grid.spacing[0], grid.spacing[1]))]
    forward = 1  # slices go up, to the front and to the right
    if grid.affine is None:
        names, spacing = ("axis 3", "axis 2", "axis 1"), grid.spacing

        def upright(array: Array) -> Array:
            return array
    else:
        from nibabel.orientations import apply_orientation, io_orientation

        turns = io_orientation(grid.affine)
        order = np.argsort(turns[:, 0])
        names, forward = ("axial", "coronal", "sagittal"), -1
        spacing = tuple(grid.spacing[int(axis)] for axis in order)

        def upright(array: Array) -> Array:
            turned: Array = apply_orientation(array, turns)
            # of axes to the right, the front and the head; pictures begin at the far ends
            return turned[::-1, ::-1, ::-1]

    x, y, z = spacing
    return [
        (names[0], lambda array: upright(array).transpose(2, 1, 0)[::forward], (y, x)),
        (names[1], lambda array: upright(array).transpose(1, 2, 0)[::forward], (z, x)),
        (names[2], lambda array: upright(array).transpose(0, 2, 1)[::forward], (z, y)),
    ]


def chosen_places(count: int, most: int) -> list[int]:
    """Up to `most` places of `count`, evenly spaced, both ends among them."""
    return [round(place) for place in np.linspace(0, count - 1, min(count, most))]


def fitted_size(shape: Sequence[int], longest: int) -> tuple[int, int]:
    """Height and width in pixels: as stored, or less so that the longer side fits."""
    scale = min(1.0, longest / max(shape))
    return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def _layers(arrays: CaseArrays) -> Iterator[tuple[Layer, Array, Sequence[tuple[str, float]]]]:
    truth, prediction = arrays.truth, arrays.prediction
    errors = np.zeros(truth.shape, np.uint8)
    errors[(prediction != 0) & (prediction == truth)] = 1
    errors[(prediction != 0) & (prediction != truth)] = 2
    errors[(prediction == 0) & (truth != 0)] = 3
    yield "errors", errors, [(color, 1.0) for color in ERRORS]
    classes = [(CLASS_COLORS[index % len(CLASS_COLORS)], 1.0) for index in range(255)]
    for layer, values in (("truth", truth), ("prediction", prediction)):
        most = int(values.max(initial=0))
        yield layer, np.clip(values, 0, 255).astype(np.uint8), classes[:most]  # type: ignore[misc]
    if arrays.uncertainty is not None:
        share = np.clip(arrays.uncertainty / max(arrays.most, 1e-9), 0, 1)
        shades = np.rint(share * (SHADES - 1)).astype(np.uint8)
        yield (
            "uncertainty",
            shades,
            [(UNSURE, index / (SHADES - 1)) for index in range(1, SHADES)],
        )


def _sheet(
    stack: Array,
    places: Sequence[int],
    size: tuple[int, int],
    across: int,
    *,
    nearest: bool = False,
) -> NDArray[np.uint8]:
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


def _gray_address(sheet: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "jpeg", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _palette_address(sheet: NDArray[np.uint8], colors: Sequence[tuple[str, float]]) -> str:
    """0 is transparent, and every other number has its color and its strength."""
    picture = Image.frombytes("P", sheet.shape[::-1], sheet.tobytes())
    table = [0, 0, 0]
    strengths = [0]
    for color, strength in colors:
        table += [round(255 * part) for part in to_rgb(color)]
        strengths.append(round(255 * strength))
    picture.putpalette(table)
    buffer = io.BytesIO()
    bits = max(1, math.ceil(math.log2(len(strengths))))
    picture.save(
        buffer,
        "png",
        transparency=bytes(strengths),
        bits=next(size for size in (1, 2, 4, 8) if size >= bits),
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
