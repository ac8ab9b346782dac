"""Predict files: read the next image and write the last mask while the network is busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segpl.data.dicom.write import write_segmentation
from segpl.data.fingerprint import checksum
from segpl.data.manifest import mask_digest
from segpl.data.masks import largest_note
from segpl.data.readers import Grid, prediction_mark, read_image, read_label
from segpl.data.summary import CASES
from segpl.engine.device import is_out_of_memory
from segpl.errors import DivergedError, InputError, StorageError, UserError, count_noun, name_some
from segpl.predict.inference import MOST_AHEAD, Inference, PreparedScan, entropy_of
from segpl.predict.inputs import Job
from segpl.predict.labeling import Segmentation
from segpl.predict.outputs import (
    ENTROPY,
    PROBABILITIES,
    SEGMENTATION,
    STD,
    UNCERTAINTY,
    OutputFiles,
    OutputFolder,
)
from segpl.predict.shards import Results
from segpl.predict.writers import write_labels, write_probabilities

SECONDS_BETWEEN_RECORDS = 2.0
SHOWN_CASES, SHOWN_REASONS = 3, 10  # in the message about failed cases


class IncompleteError(InputError):
    """Some images could not be predicted; the others were."""


# Predicts the jobs, given with the files to write, elsewhere. Gets the kinds of maps, adds what is
# known about the jobs to the results, and calls the last argument after each of them.
Distribute = Callable[
    [OutputFolder, Sequence[str], Mapping[Job, set[Path]], Results, Callable[[], None]], None
]


def predict_jobs(
    jobs: Sequence[Job],
    infer: Inference,
    out: Path,
    *,
    run: str = "",
    overwrite: bool = False,
    seen: Mapping[str, str] | None = None,
    advance: Callable[[], None] = lambda: None,
    distribute: Distribute | None = None,
) -> list[Path]:
    """Write a mask and the maps of `map_kinds` for each job into `out`; returns the masks written.

    Existing outputs of `run` are skipped, or with `overwrite` replaced one by one. A broken input
    is reported after the others are predicted. `seen` has the role of each case whose label the run
    has seen. Without `distribute`, this process predicts the scans.
    """
    folder, kinds = output_folder(infer, out, run), map_kinds(infer)
    missing = folder.claim(jobs, kinds, overwrite=overwrite, advance=advance)
    todo = {job: missing[job.name] for job in jobs if job.name in missing}
    # before the first prediction, so that an interrupted command leaves no unlisted files
    results = Results(seen=seen or {})
    folder.record(jobs, kinds, results)
    next_record = time.monotonic() + SECONDS_BETWEEN_RECORDS

    def after_job() -> None:
        nonlocal next_record
        advance()
        if (start := time.monotonic()) > next_record:
            folder.record(jobs, kinds, results)
            end = time.monotonic()
            # recording takes at most a tenth of the time
            next_record = end + max(SECONDS_BETWEEN_RECORDS, 9 * (end - start))

    try:
        if distribute:
            distribute(folder, kinds, todo, results, after_job)
        else:
            predict_scans(folder, kinds, todo, infer, results, after_job)
    finally:
        folder.record(jobs, kinds, results)
    if failed := results.failed:
        others = f"; the other predictions are in {out}" if len(failed) < len(jobs) else ""
        raise IncompleteError(
            f"{len(failed)} of {count_noun(len(jobs), 'image')} could not be predicted{others}: "
            f"{failure_reasons(failed)}"
        )
    return [folder.files(job, kinds).labels for job in todo]


def output_folder(infer: Inference, out: Path, run: str) -> OutputFolder:
    return OutputFolder(out, infer.plan, run + largest_note(infer.largest), infer.calibration)


def map_kinds(infer: Inference) -> tuple[str, ...]:
    """The kinds of maps to write beside the labels."""
    return ((PROBABILITIES,) if infer.needs_maps else ()) + (UNCERTAINTY if infer.samplers else ())


def failure_reasons(failed: Mapping[str, str]) -> str:
    """Why cases could not be predicted; those with the same reason together."""
    cases: dict[str, list[str]] = {}
    for name, reason in failed.items():
        cases.setdefault(reason, []).append(name)
    shown = [f"[{name_some(names, SHOWN_CASES)}] {reason}" for reason, names in cases.items()]
    more = f" For the others, see {CASES}." if len(shown) > SHOWN_REASONS else ""
    return " ".join(shown[:SHOWN_REASONS]) + more


def predict_scans(
    folder: OutputFolder,
    kinds: Sequence[str],
    todo: Mapping[Job, set[Path]],
    infer: Inference,
    results: Results,
    advance: Callable[[], None] = lambda: None,
    on_written: Callable[[], None] = lambda: None,
) -> None:
    """Predict each job while other scans are read and written, as far as memory allows.

    `todo` has the files to write for each job. `advance` is called when a job ends, `on_written`
    earlier, by the thread that has written its files.
    """
    jobs = list(todo)

    @contextmanager
    def collecting_errors(job: Job) -> Iterator[None]:
        try:
            yield
        except (StorageError, DivergedError):
            raise  # the others would fail as well
        except UserError as error:
            reason = str(error)
            if len(job.images) == 1:  # tables name the case, and equal reasons are shown once
                reason = reason.replace(str(job.images[0]), "the image")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = "out of memory. Free some memory, use another --device, or crop the scan."
        else:
            return
        results.failed[job.name] = reason
        advance()

    with ThreadPoolExecutor(MOST_AHEAD) as reader, ThreadPoolExecutor(MOST_AHEAD) as writer:
        reading: deque[Future[PreparedScan]] = deque()
        writing: deque[tuple[Job, Future[None]]] = deque()

        def write(*arguments: Any) -> None:
            _write_job(*arguments)
            on_written()

        def finish_writing(*, but: int = 0) -> None:
            while len(writing) > but:
                job, future = writing.popleft()
                with collecting_errors(job):
                    future.result()
                    advance()

        for index, job in enumerate(jobs):
            loaded = predict = None
            if not reading:
                reading.append(reader.submit(_load_job, job, infer, results))
            with collecting_errors(job):
                loaded = reading.popleft().result()
            if loaded is None:
                continue
            grid, most = loaded.grid, infer.most_ahead(loaded)
            for following in jobs[index + 1 + len(reading) : index + 1 + most]:
                reading.append(reader.submit(_load_job, following, infer, results))
            with collecting_errors(job):
                predict = infer(job.name, loaded)
            del loaded  # before other large arrays are allocated
            finish_writing(but=max(0, most - 1))
            if predict is None:
                continue
            files, paths = folder.files(job, kinds), todo[job]
            future = writer.submit(write, job, files, paths, predict, infer, grid, results)
            writing.append((job, future))
            finish_writing(but=most)
        finish_writing()


def _load_job(job: Job, infer: Inference, results: Results) -> PreparedScan:
    image = read_image(job.images, infer.plan.dims)
    results.checksums[job.name] = checksum(image.array)
    return infer.prepare(image)


def _write_job(
    job: Job,
    files: OutputFiles,
    missing: set[Path],
    predict: Callable[[], Segmentation],
    infer: Inference,
    grid: Grid,
    results: Results,
) -> None:
    found, plan = predict(), infer.plan
    for kind, path in files.maps.items():
        if kind == SEGMENTATION or path not in missing:
            continue
        assert found.maps is not None, "maps are computed if they are written"
        if kind == STD:
            assert found.maps.std is not None, "samplers give a standard deviation"
            values = found.maps.std
        elif kind == ENTROPY:
            values = entropy_of(found.maps)
        else:
            values = found.maps.probability
        write_probabilities(path, values, job.images[0], grid)
    if files.labels in missing:  # otherwise it may have been corrected by hand
        mark = prediction_mark(found.labels)
        write_labels(files.labels, found.labels, job.images[0], grid, comment=mark)
        results.summaries[job.name] = infer.summarize(job.name, found, grid)
    segmentation = files.maps.get(SEGMENTATION)
    if segmentation is not None and segmentation in missing:
        mask = read_label(files.labels, plan.dims).array
        write_segmentation(segmentation, mask, job.images, plan.classes)
    if files.labels in missing:  # last: it marks the files of the job as complete
        results.digests[job.name] = mask_digest(files.labels)
    results.done.append(job.name)
