"""TensorBoard events: the values of `log.csv`, to follow a run live."""

from __future__ import annotations

import importlib.util
import io
import time
from collections.abc import Mapping
from pathlib import Path

from segpl.errors import InputError
from segpl.files import storage_errors

PREFIX = "events.out.tfevents"  # the file name TensorBoard looks for


def require_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "train.track is on, but the package tensorboard is not installed. Install it with "
            "`pip install segpl[track]`, or turn train.track off."
        )


class EventLog:
    """Writes scalars for TensorBoard, each to disk at once.

    torch's `SummaryWriter` queues records for a background thread that may write them minutes
    later, so a killed run would lose events that `log.csv` has.

    A resumed run starts a new file, because an open TensorBoard does not reread old ones, and
    discards the events after the step it resumes from.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        self.folder = folder
        self.after = after  # step the run resumes from
        self.path: Path | None = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=scalars))
        with storage_errors(self.folder):
            if self.path is None:
                self.path = self.new_file()
            with self.path.open("ab") as handle:
                handle.write(encode_record(event.SerializeToString()))

    def new_file(self) -> Path:
        """Create a file. TensorBoard reads files in name order, so the new one comes last."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob(f"{PREFIX}.*")))
        path = self.folder / f"{PREFIX}.{number:06d}.segpl"
        start = SessionLog(status=SessionLog.START)
        header = [
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            # makes TensorBoard discard events from this step on, in all files
            Event(wall_time=time.time(), step=self.after + 1, session_log=start),
        ]
        with path.open("xb") as handle:
            handle.write(b"".join(encode_record(event.SerializeToString()) for event in header))
        return path


def encode_record(content: bytes) -> bytes:
    """One record of an event file: length and content, each followed by a checksum."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(content)
    return written.getvalue()
