"""Train a run in its folder: the Python API behind `segpl train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from segpl.assembly import (
    TrainingInputs,
    TrainingVolumes,
    build_method,
    build_sampler,
    load_training_volumes,
    prepare_inputs,
    require_batch_fits,
)
from segpl.cores import limit_threads
from segpl.display import TrainingDisplay, say
from segpl.engine.budget import Budget, measure_step
from segpl.engine.checkpoint import load_weights, read_checkpoint
from segpl.engine.collapse import foreground_shares
from segpl.engine.device import choose_device, is_out_of_memory
from segpl.engine.distributed import ALONE, Processes, join_processes
from segpl.engine.environment import describe_environment
from segpl.engine.events import require_tensorboard
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import Trainer
from segpl.errors import InputError, count_noun, in_voxels
from segpl.files import write_text
from segpl.predict.familiarity import record_training_images
from segpl.records import write_json
from segpl.run import Run
from segpl.settings import (
    Config,
    claim_folder,
    gather_settings,
    merge_settings,
    resolve,
    setting_changes,
    with_overrides,
)
from segpl.training_time import budget_of_run, steps_within, time_budget, with_steps
from segpl.validate.postprocessing import (
    label_components,
    overrule_by_validation,
    validation_note,
    write_label_decision,
)
from segpl.validate.validator import Validator


def train(
    data: str | Path = "",
    *,
    out: str | Path | None = None,
    method: str | None = None,
    steps: int | None = None,
    time: str | None = None,
    seed: int | None = None,
    labeled: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    yes: bool = False,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train `method` on the dataset in `data` and write the run to the folder `out`.

    Args:
        data: folder of the dataset.
        out: folder of the run; it must not exist yet, except to resume the run in it. By default a
            new folder runs/NAME, named after the dataset.
        method: name of a method, as listed by `segpl list methods`.
        steps: training steps.
        time: train for about this long instead, such as "30m", "2h" or "1h30m". The number of
            steps follows from the measured step time. A resumed run keeps its number of steps.
            Without `steps` and `time`, a new run takes 30 minutes on a GPU with 40 GB of memory or
            more and an hour on other devices, or 6,000 steps if these take less time.
        seed: seed of weights, crops and sampling.
        labeled: use this many labels and hide the others; 0: all.
        validation: hold out this many labeled cases for validation.
        test: hold out this many labeled cases for testing.
        device: "auto", "cpu", "cuda" or "cuda:N".
        config: TOML file with settings.
        settings: sections of settings, such as {"train": {"steps": 500}}; overrides `config`.
        overrides: settings such as "method.alpha=0.1"; overrides both.
        yes: accept the layout that is proposed for other file names.
        resume: resume the run in `out` from its last checkpoint.
        quiet: show no progress.
    """
    processes = join_processes()
    if not processes.is_first:
        return follow(processes)
    if out is None and resume:
        raise InputError("--resume needs the folder of the run, --out.")
    chosen: dict[str, dict[str, Any]] = {
        "train": {"steps": steps, "seed": seed, "device": device},
        "split": {"labeled": labeled, "validation": validation, "test": test},
    }
    given = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in chosen.items()
    }
    sections = merge_settings(settings or {}, given)
    budget = time_budget(time, with_overrides(sections, overrides))
    content = gather_settings(
        data,
        method=method,
        config=config,
        settings=sections,
        overrides=overrides,
        yes=yes and not resume,
    )
    folder = RunFolder(new_folder(content) if out is None else Path(out))
    with claim_folder(folder, content, resume=resume, source=config) as resolved:
        budget = budget_of_run(budget, content, resolved, folder, quiet=quiet)
        return train_config(resolved, folder, budget=budget, processes=processes, quiet=quiet)


def new_folder(content: Mapping[str, Any]) -> Path:
    """A folder runs/NAME that does not exist yet, named after the dataset."""
    name = Path(content["data"].get("path", "")).name or "run"
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in (Path("runs", one) for one in numbered) if not path.exists())


def train_config(
    config: Config,
    folder: RunFolder,
    *,
    budget: Budget | None,
    processes: Processes,
    quiet: bool,
) -> Run:
    """Train with `config` in a new folder, or resume the run in `folder`.

    With a `budget`, the run takes the number of steps that fits into it. The other `processes`
    call `follow`.
    """
    limit_threads()
    is_new = not folder.config.exists()
    with folder.undo_on_error():
        run, inputs = prepare_run(config, folder, processes=processes, quiet=quiet)
        if not quiet:
            announce(run, inputs, budget)
        volumes = load_training_volumes(run.config, inputs, quiet=quiet)
        # only now: the others find the prepared volumes in the cache
        processes.share((run.config, folder, inputs, budget, is_new))
        trainer = build_trainer(run, volumes, processes)
        processes.connect(run.device)
        if budget is not None:
            with memory_advice(run, trainer):
                run = with_steps(run, processes.share(steps_within(budget, run, trainer)))
            display = TrainingDisplay(run.config.method, run.config.train.steps, quiet=quiet)
            trainer = trainer.with_steps(run.config.train.steps, display)
        # only now: a run killed earlier would resume with a different number of steps, and one that
        # cannot resume, because a scan is missing, keeps its settings
        write_description(run)
        subjects = {case.name: case.subject for case in inputs.cases}
        write_label_decision(folder, label_components(volumes.training, run.plan, subjects))
    if not is_new:
        trainer.resume()
        if 0 < trainer.step < config.train.steps and not quiet:
            say(f"Resuming after step {trainer.step:,} of {config.train.steps:,}.")
    run_trainer(trainer, run)
    processes.leave()
    if isinstance(trainer.validate, Validator):
        steps = {"last": trainer.step, "best": trainer.facts.get("best_step", trainer.step)}
        overrule_by_validation(run.folder, run.plan, steps)
        if not quiet:
            say(validation_note(run.folder.validation, trainer.step, run.plan))
    record_training_images(
        folder.familiarity,
        inputs.cases,
        run.method.predictors()[0],
        run.plan,
        weights=folder.weights_hash("last"),
    )
    return run


