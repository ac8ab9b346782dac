"""Predict files: read the next image and write the last mask while the network is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.dicom.write import write_segmentation
from segpl.data.manifest import mask_digest
from segpl.data.masks import keep_largest, label_values, largest_note, voxel_entropy
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image, restore
from segpl.data.readers import Grid, Image, read_image, read_label
from segpl.data.summary import CaseSummary
from segpl.engine.device import is_out_of_memory
from segpl.errors import DivergedError, InputError, StorageError, UserError
from segpl.predict.averaging import Prediction, average_samples
from segpl.predict.familiarity import ScanJudge
from segpl.predict.inputs import Job
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
from segpl.predict.samples import Maps, Predict, RunSampler
from segpl.predict.summary import summarize_case
from segpl.predict.window import predict_windows
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
    window_batch: int = 4,
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
        window_batch: windows per forward pass.
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

    infer = _Inference(predict, plan, tuple(samplers), device, overlap, window_batch, judge)
    plans = _distinct([sampler.plan for sampler in samplers] or [plan])
    record = _Regularly(lambda: folder.record(jobs, kinds, results))

    def after_job() -> None:
        advance()
        record()

    try:
        _pipeline(todo, outputs, missing, infer, plans, largest, results, after_job)
    finally:
        folder.record(jobs, kinds, results)
    if failed := results.failed:
        others = f"; the other predictions are in {out}" if len(failed) < len(jobs) else ""
        reasons = " ".join(f"[{name}] {reason}" for name, reason in failed.items())
        raise IncompleteError(
            f"{len(failed)} of {len(jobs)} image(s) could not be predicted{others}: {reasons}"
        )
    return [outputs[job.name].labels for job in todo]


@dataclass(frozen=True, slots=True, eq=False)
class PredictedImage:
    """A prediction in memory; arrays have the axes of the image, channels first."""

    labels: NDArray[Any] = field(repr=False)  # (*S), numbers of `classes`
    probabilities: Maps = field(repr=False)  # (K, *S); one channel for a single foreground class
    classes: dict[str, int]  # name -> number
    summary: CaseSummary
    entropy: Maps | None = field(default=None, repr=False)  # (K, *S), with samples
    std: Maps | None = field(default=None, repr=False)
    # the labels as an image of nibabel or SimpleITK, if the input was one
    image: Any = field(default=None, repr=False)


def predict_image(
    image: Image,
    predict: Predict,
    plan: Plan,
    *,
    device: torch.device,
    name: str = "",
    overlap: float = 0.5,
    window_batch: int = 4,
    samplers: Sequence[RunSampler] = (),
    largest: Sequence[str] = (),
    judge: ScanJudge | None = None,
) -> PredictedImage:
    """What `predict_jobs` would write for an image in a file; `name` seeds random samples."""
    infer = _Inference(predict, plan, tuple(samplers), device, overlap, window_batch, judge)
    plans = _distinct([sampler.plan for sampler in samplers] or [plan])
    prediction = infer(Job(name, ()), _prepared(image, plans))()
    labels = _chosen_labels(prediction, plan, largest)
    summary = summarize_case(labels, image.grid, plan.classes, prediction.probability)
    return PredictedImage(
        labels=labels,
        probabilities=prediction.probability,
        classes=plan.classes,
        summary=_judged(summary, judge, name),
        entropy=_entropy(prediction) if samplers else None,
        std=prediction.std,
    )


def _judged(summary: CaseSummary, judge: ScanJudge | None, case: str) -> CaseSummary:
    if judge is None:
        return summary
    found = judge.judgments[case]
    return replace(summary, out_of_distribution=found.score, unfamiliar=found.reasons)


class _Regularly:
    """Calls `action` at most every few seconds: for small images it takes longer than the rest."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self.last > SECONDS_BETWEEN_RECORDS:
            self.action()
            self.last = time.monotonic()


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    images: list[NDArray[np.float32]]  # (C, *S), one for each distinct plan
    grid: Grid


