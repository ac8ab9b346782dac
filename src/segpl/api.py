"""Train and predict from Python: what the commands do, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from segpl.assembly import (
    Prospect,
    build_method,
    build_sampler,
    foreground_shares,
    look_ahead,
    open_dataset,
    require_held,
    settled,
    watched_cases,
)
from segpl.config import Config, differences, given_content, read_config, resolve
from segpl.data.cache import load_volumes
from segpl.data.masks import select_classes
from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.display import TrainingDisplay, bar, say
from segpl.engine.checkpoint import load_weights, read_checkpoint
from segpl.engine.device import (
    choose_device,
    is_compiler_error,
    is_out_of_memory,
    memory_format,
)
from segpl.engine.events import require_tensorboard
from segpl.engine.run import RunFolder, describe_environment
from segpl.engine.trainer import Trainer
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.agreement import agreement_summary
from segpl.files import write_json, write_text
from segpl.methods.base import Method
from segpl.opening import opened
from segpl.predict.inputs import Job, find_inputs
from segpl.predict.predictor import predict_jobs
from segpl.predict.samples import note_of, samplers_for
from segpl.validate.agreement import network_agreement
from segpl.validate.postprocessing import advised_classes, write_advice
from segpl.validate.validator import Validator


@dataclass(frozen=True, slots=True)
class Run:
    """A trained run: its folder, its plan, and the method with its weights."""

    folder: RunFolder
    config: Config
    plan: Plan
    split: Split
    method: Method
    device: torch.device
    checkpoint: str = "last"
    quiet: bool = False

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def parameters(self) -> int:
        """Weights that training moved."""
        return sum(p.numel() for p in self.method.parameters() if p.requires_grad)

    def predict(
        self,
        inputs: str | Path | Sequence[str | Path] = (),
        *,
        out: str | Path,
        probabilities: bool = False,
        overwrite: bool = False,
        overlap: float = 0.5,
        samples: int | None = None,
        by: str | None = None,
        seed: int = 0,
        ensemble: Sequence[Run] = (),
        largest: str | Sequence[str] | None = None,
    ) -> list[Path]:
        """Write masks for images, folders or a dataset; with none, for the run's test cases.

        Returns what was written; `samples` and `ensemble` average, and map how sure they are. Of
        the classes in `largest` (or "all", "none") masks keep the largest component alone; None
        does what the validation cases of the run have advised.
        """
        runs = [self, *ensemble]
        samplers = samplers_for(runs, samples, by, seed)
        kept = self.kept_of(ensemble, largest)
        paths = [Path(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
        jobs = (
            find_inputs(paths, self.plan, layout=self.config.data.layout)
            if paths
            else self.test_jobs()
        )
        seen = {name for run in runs for name in run.split.labeled} & {job.name for job in jobs}
        if seen and not self.quiet:
            say(
                f"note: {len(seen)} of {len(jobs)} inputs have the name of a case whose label this "
                "run was trained on; scores of those say nothing about new scans.",
                style="yellow",
            )
        for run in runs:
            run.method.to(self.device).eval()
        with bar("predicting", len(jobs), quiet=self.quiet) as advance:
            try:
                return predict_jobs(
                    jobs,
                    self.method.predict,
                    self.plan,
                    Path(out),
                    device=self.device,
                    run=" + ".join(run.identity for run in runs) + note_of(samplers),
                    probabilities=probabilities,
                    overwrite=overwrite,
                    overlap=overlap,
                    samplers=samplers,
                    largest=kept,
                    advance=advance,
                )
            except torch.OutOfMemoryError as error:
                raise InputError(
                    f"the {self.device} is out of memory. Free it, or use --device cpu. What was "
                    f"predicted so far is in {out}."
                ) from error

    @property
    def identity(self) -> str:
        """Which weights these are: a folder that is trained anew is another run."""
        weights = self.folder.weights(self.checkpoint)
        return f"{self.path.resolve()}#{self.checkpoint}@{weights}"

    @property
    def largest(self) -> tuple[str, ...]:
        """Classes of which masks keep the largest component alone, as validation has advised."""
        return advised_classes(self.folder, self.checkpoint)

    def kept_of(
        self, ensemble: Sequence[Run], asked: str | Sequence[str] | None
    ) -> tuple[str, ...]:
        """Classes in one piece: those asked for, else those that all runs advise, said aloud."""
        advice = [run.largest for run in ensemble]
        advised = [name for name in self.largest if all(name in one for one in advice)]
        kept = select_classes(advised if asked is None else asked, list(self.plan.classes))
        if kept and asked is None and not self.quiet:
            say(
                f"Only the largest component of {', '.join(kept)} is kept, as the validation cases "
                "advise; --largest none keeps all."
            )
        return kept

    def test_jobs(self) -> list[Job]:
        if not self.split.test:
            raise InputError(
                f"{self.path} has no test cases to predict. Name images or folders, or train with "
                "--test N to hold some out."
            )
        dataset = open_dataset(self.config)
        return [Job(name, dataset.case(name).images) for name in self.split.test]


def train(
    data: str | Path = "",
    *,
    out: str | Path,
    method: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train `method` on the dataset in `data` and leave everything in the folder `out`.

    Args:
        data: folder of the dataset.
        out: folder of the run; it must not exist, or hold a run to resume.
        method: name of a method; `segpl list methods` names them.
        config: a TOML file of settings.
        settings: sections of settings, such as {"train": {"steps": 500}}; they overrule `config`.
        overrides: texts such as "method.alpha=0.1"; they overrule both.
        resume: go on with the run in `out` from its last checkpoint.
        quiet: no progress on the error stream.
    """
    content = given_content(
        data, method=method, config=config, settings=settings, overrides=overrides
    )
    folder = RunFolder(Path(out))
    with opened(folder, content, resume=resume, source=config) as resolved:
        return train_config(resolved, folder, quiet=quiet)