def follow(processes: Processes) -> Run:
    """Take part in the run that the first process prepares. Writes and shows nothing."""
    limit_threads()
    description: tuple[Config, RunFolder, TrainingInputs, Budget | None, bool] = processes.share()
    config, folder, inputs, budget, is_new = description
    device = processes.own_device(choose_device(config.train.device))
    method = build_method(config, inputs.plan)
    run = Run(folder, config, inputs.plan, inputs.split, method, device, quiet=True)
    volumes = load_training_volumes(config, inputs, quiet=True)
    trainer = build_trainer(run, volumes, processes)
    processes.connect(device)
    with memory_advice(run, trainer):
        if budget is not None:
            measure_step(trainer, budget.seconds, processes.clock)
            trainer = trainer.with_steps(processes.share(), trainer.observer)
        if not is_new:
            trainer.resume()
        trainer.run()
    processes.leave()
    return run


def prepare_run(
    config: Config, folder: RunFolder, *, processes: Processes = ALONE, quiet: bool
) -> tuple[Run, TrainingInputs]:
    """Inspect the data and build the method. Writes nothing."""
    device = processes.own_device(choose_device(config.train.device))
    if config.train.track:
        require_tensorboard()
    inputs = prepare_inputs(config, folder, quiet=quiet)
    # prediction groups files by the same layout
    found = replace(config.data, layout=inputs.dataset.layout)
    config = replace(config, data=found).with_planned_rate(inputs.plan)
    # before preprocessing, so that an impossible network fails early
    processes.require_equal_shares(config.train.batch or inputs.plan.batch)
    # a run with a plan was warned before, or is a fold of one that was
    is_warned = quiet or folder.plan.exists()
    require_batch_fits(config, inputs.plan, device, processes.count, quiet=is_warned)
    method = build_method(config, inputs.plan)
    if config.train.start and not folder.last.exists():
        source = RunFolder(Path(config.train.start)).last
        load_weights(method, read_checkpoint(source), source)
    return Run(folder, config, inputs.plan, inputs.split, method, device, quiet=quiet), inputs


def build_trainer(run: Run, volumes: TrainingVolumes, processes: Processes = ALONE) -> Trainer:
    config, plan, method, device = run.config, run.plan, run.method, run.device
    sampler = build_sampler(config, run.split, plan, volumes, method, device, processes)
    validator = Validator(volumes.validation, method, plan, device, run.folder.validation)
    return Trainer(
        method,
        sampler,
        config.train,
        run.folder,
        TrainingDisplay(config.method, config.train.steps, quiet=run.quiet),
        validate=validator if volumes.validation else None,
        foreground=foreground_shares(volumes.training, list(plan.classes)),
        processes=processes,
    )


def write_description(run: Run) -> None:
    folder = run.folder
    # the config first: a run killed between these files can still be resumed
    write_text(folder.config, run.config.as_toml())
    run.split.write(folder.split)
    run.plan.write(folder.plan)
    # for the report, which loads no model
    planned = {"train": {"lr": run.config.planned_rate(run.plan)}}
    defaults = resolve({"method": {"name": run.config.method}, **planned})
    summary = {
        "parameters": run.parameters,
        "changed": list(setting_changes(defaults, run.config)),
        "reconstruction": run.method.is_reconstruction,
    }
    write_json(folder.summary, summary)
    if not folder.environment.exists():
        write_json(folder.environment, describe_environment(run.device))


def announce(run: Run, inputs: TrainingInputs, budget: Budget | None) -> None:
    split, plan, config = run.split, run.plan, run.config
    length = budget or count_noun(config.train.steps, "step")
    for note in split.notes:
        say(note)
    if run.method.needs_unlabeled and not split.unlabeled:
        say(
            "No case is unlabeled, so the labeled images also serve as unlabeled ones. To simulate "
            "few labels, --labeled N hides all but N of them."
        )
    say(
        f"{config.method}: {len(split.labeled)} labeled, {len(split.unlabeled)} unlabeled, "
        f"{len(split.validation)} validation, {count_noun(len(split.test), 'test case')}; "
        f"patch {'x'.join(map(str, plan.patch))}, {length} on {run.device}."
    )
    if config.augment.mirror and plan.has_sides:
        say("Mirroring is off: it would swap the left and right classes.")
    if inputs.dataset.classes is None:
        say(f"Classes found in the labels: {', '.join(plan.classes)}.")


@contextmanager
def memory_advice(run: Run, trainer: Trainer) -> Iterator[None]:
    """Turn out-of-memory errors into advice."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        patch = in_voxels("x".join(map(str, run.plan.patch)), run.plan.dims)
        raise InputError(
            f"out of memory on {run.device} at step {trainer.step} with {run.plan.batch} "
            f"labeled crops of {patch} and {run.config.train.ratio} unlabeled crops "
            "for each. Lower train.batch, train.ratio or the patch in plan.json."
        ) from error


def run_trainer(trainer: Trainer, run: Run) -> None:
    """Take the remaining steps."""
    display = trainer.observer
    with display:
        try:
            with memory_advice(run, trainer):
                trainer.run()
        except KeyboardInterrupt:
            last = run.folder.last
            kept = (
                f"The checkpoint of step {read_checkpoint(last).step} is kept"
                if last.exists()
                else "No checkpoint was written yet"
            )
            display.on_warning(f"stopped at step {trainer.step}. {kept}.")
            raise
