"""TensorBoard events: the numbers of `log.csv`, to be watched while a training runs."""

from __future__ import annotations

import importlib.util
import io
import time
from collections.abc import Mapping
from pathlib import Path

from segpl.errors import InputError
from segpl.files import storage_errors

PREFIX = "events.out.tfevents"  # what TensorBoard looks for


def require_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "train.track is on, but the package tensorboard is not there to write events. Install "
            "it with: pip install segpl[track], or leave train.track off."
        )


class EventLog:
    """Scalars in a folder that TensorBoard reads, each on the disk as soon as it is added.

    Records are written one by one, and not by torch's `SummaryWriter`, which queues them for a
    thread that may write two minutes later: a killed training would lose what `log.csv` has.

    A resumed training writes a new file, since a TensorBoard that is open does not look at an old
    one again, and takes back what came after the step that it goes on from.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        self.folder = folder
        self.after = after  # steps that are done
        self.path: Path | None = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        listed = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=listed))
        with storage_errors(self.folder):
            if self.path is None:
                self.path = self.begin()
            with self.path.open("ab") as handle:
                handle.write(record(event.SerializeToString()))

    def begin(self) -> Path:
        """A new file, the last in the order of names, which is the order of reading."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob(f"{PREFIX}.*")))
        path = self.folder / f"{PREFIX}.{number:06d}.segpl"
        start = SessionLog(status=SessionLog.START)
        opening = [
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            # events from this step on, of whatever file, are to be forgotten
            Event(wall_time=time.time(), step=self.after + 1, session_log=start),
        ]
        with path.open("xb") as handle:
            handle.write(b"".join(record(event.SerializeToString()) for event in opening))
        return path


def record(content: bytes) -> bytes:
    """One record of an event file: length and content, each with a checksum."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(content)
    return written.getvalue()