def plan_for(config: Config, *, quiet: bool = False) -> Plan:
    """The plan that a training with this config would derive."""
    return look_ahead(config, None, quiet=quiet).plan


def train_config(config: Config, folder: RunFolder, *, quiet: bool = False) -> Run:
    """Train as `config` says, in a new folder or in one that holds a part of this training."""
    device = choose_device(config.train.device)
    is_new = not folder.config.exists()
    with folder.beginning():
        run, prospect = begin(config, folder, device, quiet=quiet)
        if not quiet:
            announce(run, prospect)
        trainer = prepare_training(run, prospect, quiet=quiet)
    if not is_new:
        trainer.resume()
    fit(trainer, run, folder.training.last)
    if isinstance(trainer.validate, Validator):
        steps = {"last": trainer.step, "best": trainer.facts.get("best_step", trainer.step)}
        write_advice(run.folder, run.plan, steps, trainer.validate.labels)
    elif run.split.unlabeled and config.train.agreement:
        say_agreement(run, trainer)
    return run


def begin(
    config: Config, folder: RunFolder, device: torch.device, *, quiet: bool
) -> tuple[Run, Prospect]:
    """Look at the data and write down what the run is; everything but the crops is then known."""
    if config.train.track:
        require_tensorboard()
    prospect = look_ahead(config, folder, quiet=quiet)
    split, plan = prospect.split, prospect.plan
    config = settled(config, prospect)
    # the network comes first: what cannot be built should not cost a preprocessing
    method = build_method(config, plan)
    require_held(method, split)
    run = Run(folder, config, plan, split, method, device, quiet=quiet)
    describe(run)
    return run, prospect


def announce(run: Run, prospect: Prospect) -> None:
    split, plan, config = run.split, run.plan, run.config
    for note in split.notes:
        say(note)
    say(
        f"{config.method}: {len(split.labeled)} labeled, {len(split.unlabeled)} unlabeled, "
        f"{len(split.validation)} validation, {len(split.test)} test cases; "
        f"patch {'x'.join(map(str, plan.patch))}, {config.train.steps} steps on {run.device}."
    )
    if config.augment.mirror and plan.has_sides:
        say("Crops are not mirrored: a left and a right class would be exchanged.")
    if prospect.dataset.classes is None:
        say(f"Classes, as seen in the labels in use: {', '.join(plan.classes)}.")


