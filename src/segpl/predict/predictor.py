"""From files to predictions: predicting one while the next is read and the last is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.plan import Plan
from segpl.data.prepare import labels_of, prepare_image, restore
from segpl.data.readers import Grid, read_image
from segpl.errors import DivergedError, InputError, StorageError, UserError
from segpl.evaluate.uncertainty import binary_entropy
from segpl.files import read_json, storing, write_json
from segpl.predict.components import kept_largest, note_of_largest
from segpl.predict.inputs import Job
from segpl.predict.samples import Answer, Maps, Predict, Sampler, sampled
from segpl.predict.window import predict_windows
from segpl.predict.writers import (
    output_name,
    probabilities_name,
    write_labels,
    write_probabilities,
)

MANIFEST = "predictions.json"


@dataclass(frozen=True, slots=True)
class _Outputs:
    labels: Path
    maps: dict[str, Path]  # of floats: `probabilities`, `entropy`, `std`, as far as asked for

    @property
    def paths(self) -> list[Path]:
        return [self.labels, *self.maps.values()]


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
    samplers: Sequence[Sampler] = (),
    largest: Sequence[str] = (),
    advance: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write a prediction for each job into `out`; returns the label files that were written.

    Existing outputs are skipped unless `overwrite`, which removes them first. Probabilities go to a
    folder of that name. A broken input does not stop the others: it is reported when they are done.
    `predictions.json` says what the numbers mean and which `run` made them. With `samplers` the
    mean of their samples takes the place of `predict`, and maps of entropy and spread go to the
    folder `uncertainty`. Of the classes named in `largest` the labels keep the largest component
    alone.
    """
    run += note_of_largest(largest)  # masks that keep less are not those of the same run
    outputs = {
        job.name: _outputs(job, out, plan, probabilities, uncertainty=bool(samplers))
        for job in jobs
    }
    _refuse_overwriting_inputs(jobs, outputs, out)
    _claim(out, outputs, run, overwrite)
    todo = [
        job
        for job in jobs
        if overwrite or not all(path.exists() for path in outputs[job.name].paths)
    ]
    for _ in range(len(jobs) - len(todo)):
        advance()
    if overwrite:
        _clear(jobs, outputs, plan, out, run)
    # before the first prediction, so that an interrupted command leaves no nameless files
    _record(out, jobs, outputs, plan, run)

    infer = _Inference(predict, plan, tuple(samplers), device, overlap, window_batch)
    plans = _different([sampler.plan for sampler in samplers] or [plan])
    failed = _pipeline(todo, outputs, infer, plans, largest, advance)
    _record(out, [job for job in jobs if job.name not in failed], outputs, plan, run)
    if failed:
        raise InputError(
            f"{len(failed)} of {len(jobs)} image(s) could not be predicted"
            + (f" (the predictions of the others are in {out})" if len(failed) < len(jobs) else "")
            + ": "
            + " ".join(f"[{name}] {why}" for name, why in failed.items())
        )
    return [outputs[job.name].labels for job in todo]


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    images: list[NDArray[np.float32]]  # (C, *S) each, as the plans want it
    grid: Grid


@dataclass(frozen=True, slots=True)
class _Inference:
    """What is known of a loaded image; what is left to do for it need not wait for the device."""

    predict: Predict
    plan: Plan
    samplers: tuple[Sampler, ...]
    device: torch.device
    overlap: float
    window_batch: int

    def __call__(self, job: Job, loaded: _Loaded) -> Callable[[], Answer]:
        images = [torch.from_numpy(image).to(self.device) for image in loaded.images]
        if not self.samplers:
            answer = self.windows(images[0], self.predict, self.plan, self.plan.outputs)
            return lambda: Answer(restore(answer, loaded.grid, self.plan))

        def whole(image: Tensor, predict: Predict, plan: Plan, channels: int) -> Maps:
            return restore(self.windows(image, predict, plan, channels), loaded.grid, plan)

        # on the file's grid at once: runs of an ensemble may have plans of different spacing
        plans = [sampler.plan for sampler in self.samplers]
        prepared = [images[_different(plans).index(plan)] for plan in plans]
        known = sampled(self.samplers, prepared, job.name, whole)
        return lambda: known

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
                "the network answers with numbers that are not finite. Check the run's log.csv "
                "for a training that diverged, and predict from an earlier checkpoint."
            )
        result: Maps = whole.cpu().numpy()
        return result


def _different(plans: Sequence[Plan]) -> list[Plan]:
    """The plans without repetition."""
    return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]


def _pipeline(
    jobs: Sequence[Job],
    outputs: dict[str, _Outputs],
    infer: Callable[[Job, _Loaded], Callable[[], Answer]],
    plans: Sequence[Plan],
    largest: Sequence[str],
    advance: Callable[[], None],
) -> dict[str, str]:
    """Predict each job while the next is read and the last is written; the failures by name."""
    failed: dict[str, str] = {}

    @contextmanager
    def forgiving(job: Job) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise  # the others would fail on the same disk
        except UserError as error:
            failed[job.name] = str(error)
            advance()

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        reading = [reader.submit(_load, job, plans) for job in jobs[:1]]
        writing: list[tuple[Job, Future[None]]] = []

        def finish() -> None:
            for job, future in writing:
                with forgiving(job):
                    future.result()
                    advance()
            writing.clear()

        for index, job in enumerate(jobs):
            ready = None
            with forgiving(job):
                ready = reading[0].result()
            # one ahead and no more, since volumes are large
            reading = [reader.submit(_load, ahead, plans) for ahead in jobs[index + 1 : index + 2]]
            if ready is None:
                continue
            answer = infer(job, ready)
            finish()
            future = writer.submit(_write, job, outputs[job.name], answer, plans[0], largest)
            writing.append((job, future))
        finish()
    return failed


