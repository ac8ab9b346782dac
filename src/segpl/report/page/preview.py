"""Pictures of predicted masks, and the page and table that list them in the order of review."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor
from scipy import ndimage

import segpl
from segpl.data.manifest import Manifest, PredictedCase, read_manifest
from segpl.data.masks import Mask
from segpl.data.readers import read_grid, read_image, read_label
from segpl.data.summary import CASES, Calibration, Review, quantity, review_order
from segpl.display import class_color
from segpl.errors import MissingFileError, UserError, count_noun
from segpl.files import require_below, write_atomically, write_text
from segpl.report.page.html import require_own_page, templates
from segpl.report.page.slices import AnyArray, evenly_spaced, gray, gray_window, planes
from segpl.report.tables import Table

PREVIEWS = "preview"  # folder of the pictures
PAGE = "index.html"
SHOWN_SLICES = 12
SLICE_SIDE, PICTURE_SIDE = 260, 900  # pixels
LINE = 2  # width of an outline in pixels
SHOWN_CLASSES = 6  # columns of a table
SHOWN_REASON = 16  # characters of a reason for which classes make room
SHORTEST_REASON = 12
COLUMN_GAP = 3  # characters between two columns
DRAWING_THREADS = 4
LARGE_VOXELS = 2**25  # larger scans are drawn one at a time
LARGE_SCAN = threading.Lock()


@dataclass(frozen=True, slots=True)
class Shown:
    """A case on the page."""

    review: Review
    picture: str  # data URL; '' without one
    missing: str  # why there is none


def reviews_of(folder: Path) -> tuple[Manifest, list[Review]]:
    """What `segpl predict` recorded about a folder."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise MissingFileError(f"{folder} contains no predictions.")
    return manifest, review_order(manifest.summaries, manifest.failed)


def review_table(
    manifest: Manifest, reviews: Sequence[Review], most: int | None = None, *, width: int = 100
) -> Table:
    """One row per case, at most `most`; every case, class and reason is in `cases.csv`.

    Classes that would not fit into `width` are left out, and reasons are shortened.
    """
    classes = list(manifest.classes)[1:]
    scores = ["confidence"]
    # below the limit it says little, and reasons need the width
    if any(one.summary and (one.summary.out_of_distribution or 0) > 1 for one in reviews):
        scores.append("out of\ndistribution")
    for count in range(min(len(classes), SHOWN_CLASSES), 0, -1):
        shown = classes[:count]
        columns = ["case", *shown, *scores]
        rows = [_cells(review, shown)[: len(columns)] for review in reviews[:most]]
        if (room := width - _width(columns, rows)) >= SHOWN_REASON:
            break
    for row, review in zip(rows, reviews, strict=False):
        row.append(_first_reason(review.reasons, max(room, SHORTEST_REASON)))
    columns.append("review")
    left_out = []
    if len(rows) < len(reviews):
        left_out.append(count_noun(len(reviews) - len(rows), "more case"))
    if len(shown) < len(classes):
        left_out.append(f"the classes {', '.join(classes[len(shown) :])}")
    more = f" {CASES} has {' and '.join(left_out)}." if left_out else ""
    return Table(
        columns,
        rows,
        note=f"Cases to review first are at the top.{more} "
        f"{confidence_note(manifest.calibration)} It does not replace a review of the masks.",
    )


def confidence_note(calibration: Calibration) -> str:
    if not calibration.shifts:
        return (
            "Confidence is the Dice that the network expects. It is not calibrated, and often too "
            "high."
        )
    cases = count_noun(calibration.cases, "held-out case")
    return f"Confidence is the expected Dice, calibrated on {cases}."