def say_agreement(run: Run, trainer: Trainer) -> None:
    """Measure and print how well the networks of a run agree on unlabeled cases."""
    volumes = dict(zip(run.split.unlabeled, trainer.sampler.unlabeled, strict=True))
    try:
        limit = run.config.train.agreement
        words = agreement_summary(network_agreement(run.folder, volumes, run, limit=limit))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        words = f"Agreement on unlabeled cases was not measured: the {run.device} is out of memory."
    if not run.quiet:
        say(words)


def describe(run: Run) -> None:
    """Write what a run is before it begins."""
    folder = run.folder
    # the settings first: a run killed between these files is still a run, and can be resumed
    write_text(folder.config, run.config.as_toml())
    run.split.write(folder.split)
    run.plan.write(folder.plan)
    # the report needs both, and loads no model
    changed = [
        text.split(" ")[0]
        for text in differences(resolve({"method": {"name": run.config.method}}), run.config)
    ]
    write_json(folder.summary, {"parameters": run.parameters, "changed": changed})
    if not folder.environment.exists():
        write_json(folder.environment, describe_environment(run.device))


def prepare_training(run: Run, prospect: Prospect, *, quiet: bool) -> Trainer:
    split, plan, config, cases = run.split, run.plan, run.config, prospect.cases
    held = [prospect.dataset.case(name) for name in split.validation]
    watched = watched_cases(config, prospect.dataset, split)
    with bar("preprocessing", len(cases) + len(held) + len(watched), quiet=quiet) as advance:
        volumes = load_volumes(cases, plan, labeled=split.labeled, advance=advance)
        validation = load_volumes(held, plan, labeled=split.validation, advance=advance)
        # apart from the others: nothing that is trained with may come from these labels
        secrets = load_volumes(watched, plan, labeled=split.hidden, advance=advance)
    sampler = build_sampler(
        config, plan, split, volumes, run.device, run.method, secrets, validation
    )
    display = TrainingDisplay(config.method, config.train.steps, quiet=quiet)
    path = run.folder.training.validation
    validate = (
        Validator(validation, run.method, plan, run.device, path, volumes) if validation else None
    )
    return Trainer(
        run.method,
        sampler,
        config.train,
        run.folder.training,
        display,
        validate=validate,
        foreground=foreground_shares(volumes, plan),
    )


def fit(trainer: Trainer, run: Run, last: Path) -> None:
    """Take all steps that are left; `last` is where the checkpoint is kept."""
    display = trainer.observer
    assert isinstance(display, TrainingDisplay)
    with display:
        try:
            trainer.run()
        except Exception as error:
            if is_out_of_memory(error):
                patch = "x".join(map(str, run.plan.patch))
                raise InputError(
                    f"the {run.device} is out of memory at step {trainer.step}: "
                    f"{run.plan.batch} labeled crops of {patch} voxels and "
                    f"{run.config.train.ratio} unlabeled ones for each. Lower train.batch, "
                    "train.ratio or the patch in plan.json."
                ) from error
            if not is_compiler_error(error):
                raise
            raise InputError(
                f"the network could not be compiled: {str(error).splitlines()[0]} Train without "
                "compilation: --set train.compile=off."
            ) from error
        except KeyboardInterrupt:
            kept = (
                f"The checkpoint of step {read_checkpoint(last).step} is kept"
                if last.exists()
                else "No checkpoint was written yet"
            )
            display.warned(f"stopped at step {trainer.step}. {kept}.")
            raise


def load_run(
    path: str | Path, *, device: str = "auto", checkpoint: str = "last", quiet: bool = False
) -> Run:
    """A trained run, ready to predict. Loading it runs no code from its folder."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise MissingFileError(f"{path} does not exist. Give the folder that --out named.")
    folder.require()
    config = resolve(read_config(folder.config), str(folder.config))
    plan = Plan.read(folder.plan)
    method = build_method(config, plan)
    source = folder.checkpoint(checkpoint)
    if checkpoint == "best" and not source.exists():
        raise MissingFileError(
            f"{path} has no best checkpoint: only a run with validation cases keeps one. Use "
            "--checkpoint last, or train with --validation N."
        )
    load_weights(method, read_checkpoint(source), source)
    target = choose_device(device)
    method.to(target).to(memory_format=memory_format(target, plan.dims)).eval()  # type: ignore[call-overload]  # torch's stubs lack it
    return Run(
        folder, config, plan, Split.read(folder.split), method, target, checkpoint, quiet=quiet
    )