def _load(job: Job, plans: Sequence[Plan]) -> _Loaded:
    image = read_image(job.images, plans[0].dims)
    return _Loaded([prepare_image(image, plan) for plan in plans], image.grid)


def _write(
    job: Job,
    outputs: _Outputs,
    answer: Callable[[], Answer],
    plan: Plan,
    largest: Sequence[str],
) -> None:
    known = answer()
    probability = known.probability
    for name, path in outputs.maps.items():
        if name == "probabilities":
            values = probability
        elif name == "entropy":
            values = binary_entropy(probability).astype(np.float32)
        else:
            assert known.std is not None, "samples have a spread"
            values = known.std
        write_probabilities(path, values, job.images[0])
    decisive = probability if known.decisive is None else known.decisive
    labels = kept_largest(labels_of(decisive, plan), plan.classes, largest)
    write_labels(outputs.labels, labels, job.images[0])


def _outputs(
    job: Job, out: Path, plan: Plan, probabilities: bool, *, uncertainty: bool
) -> _Outputs:
    like = job.images[0]

    def beside(folder: str, name: str) -> Path:
        return out / folder / probabilities_name(name, like, plan.outputs)

    maps = {"probabilities": beside("probabilities", job.name)} if probabilities else {}
    if uncertainty:
        maps |= {kind: beside("uncertainty", f"{job.name}_{kind}") for kind in ("entropy", "std")}
    return _Outputs(out / output_name(job.name, like), maps)


def _refuse_overwriting_inputs(
    jobs: Sequence[Job], outputs: dict[str, _Outputs], out: Path
) -> None:
    sources = {path.resolve() for job in jobs for path in job.images}
    for job in jobs:
        for path in outputs[job.name].paths:
            if path.resolve() in sources:
                raise InputError(
                    f"the prediction for {job.name} would overwrite the image {path}, because the "
                    f"output folder {out} holds the inputs. Choose another --out."
                )


def _manifest(out: Path) -> dict[str, Any] | None:
    path = out / MANIFEST
    if not path.exists():
        return None
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise InputError(
            f"{path} was not written by segpl: it lists no files. Choose another --out."
        )
    return manifest


def _claim(out: Path, outputs: dict[str, _Outputs], run: str, overwrite: bool) -> None:
    """Refuse to skip what another run has predicted, since it would pass for this run's."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, but predictions need a folder. Choose another --out.")
    manifest = _manifest(out)
    known = {} if manifest is None else manifest["files"]
    for name, wanted in outputs.items():
        found = [path for path in wanted.paths if path.exists()]
        if found and name not in known:
            raise InputError(
                f"{found[0]} exists, and no run of segpl has predicted it: it may be a label, and "
                "is neither skipped nor replaced. Choose another --out."
            )
    if manifest is None or overwrite or manifest.get("run") == run:
        return
    # a folder has one list of what its numbers mean, and so holds the masks of one run
    foreign = list(manifest["files"])
    if foreign:
        raise InputError(
            f"{out} holds predictions of another run or other weights, {manifest.get('run')}, "
            f"such as for {foreign[0]}. Choose another --out, or replace them with --overwrite."
        )


def _clear(
    jobs: Sequence[Job], outputs: dict[str, _Outputs], plan: Plan, out: Path, run: str
) -> None:
    """Remove what is to be replaced: after an interruption the rest would pass for this run's.

    Of another run, maps that are not asked for now go too: they do not belong to the new masks.
    """
    manifest = _manifest(out)
    foreign = {} if manifest is None or manifest.get("run") == run else manifest["files"]
    for job in jobs:
        known = foreign.get(job.name, {})
        every = _outputs(job, out, plan, probabilities=True, uncertainty=True)
        left = [path for kind, path in every.maps.items() if kind in known]
        for path in {*outputs[job.name].paths, *left}:
            with storing(path):
                path.unlink(missing_ok=True)


def _record(
    out: Path, jobs: Sequence[Job], outputs: dict[str, _Outputs], plan: Plan, run: str
) -> None:
    """Write the manifest: these jobs, and what the same run has predicted before."""
    manifest = _manifest(out)
    files: dict[str, Any] = {}
    if manifest is not None and manifest.get("run") == run:
        files = {
            name: entry
            for name, entry in manifest["files"].items()
            if (out / entry["labels"]).exists()
        }
    for job in jobs:
        wanted = outputs[job.name]
        entry = files.setdefault(job.name, {})
        entry["images"] = [str(path.resolve()) for path in job.images]
        entry["labels"] = wanted.labels.relative_to(out).as_posix()
        entry |= {kind: path.relative_to(out).as_posix() for kind, path in wanted.maps.items()}
    write_json(
        out / MANIFEST,
        {"run": run, "classes": plan.classes, "ignore": plan.ignore, "files": files},
    )
