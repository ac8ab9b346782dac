"""Load a trained run and predict with it: the Python API behind `segpl predict`."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from numpy.typing import ArrayLike

from segpl.assembly import build_method, open_run_dataset
from segpl.cores import limit_threads
from segpl.data.case import Dataset
from segpl.data.masks import select_classes
from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.data.summary import Calibration
from segpl.display import say
from segpl.engine.acceleration import fuse_networks
from segpl.engine.checkpoint import load_weights, read_checkpoint
from segpl.engine.device import choose_device, memory_format
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.errors import InputError, MissingFileError, UserError, count_noun, in_voxels
from segpl.evaluate.fold_scores import calibrate, read_fold_scores
from segpl.methods.base import Method
from segpl.predict.familiarity import FEWEST_IMAGES, ScanJudge, read_training_images
from segpl.predict.inference import PredictedImage
from segpl.predict.inputs import Job, find_inputs
from segpl.predict.options import PredictKeywords, PredictOptions
from segpl.predict.prepared import PreparedRun, prepare_runs
from segpl.report.run_scores import current_scores
from segpl.settings import Config, read_config, resolve
from segpl.validate.postprocessing import one_component_classes_of, prediction_note


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run folder with its config, plan, split, and the method with its weights."""

    folder: RunFolder
    config: Config
    plan: Plan
    split: Split
    method: Method
    device: torch.device
    checkpoint: str = "last"
    quiet: bool = False
    folds: tuple[Path, ...] = ()  # runs of its cross-validation, if all have been trained
    is_finished: bool = True

    def __repr__(self) -> str:
        plan, split, config = self.plan, self.split, self.config
        patch = "x".join(map(str, plan.patch))
        spacing = " x ".join(f"{size:g}" for size in plan.spacing)
        lines = {
            "method": f"{config.method}, {self.parameters:,} weights, checkpoint {self.checkpoint}",
            "data": config.data.path,
            "channels": ", ".join(plan.channels),
            "classes": ", ".join(f"{name} {number}" for name, number in plan.classes.items()),
            "cases": f"{len(split.labeled)} labeled, {len(split.unlabeled)} unlabeled, "
            f"{len(split.validation)} validation, {len(split.test)} test",
            "patch": f"{in_voxels(patch, plan.dims)} of {spacing}",
            "training": training_line(self.folder, config.train.steps),
            "test Dice": score_line(self.folder, split),
            "device": str(self.device),
        }
        return "\n".join([f"Run {self.path}", *(f"  {key:<10}{lines[key]}" for key in lines)])

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def parameters(self) -> int:
        """Number of trainable weights."""
        return sum(p.numel() for p in self.method.parameters() if p.requires_grad)

    @property
    def identity(self) -> str:
        """Folder, checkpoint and hash of the weights; retraining the folder changes it."""
        return (
            f"{self.path.resolve()}#{self.checkpoint}@{self.folder.weights_hash(self.checkpoint)}"
        )

    @property
    def mirrors(self) -> bool:
        """Whether the run was trained with mirroring."""
        return self.config.augment.mirror > 0

    @property
    def largest(self) -> tuple[str, ...]:
        """Classes whose predictions keep only their largest component."""
        return one_component_classes_of(self.folder, self.checkpoint)

    def predict(
        self,
        inputs: str | Path | Sequence[str | Path] = (),
        *,
        out: str | Path,
        probabilities: bool = False,
        overwrite: bool = False,
        ensemble: Sequence[Run] | None = None,
        **options: Unpack[PredictKeywords],
    ) -> list[Path]:
        """Write a mask for every input and return the files written.

        Probabilities are means over mirrored views if the run was trained with mirroring.

        Args:
            inputs: images, folders or a dataset; by default the test cases of the run.
            out: folder for the masks.
            probabilities: also write the probability of each class.
            overwrite: replace existing masks instead of skipping them.
            ensemble: other runs to average with; also writes uncertainty maps. By default, a run
                that has only been cross-validated averages its folds.
            overlap: overlap of neighboring windows, as a fraction of the window; 0.5 by default.
            samples: number of sampled predictions to average; also writes uncertainty maps.
            by: how to draw samples; by default networks if there are enough, otherwise views.
            seed: seed of the samples; 0 by default.
            fast: predict with a single run and without mirrored views.
            largest: classes that keep only their largest component, or "all" or "none"; by default
                those with one component in every training label, unless validation Dice drops.
        """
        chosen, jobs = PredictOptions(**options), self.jobs(inputs)
        prepared = self.prepare(chosen, ensemble=ensemble, needs_maps=probabilities)
        return prepared.predict(jobs, Path(out), overwrite=overwrite)

    def predict_array(
        self,
        image: Any,
        *,
        spacing: Sequence[float] | None = None,
        affine: ArrayLike | None = None,
        name: str = "",
        ensemble: Sequence[Run] | None = None,
        **options: Unpack[PredictKeywords],
    ) -> PredictedImage:
        """Predict an image in memory; the result equals that for a file with this content.

        Args:
            image: array (*S), with an axis of channels first or last if there are several; or an
                image of nibabel or SimpleITK.
            spacing: voxel size of an array in mm, one number per axis.
            affine: 4x4 matrix of an array to RAS mm, as in NIfTI, instead of `spacing`.
            name: case name; random samples depend on it.
            ensemble: other runs to average with. overlap, samples, by, seed, fast and largest are
                those of `predict`.
        """
        prepared = self.prepare(PredictOptions(**options), ensemble=ensemble, needs_maps=True)
        return prepared.predict_array(image, spacing=spacing, affine=affine, name=name)

    def prepare(
        self, options: PredictOptions, *, ensemble: Sequence[Run] | None, needs_maps: bool
    ) -> PreparedRun:
        """Get ready to predict, with probabilities if `needs_maps`."""
        runs = (self, *self.other_runs(ensemble, fast=options.fast))
        return prepare_runs(runs, options, needs_maps=needs_maps)

    def scan_judge(self) -> ScanJudge | None:
        """Detects scans unlike the training images; None if too few of these were recorded."""
        if not self.folder.familiarity.exists():
            if self.is_finished and not self.quiet:
                say(
                    f"note: {self.path} has no {self.folder.familiarity.name}, so unfamiliar scans "
                    "are not detected."
                )
            return None
        record = read_training_images(self.folder.familiarity)
        if len(record.images) < FEWEST_IMAGES:
            return None
        weights = self.folder.weights_hash(self.checkpoint)
        return ScanJudge(record, self.method.predictors()[0], self.plan, weights)

    def confidence_calibration(self) -> Calibration:
        """From the cross-validation of this run, which scored last checkpoints of equal length."""
        if not self.is_finished or self.checkpoint != "last":
            return Calibration()
        try:
            rows = read_fold_scores(self.folder.folds)
        except InputError as error:
            if not self.quiet:
                say(f"note: the confidence is not calibrated. {error}", style="yellow")
            return Calibration()
        return calibrate([row for row in rows if row.step == self.config.train.steps])

    def other_runs(self, ensemble: Sequence[Run] | None, *, fast: bool) -> Sequence[Run]:
        """The runs to average with."""
        if fast and ensemble:
            raise InputError("--fast uses a single run. Omit --fast or --ensemble.")
        is_final = not self.config.split.folds  # on few labels, folds are worse than this run
        if ensemble is not None or fast or is_final:
            return ensemble or ()
        if self.folds and not self.quiet:
            say(f"Averaging {self.path} and {', '.join(path.name for path in self.folds)}.")
        return self.fold_runs()

    def fold_runs(self) -> list[Run]:
        """The runs of a complete cross-validation."""
        return [
            load_run(path, device=str(self.device), checkpoint=self.checkpoint, quiet=self.quiet)
            for path in self.folds
        ]

    def one_component_classes(self, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
        """Classes reduced to their largest component: `wanted`, or those of this run.

        Other runs of an ensemble do not count: folds of this run have fewer labels to decide from.
        """
        if wanted is not None:
            return select_classes(wanted, list(self.plan.classes))
        if not self.quiet and (note := prediction_note(self.folder, self.checkpoint)):
            say(note)
        return self.largest

    def jobs(self, inputs: str | Path | Sequence[str | Path]) -> list[Job]:
        """The images to predict: those of the inputs, or the test cases if there are none."""
        paths = [Path(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
        if not paths:
            return self.test_jobs()

        def tell(note: str) -> None:
            if not self.quiet:
                say(note, style="yellow")

        return find_inputs(paths, self.plan, layout=self.config.data.layout, tell=tell)

    def test_jobs(self) -> list[Job]:
        if not self.split.test:
            raise InputError(
                f"{self.path} has no test cases to predict. Name images or folders, or train with "
                "--test N to hold some out."
            )
        dataset = self.open_dataset()
        return [Job(name, dataset.case(name).images) for name in self.split.test]

    def open_dataset(self) -> Dataset:
        """The dataset of the run as it is now, including the labels of `data.labels`."""
        return open_run_dataset(self.config, self.folder)


def training_line(folder: RunFolder, steps: int) -> str:
    try:
        log = read_log(folder.log)
    except UserError:
        return "no log"
    if not log["step"]:
        return "no steps yet"
    loss = f", labeled loss {log['supervised'][-1]:.3f}" if "supervised" in log else ""
    return f"{log['step'][-1]:.0f} of {count_noun(steps, 'step')}{loss}"


def score_line(folder: RunFolder, split: Split) -> str:
    try:
        scores, _ = current_scores(folder, split)
    except UserError:
        return "not scored yet"
    values = [one.value for one in scores if one.metric == "dice"]
    cases = count_noun(len({one.case for one in scores}), "case")
    return f"{statistics.fmean(values):.3f} ({cases})" if values else "not scored yet"


def load_run(
    path: str | Path, *, device: str = "auto", checkpoint: str = "last", quiet: bool = False
) -> Run:
    """Load a trained run for prediction. Loading executes no code from the folder.

    Of a run that has only been cross-validated, this is the first fold, with the others in `folds`.
    """
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        problem = "is not a folder" if folder.path.exists() else "does not exist"
        raise MissingFileError(f"{path} {problem}. Pass a run folder.")
    folder.require_run()
    folds = trained_folds(folder)
    if folds and not folder.last.exists():
        first = load_run(folds[0], device=device, checkpoint=checkpoint, quiet=quiet)
        return replace(first, folds=folds[1:])
    fold = next((one.parents[1] for one in folder.path.glob("fold-*/checkpoints/last.*")), None)
    if fold and not folder.last.exists():
        raise MissingFileError(
            f"{path} has folds that are not trained yet, and no final run. Train them, or use a "
            f"single fold: {fold}."
        )
    config = resolve(read_config(folder.config), str(folder.config))
    plan = Plan.read(folder.plan)
    method = build_method(config, plan)
    source = folder.checkpoint(checkpoint)
    if checkpoint == "best" and not source.exists():
        raise MissingFileError(
            f"{path} has no best checkpoint: only runs with validation cases keep one. Use "
            "--checkpoint last, or train with --validation N."
        )
    stored = read_checkpoint(source)
    load_weights(method, stored, source)
    is_finished = checkpoint != "last" or stored.step >= config.train.steps
    if not is_finished and not quiet:
        say(
            f"note: {path} is not fully trained: its checkpoint is from step {stored.step:,} of "
            f"{config.train.steps:,}. Continue with `segpl train --resume --out "
            f"{shlex.quote(str(path))}`."
        )
    target = choose_device(device)
    limit_threads()
    method.to(target).to(memory_format=memory_format(target, plan.dims)).eval()  # type: ignore[call-overload]  # missing in torch's stubs
    fuse_networks(method, target)
    split = Split.read(folder.split)
    return Run(
        *(folder, config, plan, split, method, target, checkpoint),
        quiet=quiet,
        folds=folds,
        is_finished=is_finished,
    )


def trained_folds(folder: RunFolder) -> tuple[Path, ...]:
    """The runs of a cross-validation; empty unless all of them are there."""
    first = RunFolder(folder.path / "fold-0")
    if not (folder.folds.exists() and first.config.exists()):
        return ()
    count = resolve(read_config(first.config), str(first.config)).split.folds
    paths = tuple(folder.path / f"fold-{number}" for number in range(count))
    return paths if all(RunFolder(path).last.exists() for path in paths) else ()
