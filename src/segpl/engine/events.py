"""TensorBoard events: the values of `log.csv`, to follow a run live."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from segpl.errors import InputError
from segpl.files import storage_errors

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


PREFIX = "events.out.tfevents"  # the file name TensorBoard looks for


def require_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "train.track is on, but the package tensorboard is not installed. Install it with "
            "`pip install segpl[track]`, or turn train.track off."
        )


class EventLog:
    """Writes scalars for TensorBoard, each to disk at once.

    A resumed run starts a new file and discards the events after the step it resumes from.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        self.folder = folder
        self.after = after  # step the run resumes from
        self.writer: SummaryWriter | None = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with storage_errors(self.folder):
            if self.writer is None:
                self.number_earlier_files()
                self.writer = SummaryWriter(self.folder, purge_step=self.after + 1)
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            # a killed run must not lose events that log.csv has
            self.writer.flush()

    def number_earlier_files(self) -> None:
        """Make earlier files sort first, because TensorBoard reads files in name order.

        The writer names a file by the clock, which may have moved back.
        """
        for number, path in enumerate(sorted(self.folder.glob(f"{PREFIX}.*"))):
            path.rename(path.with_name(f"{PREFIX}.{number:010d}"))