def _cells(review: Review, classes: Sequence[str]) -> list[str]:
    summary = review.summary
    if summary is None:
        return [review.case, *["-"] * (len(classes) + 2)]
    volumes = [quantity(summary.classes[name].volume, summary.unit) for name in classes]
    scores = (summary.confidence, summary.out_of_distribution)
    return [review.case, *volumes, *("-" if one is None else f"{one:.2f}" for one in scores)]


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters of a table with one more column, except those of its cells."""
    lines = [max(column.split("\n"), key=len) for column in columns]
    widths = [max(map(len, cells)) for cells in zip(lines, *rows, strict=True)]
    return 1 + COLUMN_GAP + sum(width + COLUMN_GAP for width in widths)


def _first_reason(reasons: Sequence[str], room: int) -> str:
    """The first reason and how many more there are, in at most `room` characters."""
    first, *others = reasons or ("",)
    text = first + (f"; {len(others)} more" if others else "")
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…"


def write_preview(folder: Path, *, advance: Callable[[], object] = lambda: None) -> Path:
    """Draw every mask of a folder of predictions, and write the page that shows them.

    A picture that is newer than its mask is kept.
    """
    require_below(folder, [folder / PREVIEWS / PAGE])
    require_own_page(folder / PAGE)
    manifest, reviews = reviews_of(folder)

    def show(review: Review) -> Shown:
        picture, missing = "", ""
        if review.summary is not None:
            try:
                picture = _picture_url(folder, review.case, manifest)
            except (UserError, OSError) as error:  # also a mask that was removed
                missing = f"There is no picture: {error}"
        advance()
        return Shown(review, picture, missing)

    with ThreadPoolExecutor(DRAWING_THREADS) as threads:
        shown = list(threads.map(show, reviews))
    classes = list(manifest.classes)[1:]
    text = (
        templates()
        .get_template("preview.html")
        .render(
            version=segpl.__version__,
            title=f"Masks in {'/'.join(folder.resolve().parts[-2:])}",
            table=review_table(manifest, reviews),
            shown=shown,
            legend=[(name, class_color(index)) for index, name in enumerate(classes)],
            quantity=quantity,
        )
    )
    write_text(folder / PAGE, text)
    return folder / PAGE


def _picture_url(folder: Path, case: str, manifest: Manifest) -> str:
    entry = manifest.files[case]
    path, labels = folder / PREVIEWS / f"{case}.png", folder / entry.labels
    if not path.exists() or path.stat().st_mtime_ns < labels.stat().st_mtime_ns:
        numbers = list(manifest.classes.values())[1:]
        is_large = math.prod(read_grid(labels)[0].shape) > LARGE_VOXELS
        with LARGE_SCAN if is_large else nullcontext():
            picture = _mosaic(entry, labels, numbers)
        write_atomically(path, picture.save)
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _mosaic(entry: PredictedCase, mask: Path, numbers: Sequence[int]) -> Image.Image:
    label = read_label(mask)
    dims = label.array.ndim
    _, turn, pixel = planes(label.grid)[0]
    labels = turn(label.array)
    places = shown_slices(labels, numbers)
    labels = labels[places]  # a copy
    del label  # before the image is read: both may be large
    image = read_image([Path(path) for path in entry.images], dims)
    channels = image.array if dims == 2 and len(image.array) == 3 else image.array[:1]
    windows = [gray_window(channel) for channel in channels]
    shown = [
        gray(turn(channel)[places], window)
        for channel, window in zip(channels, windows, strict=True)
    ]
    side = PICTURE_SIDE if dims == 2 else SLICE_SIDE
    sheet = draw_mosaic(np.stack(shown, -1), labels, pixel, numbers, side=side)
    picture = Image.fromarray(sheet)
    if len(channels) > 1:
        return picture
    return picture.quantize(palette=_palette(len(numbers)), dither=Image.Dither.NONE)


def shown_slices(labels: AnyArray, numbers: Sequence[int]) -> list[int]:
    """Slices evenly spaced over the foreground of labels (N, H, W), or over all without one."""
    busy = [index for index, row in enumerate(labels) if np.isin(row, numbers).any()]
    first, last = (busy[0], busy[-1]) if busy else (0, len(labels) - 1)
    return [first + place for place in evenly_spaced(last - first + 1, SHOWN_SLICES)]


def draw_mosaic(
    slices: NDArray[np.uint8],
    labels: AnyArray,
    pixel: tuple[float, float],
    numbers: Sequence[int],
    *,
    side: int,
) -> NDArray[np.uint8]:
    """Slices (N, H, W, 1 or 3) with the outlines of the classes in labels (N, H, W): (Y, X, 3)."""
    height, width = labels.shape[1] * pixel[0], labels.shape[2] * pixel[1]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    across = min(len(labels), 4)
    sheet = np.zeros((math.ceil(len(labels) / across) * size[1], across * size[0], 3), np.uint8)
    for index, (values, label) in enumerate(zip(slices, labels, strict=True)):
        row, column = divmod(index, across)
        tile = sheet[row * size[1] :, column * size[0] :][: size[1], : size[0]]
        picture = Image.fromarray(np.repeat(values, 3 // slices.shape[-1], axis=-1))
        tile[:] = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
        for order, number in enumerate(numbers):
            color = ImageColor.getrgb(class_color(order))
            tile[outline(label == number, size)] = color
    return sheet


def _palette(classes: int) -> Image.Image:
    """Colors of the classes, and grays: a third of the size of an RGB picture."""
    shown = min(classes, 128)
    colors = [part for index in range(shown) for part in ImageColor.getrgb(class_color(index))]
    levels = np.linspace(0, 255, 256 - shown).round().astype(int)
    palette = Image.new("P", (1, 1))
    palette.putpalette([*np.repeat(levels, 3).tolist(), *colors])
    return palette


def outline(mask: Mask, size: tuple[int, int]) -> Mask:
    """The inner boundary of a mask (H, W), enlarged to a size in pixels."""
    large = np.asarray(Image.fromarray(mask.view(np.uint8)).resize(size, Image.Resampling.NEAREST))
    inside = large.astype(bool)
    eroded = ndimage.binary_erosion(inside, iterations=LINE, border_value=1)
    return np.asarray(inside & ~eroded)
