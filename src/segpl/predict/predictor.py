"""From files to predictions: what to predict, and predicting it while the next file is read."""

from __future__ import annotations

import re
from collections import defaultdict
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

from segpl.data.layouts import LAYOUTS, read_dataset
from segpl.data.layouts.base import image_files
from segpl.data.plan import Plan
from segpl.data.prepare import labels_of, prepare_image, restore
from segpl.data.readers import SUFFIXES, Grid, read_image, stem_of, suffix_of
from segpl.errors import DivergedError, InputError, MissingFileError, StorageError, UserError
from segpl.evaluate.uncertainty import binary_entropy
from segpl.files import read_json, write_json
from segpl.predict.samples import Answer, Maps, Predict, Sampler, sampled
from segpl.predict.window import predict_windows
from segpl.predict.writers import (
    output_name,
    probabilities_name,
    write_labels,
    write_probabilities,
)

MANIFEST = "predictions.json"
CHANNEL_LAYOUT = "nnunet"  # every image there ends in the number of its channel
CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


@dataclass(frozen=True, slots=True)
class Job:
    """One image to predict."""

    name: str
    images: tuple[Path, ...]  # one file for each channel, or one file with all of them


def find_inputs(inputs: Sequence[Path], plan: Plan, *, layout: str) -> list[Job]:
    """What to predict in files, folders of images and folders of datasets.

    Of a dataset, its test cases, or all of them where it sets none aside. `layout` is that of the
    dataset of the training: how its files are named, these probably are too.
    """
    files: list[Path] = []
    jobs: list[Job] = []
    for path in inputs:
        if path.is_dir():
            jobs += _folder_jobs(path, plan, layout)
        elif not path.exists():
            raise MissingFileError(f"{path} does not exist. Give an image, or a folder of images.")
        elif not suffix_of(path):
            raise InputError(
                f"{path} is of no known image format. Known suffixes: {', '.join(SUFFIXES)}."
            )
        else:
            files.append(path)
    jobs += _file_jobs(files, plan, layout)
    if not jobs:
        raise InputError("there is nothing to predict. Give an image, or a folder of images.")
    _refuse_duplicates(jobs)
    return jobs


def _folder_jobs(folder: Path, plan: Plan, layout: str) -> list[Job]:
    if files := image_files(folder):
        return _file_jobs(files, plan, layout)
    if not any(folder.iterdir()):
        raise InputError(f"{folder} is empty: there is nothing to predict. Give another folder.")
    is_alike = layout in LAYOUTS.names and LAYOUTS.get(layout)().finds(folder)
    dataset = read_dataset(folder, layout if is_alike else None)
    return [Job(case.name, case.images) for case in dataset.test or dataset.cases]


def _file_jobs(files: Sequence[Path], plan: Plan, layout: str) -> list[Job]:
    """Files one by one, or in groups `case_0000`, `case_0001`, ... of one channel each."""
    alone = [Job(stem_of(path), (path,)) for path in files]
    _refuse_duplicates(alone)
    groups: dict[tuple[Path, str], dict[int, Path]] = defaultdict(dict)
    for path in files:
        match = CHANNEL.fullmatch(stem_of(path))
        if match is None:
            return alone
        groups[path.parent, match["case"]][int(match["channel"])] = path
    wanted = len(plan.channels)
    for (_, name), group in groups.items():
        # a lone _0000 may hold all channels, as colour pictures do; its reader will tell
        if list(group) == [0] or sorted(group) == list(range(wanted)):
            continue
        if layout != CHANNEL_LAYOUT and max(group) >= wanted:
            return alone  # numbers of slices or of frames, not of channels
        found = ", ".join(path.name for path in group.values())
        raise InputError(
            f"case {name} has {len(group)} channel file(s) ({found}), but the run was trained on "
            f"{wanted}: {', '.join(plan.channels)}. Give one file for each, numbered from "
            f"{name}_0000 to {name}_{wanted - 1:04d}."
        )
    return [
        Job(name, tuple(group[channel] for channel in sorted(group)))
        for (_, name), group in groups.items()
    ]


def _refuse_duplicates(jobs: Sequence[Job]) -> None:
    seen: dict[str, Job] = {}
    for job in jobs:
        if job.name in seen:
            raise InputError(
                f"two inputs are named '{job.name}': {seen[job.name].images[0]} and "
                f"{job.images[0]}. Their predictions would be one file; rename one, or predict "
                "them into different folders."
            )
        seen[job.name] = job


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
    advance: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write a prediction for each job into `out`; returns the label files that were written.

    Existing outputs are skipped unless `overwrite`. Probabilities go to a folder of that name. A
    broken input does not stop the others: it is reported when they are done. `predictions.json`
    says what the numbers mean and which `run` made them. With `samplers` the mean of their samples
    takes the place of `predict`, and maps of entropy and spread go to the folder `uncertainty`.
    """
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
    # before the first prediction, so that an interrupted command leaves no nameless files
    _record(out, jobs, outputs, plan, run)

    infer = _Inference(predict, plan, tuple(samplers), device, overlap, window_batch)
    plans = _different([sampler.plan for sampler in samplers] or [plan])
    failed = _pipeline(todo, outputs, infer, plans, advance)
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
            future = writer.submit(_write, job, outputs[job.name], answer, plans[0])
            writing.append((job, future))
        finish()
    return failed


def _load(job: Job, plans: Sequence[Plan]) -> _Loaded:
    image = read_image(job.images, plans[0].dims)
    return _Loaded([prepare_image(image, plan) for plan in plans], image.grid)


def _write(job: Job, outputs: _Outputs, answer: Callable[[], Answer], plan: Plan) -> None:
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
    write_labels(outputs.labels, labels_of(decisive, plan), job.images[0])


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
