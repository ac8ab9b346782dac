"""Pictures of the scans in the queue, drawn one at a time and kept on disk.

.segpl/thumbnails/CASE/KEY.jpg   the key changes with the image, its label and its prediction
"""

from __future__ import annotations

import base64
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case
from segpl.data.geometry import reorient_axes
from segpl.data.readers import Grid, read_image_part, read_label_on, read_scan_grid
from segpl.display import CLASS_COLORS
from segpl.errors import StorageError, UserError
from segpl.files import write_atomically
from segpl.labeling.browser_arrays import VIEW, is_volume
from segpl.labeling.label_files import (
    LabelFiles,
    as_file_name,
    file_stamp,
    images_stamp,
    label_stamp,
)
from segpl.labeling.predictions import Predictions
from segpl.report.page.slices import CaseArrays, MaskArrays, busiest_slice, tile_url

WAIT_SECONDS = 0.5  # for another thumbnail; browsers open few connections, and scans need some, too


class Thumbnails:
    """Methods may be called from several threads."""

    def __init__(
        self, folder: Path, files: LabelFiles, predictions: Predictions, dims: int
    ) -> None:
        self.folder, self.files, self.predictions, self.dims = folder, files, predictions, dims
        self.drawing = threading.Lock()  # several scans may not fit in memory

    def key(self, case: Case) -> str:
        """Version of the picture: changes with the image, its label and its prediction."""
        mask = label_stamp(case) or file_stamp(self.predictions.file(case.name))
        parts = (images_stamp(case), mask, self.files.classes.numbers, CLASS_COLORS)
        return sha256(repr(parts).encode()).hexdigest()[:12]

    def read(self, case: Case) -> bytes | None:
        """A JPEG of a slice with the label or the prediction; None while another one is drawn."""
        key = self.key(case)
        path = self.folder / as_file_name(case.name) / f"{key}.jpg"
        with suppress(FileNotFoundError):
            return path.read_bytes()
        if not self.drawing.acquire(timeout=WAIT_SECONDS):
            return None
        try:
            content = self.draw(case)
        finally:
            self.drawing.release()
        with suppress(StorageError):  # the page shows it anyway
            write_atomically(path, lambda draft: draft.write_bytes(content))
            for other in path.parent.glob("*.jpg"):
                if other != path:
                    other.unlink(missing_ok=True)
        return content

    def draw(self, case: Case) -> bytes:
        grid = read_scan_grid(case.images, self.dims)
        mask, part = self.mask(case, grid), tuple(slice(size) for size in grid.shape)
        if is_volume(grid):
            axis = int(reorient_axes((0, 1, 2), grid.affine, VIEW)[2])
            place = grid.shape[axis] // 2
            if mask is not None:
                place = busiest_slice(np.moveaxis(mask, axis, 0))
            part = (*part[:axis], slice(place, place + 1), *part[axis + 1 :])
        values = read_image_part(case.images, self.dims, part).mean(axis=0)
        numbers = np.zeros(values.shape, np.uint8) if mask is None else mask[part]
        if mask is not None and case.label is not None:
            numbers = self.files.classes.indices(numbers, case.label)
        shown = MaskArrays(numbers)
        _, _, content = tile_url(CaseArrays(values, grid), shown, shown).partition(",")
        return base64.b64decode(content)

    def mask(self, case: Case, grid: Grid) -> NDArray[np.integer] | None:
        """Numbers of the label file, or classes of the prediction."""
        if case.label is None:
            found = self.predictions.stored(case.name, grid.shape)
            return None if found is None else found[0]
        with suppress(UserError):  # reported when the scan is opened
            return read_label_on(grid, case).array
        return None