@dataclass(frozen=True, slots=True)
class _Inference:
    """Run the network on a loaded image; the function returned does the rest, off the device."""

    predict: Predict
    plan: Plan
    samplers: tuple[RunSampler, ...]
    device: torch.device
    overlap: float
    window_batch: int
    judge: ScanJudge | None = None

    def __call__(self, job: Job, loaded: _Loaded) -> Callable[[], Prediction]:
        images = [torch.from_numpy(image).to(self.device) for image in loaded.images]
        if self.judge:
            self.judge(job.name, images[0], loaded.grid)
        if not self.samplers:
            maps = self.windows(images[0], self.predict, self.plan, self.plan.outputs)
            return lambda: Prediction(restore(maps, loaded.grid, self.plan))

        def on_file_grid(image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
            return restore(self.windows(image, predict, plan, channels), loaded.grid, plan)

        # the runs of an ensemble may have plans of different spacing: average on the file's grid
        plans = [sampler.plan for sampler in self.samplers]
        prepared = [images[_distinct(plans).index(plan)] for plan in plans]
        prediction = average_samples(self.samplers, prepared, job.name, on_file_grid)
        return lambda: prediction

    def windows(self, image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
        whole = predict_windows(
            image,
            predict,
            plan,
            overlap=self.overlap,
            window_batch=self.window_batch,
            outputs=channels,
        )
        if not bool(torch.isfinite(whole).all()):
            raise DivergedError(
                "the network's output is not finite. Check whether training diverged (log.csv), "
                "and predict from an earlier checkpoint."
            )
        result: Maps = whole.cpu().numpy()
        return result


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]


def _pipeline(
    jobs: Sequence[Job],
    outputs: dict[str, OutputFiles],
    missing: dict[str, set[Path]],
    infer: _Inference,
    plans: Sequence[Plan],
    largest: Sequence[str],
    results: Results,
    advance: Callable[[], None],
) -> None:
    """Predict each job while the next is read and the last is written."""

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

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        reading = [reader.submit(_load_job, job, plans) for job in jobs[:1]]
        writing: list[tuple[Job, Future[None]]] = []

        def finish_writing() -> None:
            for job, future in writing:
                with collecting_errors(job):
                    future.result()
                    advance()
            writing.clear()

        for index, job in enumerate(jobs):
            loaded = predict = None
            with collecting_errors(job):
                loaded = reading[0].result()
            # read only one ahead: volumes are large
            ahead = jobs[index + 1 : index + 2]
            reading = [reader.submit(_load_job, following, plans) for following in ahead]
            if loaded is None:
                continue
            with collecting_errors(job):
                predict = infer(job, loaded)
            finish_writing()
            if predict is None:
                continue
            files, paths = outputs[job.name], missing[job.name]
            future = writer.submit(
                _write_job,
                job,
                files,
                paths,
                predict,
                plans[0],
                largest,
                loaded.grid,
                results,
                infer.judge,
            )
            writing.append((job, future))
        finish_writing()


def _load_job(job: Job, plans: Sequence[Plan]) -> _Loaded:
    return _prepared(read_image(job.images, plans[0].dims), plans)


def _prepared(image: Image, plans: Sequence[Plan]) -> _Loaded:
    return _Loaded([prepare_image(image, plan) for plan in plans], image.grid)


def _chosen_labels(prediction: Prediction, plan: Plan, largest: Sequence[str]) -> NDArray[Any]:
    decisive = prediction.probability if prediction.decisive is None else prediction.decisive
    return keep_largest(label_values(decisive, plan), plan.classes, largest)


def _entropy(prediction: Prediction) -> Maps:
    return voxel_entropy(prediction.probability).astype(np.float32)


def _write_job(
    job: Job,
    files: OutputFiles,
    missing: set[Path],
    predict: Callable[[], Prediction],
    plan: Plan,
    largest: Sequence[str],
    grid: Grid,
    results: Results,
    judge: ScanJudge | None,
) -> None:
    prediction = predict()
    for kind, path in files.maps.items():
        if kind == SEGMENTATION or path not in missing:
            continue
        if kind == STD:
            assert prediction.std is not None, "samplers give a standard deviation"
            values = prediction.std
        elif kind == ENTROPY:
            values = _entropy(prediction)
        else:
            values = prediction.probability
        write_probabilities(path, values, job.images[0], grid)
    if files.labels in missing:  # otherwise it may have been corrected by hand
        labels = _chosen_labels(prediction, plan, largest)
        summary = summarize_case(labels, grid, plan.classes, prediction.probability)
        write_labels(files.labels, labels, job.images[0], grid)
        results.summaries[job.name] = _judged(summary, judge, job.name)
    segmentation = files.maps.get(SEGMENTATION)
    if segmentation is not None and segmentation in missing:
        mask = read_label(files.labels, plan.dims).array
        write_segmentation(segmentation, mask, job.images, plan.classes)
    if files.labels in missing:  # last: it marks the files of the job as complete
        results.digests[job.name] = mask_digest(files.labels)
