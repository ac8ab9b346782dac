"""Predict files: read the next image and write the last mask while the network is busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from segpl.data.dicom.write import write_segmentation
from segpl.data.manifest import mask_digest
from segpl.data.masks import largest_note
from segpl.data.plan import Plan
from segpl.data.readers import Grid, read_image, read_label
from segpl.engine.device import is_out_of_memory
from segpl.errors import DivergedError, InputError, StorageError, UserError
from segpl.predict.familiarity import ScanJudge
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
    Results,
)
from segpl.predict.samples import Predict, RunSampler
from segpl.predict.writers import write_labels, write_probabilities

SECONDS_BETWEEN_RECORDS = 2.0


class IncompleteError(InputError):
    """Some images could not be predicted; the others were."""


def predict_jobs(
    jobs: Sequence[Job],
    predict: Predict,
    plan: Plan,
    out: Path,
    *,
    device: torch.device,
    run: str = "",
    probabilities: bool = False,
    overwrite: bool = False,
    overlap: float = 0.5,
    samplers: Sequence[RunSampler] = (),
    largest: Sequence[str] = (),
    seen: Mapping[str, str] | None = None,
    judge: ScanJudge | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write a mask for each job into `out`; returns the masks written.

    Existing outputs are skipped, or with `overwrite` replaced one by one. A broken input does not
    stop the others; it is reported at the end. `predictions.json` records the `run` and the
    classes; `cases.csv` has the volumes of all masks in the folder.

    Args:
        jobs: images to predict.
        predict: network windows (B, C, *patch) to probabilities (B, K, *patch).
        plan: plan of the run.
        out: output folder.
        device: device of the network.
        run: identity of the run; masks of other runs are never skipped.
        probabilities: also write probabilities, into `out/probabilities`.
        overwrite: replace existing outputs.
        overlap: overlap of neighboring windows, as a fraction of their size.
        samplers: average their samples instead of calling `predict`, and write maps of entropy and
            standard deviation into `out/uncertainty`.
        largest: classes that keep only their largest component.
        seen: cases that the run has seen the label of, and in which role.
        judge: tells which scans are unlike the training images.
        advance: called once per finished job.
    """
    folder = OutputFolder(out, plan, run + largest_note(largest))
    kinds = ((PROBABILITIES,) if probabilities else ()) + (UNCERTAINTY if samplers else ())
    missing = folder.claim(jobs, kinds, overwrite=overwrite)
    outputs = {job.name: folder.files(job, kinds) for job in jobs}
    todo = [job for job in jobs if job.name in missing]
    for _ in range(len(jobs) - len(todo)):
        advance()
    # before the first prediction, so that an interrupted command leaves no unlisted files
    results = Results(seen=seen or {})
    folder.record(jobs, kinds, results)

    infer = Inference(
        predict, plan, tuple(samplers), device, overlap, judge, tuple(largest), probabilities
    )
    record = _Regularly(lambda: folder.record(jobs, kinds, results))

    def after_job() -> None:
        advance()
        record()

    try:
        _pipeline(todo, outputs, missing, infer, results, after_job)
    finally:
        folder.record(jobs, kinds, results)
    if failed := results.failed:
        others = f"; the other predictions are in {out}" if len(failed) < len(jobs) else ""
        reasons = " ".join(f"[{name}] {reason}" for name, reason in failed.items())
        raise IncompleteError(
            f"{len(failed)} of {len(jobs)} image(s) could not be predicted{others}: {reasons}"
        )
    return [outputs[job.name].labels for job in todo]


class _Regularly:
    """Calls `action` at most every few seconds: for small images it takes longer than the rest."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self.last > SECONDS_BETWEEN_RECORDS:
            self.action()
            self.last = time.monotonic()


def _pipeline(
    jobs: Sequence[Job],
    outputs: dict[str, OutputFiles],
    missing: dict[str, set[Path]],
    infer: Inference,
    results: Results,
    advance: Callable[[], None],
) -> None:
    """Predict each job while other scans are read and written, as far as memory allows."""

    @contextmanager
    def collecting_errors(job: Job) -> Iterator[None]:
        try:
            yield
        except (StorageError, DivergedError):
            raise  # the others would fail as well
        except UserError as error:
            results.failed[job.name] = str(error)
            advance()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            results.failed[job.name] = (
                "out of memory. Free some memory, use another --device, or crop the scan."
            )
            advance()

    with ThreadPoolExecutor(MOST_AHEAD) as reader, ThreadPoolExecutor(MOST_AHEAD) as writer:
        reading: deque[Future[PreparedScan]] = deque()
        writing: deque[tuple[Job, Future[None]]] = deque()

        def finish_writing(*, but: int = 0) -> None:
            while len(writing) > but:
                job, future = writing.popleft()
                with collecting_errors(job):
                    future.result()
                    advance()

        for index, job in enumerate(jobs):
            loaded = predict = None
            if not reading:
                reading.append(reader.submit(_load_job, job, infer))
            with collecting_errors(job):
                loaded = reading.popleft().result()
            if loaded is None:
                continue
            grid, most = loaded.grid, infer.most_ahead(loaded)
            for following in jobs[index + 1 + len(reading) : index + 1 + most]:
                reading.append(reader.submit(_load_job, following, infer))
            with collecting_errors(job):
                predict = infer(job.name, loaded)
            del loaded  # before other large arrays are allocated
            finish_writing(but=max(0, most - 1))
            if predict is None:
                continue
            files, paths = outputs[job.name], missing[job.name]
            future = writer.submit(_write_job, job, files, paths, predict, infer, grid, results)
            writing.append((job, future))
            finish_writing(but=most)
        finish_writing()


def _load_job(job: Job, infer: Inference) -> PreparedScan:
    return infer.prepare(read_image(job.images, infer.plan.dims))


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
        write_labels(files.labels, found.labels, job.images[0], grid)
        results.summaries[job.name] = infer.summarize(job.name, found, grid)
    segmentation = files.maps.get(SEGMENTATION)
    if segmentation is not None and segmentation in missing:
        mask = read_label(files.labels, plan.dims).array
        write_segmentation(segmentation, mask, job.images, plan.classes)
    if files.labels in missing:  # last: it marks the files of the job as complete
        results.digests[job.name] = mask_digest(files.labels)
