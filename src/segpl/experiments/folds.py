"""Cross-validation over the labeled cases: an estimate of Dice without a held-out test set.

runs/a/fold-0 ...          one run per fold, trained on the other labeled cases
runs/a/fold-0/validation   masks and scores of the cases that the fold held out
runs/a/folds.csv           each labeled case, scored by the run that held it out
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from segpl.assembly import load_training_volumes, open_dataset
from segpl.cores import limit_threads
from segpl.data.manifest import read_manifest
from segpl.data.split import Split, make_split
from segpl.display import say
from segpl.engine.budget import Budget
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun
from segpl.evaluate.fold_scores import FOLD_COLUMNS, FoldScore
from segpl.evaluate.postprocessing_file import read_postprocessing
from segpl.evaluate.scores import read_scores
from segpl.evaluate.statistics import mean_by_key
from segpl.evaluate.validation import read_validation
from segpl.experiments.scoring import predict_again, score_masks
from segpl.files import write_text
from segpl.records import csv_text
from segpl.report.tables import Table
from segpl.run import Run, load_run
from segpl.settings import Config, claim_folder, gather_settings, resumed_config, with_overrides
from segpl.training import build_trainer, memory_advice, prepare_run, train, write_description
from segpl.training_time import budget_of_run, steps_within, time_budget, with_steps

HELD_OUT = "validation"  # folder of the masks of held-out cases
NOTABLE = 0.01  # gain in mean Dice at an earlier step that is worth reporting


@dataclass(frozen=True, slots=True)
class Fold:
    """A run that holds a part of the labeled cases out."""

    folder: RunFolder
    config: Config
    split: Split

    @property
    def is_finished(self) -> bool:
        last = self.folder.last
        return last.exists() and read_checkpoint(last).step == self.config.train.steps

    @property
    def scores(self) -> Path:
        """Scores of the held-out cases at the last step, written after its checkpoint."""
        return self.folder.path / HELD_OUT / "scores.csv"


@dataclass(frozen=True, slots=True)
class FoldEstimate:
    """Cross-validated Dice of the labeled cases."""

    rows: tuple[FoldScore, ...]  # at the last step
    by_step: dict[int, float]  # step -> mean Dice over cases and classes
    trained_on: tuple[int, ...]  # labeled cases of each fold
    subjects: int

    @property
    def cases(self) -> dict[str, float]:
        """Dice of each case, averaged over classes."""
        return mean_by_key((row.case, row.dice) for row in self.rows)

    @property
    def by_class(self) -> dict[str, float]:
        """Dice of each class, averaged over cases."""
        return mean_by_key((row.class_name, row.dice) for row in self.rows)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cases.values())

    @property
    def sentences(self) -> list[str]:
        """The estimate in one sentence, then its limits."""
        values, fewest, most = self.cases.values(), min(self.trained_on), max(self.trained_on)
        cases = count_noun(len(values), "case")
        of = "" if self.subjects == len(values) else f" of {count_noun(self.subjects, 'subject')}"
        on = count_noun(most, "label") if fewest == most else f"{fewest} to {most} labels"
        sentences = [
            f"Expected Dice on similar scans: {self.mean:.2f} (range {min(values):.2f} to "
            f"{max(values):.2f} over {cases}{of}; each fold trained on {on}).",
            f"This estimate uses {cases}. New scans can fall outside this range, and scans "
            "from another scanner or hospital may differ more.",
        ]
        if len(self.by_class) > 1:
            scores = ", ".join(f"{name} {dice:.2f}" for name, dice in self.by_class.items())
            sentences.insert(1, f"By class: {scores}.")
        last, best = max(self.by_step), max(self.by_step, key=lambda step: self.by_step[step])
        if self.by_step[best] > self.by_step[last] + NOTABLE:
            sentences.append(
                f"The mean was higher at step {best} ({self.by_step[best]:.2f}) than at the last "
                f"step, {last} ({self.by_step[last]:.2f}). Fewer --steps may be enough."
            )
        return sentences

    @property
    def table(self) -> Table:
        """One row per case, then mean, standard deviation and range; one column per class."""
        classes = list(dict.fromkeys(row.class_name for row in self.rows))
        folds = {row.case: row.fold for row in self.rows}
        dice = {(row.case, row.class_name): row.dice for row in self.rows}
        columns = {name: [dice[case, name] for case in folds] for name in classes}
        if len(classes) > 1:
            columns["mean"] = [self.cases[case] for case in folds]
        rows = [
            [case, str(fold), *(f"{column[number]:.3f}" for column in columns.values())]
            for number, (case, fold) in enumerate(folds.items())
        ]
        for title, statistic in (
            ("mean", statistics.fmean),
            ("std", statistics.stdev),
            ("min", min),
            ("max", max),
        ):
            rows.append([title, "", *(f"{statistic(column):.3f}" for column in columns.values())])
        return Table(
            ["case", "fold", *columns],
            rows,
            "Dice of each labeled case, from the last checkpoint of the fold that held it out, on "
            "the grid of its label.",
        )


def cross_validate(
    data: str | Path = "",
    *,
    out: str | Path,
    folds: int,
    fold: int | None = None,
    method: str | None = None,
    time: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    yes: bool = False,
    resume: bool = False,
    quiet: bool = False,
) -> FoldEstimate | None:
    """Train `folds` runs, each with a part of the labeled cases held out, and score these parts.

    The folds share the settings, plan and seed of the run in `out`. That run is prepared but not
    trained: `segpl.train(out=out, resume=True)` trains it, before or after. The plan is derived
    once, from all labeled cases. Returns None while folds are missing, which needs `fold`.

    Args:
        data: folder of the dataset.
        out: folder of the run, as for `segpl.train`; the folds are `out/fold-0` and so on.
        folds: number of parts of the labeled subjects, 2 or more.
        fold: train this fold only, from 0; different folds may be trained at the same time.
        method: name of a method.
        time: train each fold for about this long, such as "30m", and the run in `out` with the
            same number of steps; the default is that of `segpl.train`.
        config: TOML file with settings.
        settings: sections of settings; overrides `config`.
        overrides: settings such as "method.alpha=0.1"; overrides both.
        yes: accept the layout that is proposed for other file names.
        resume: resume an interrupted call, or add folds to an existing run.
        quiet: show no progress.
    """
    budget = time_budget(time, with_overrides(settings or {}, overrides))
    content = gather_settings(
        data,
        method=method,
        config=config,
        settings=settings,
        overrides=overrides,
        yes=yes and not resume,
    )
    folder = RunFolder(Path(out))
    # another fold may have prepared the run or be preparing it
    is_prepared = resume or fold is not None
    on_wait = None if fold is None else partial(say, f"Waiting for another process in {out}.")
    with claim_folder(
        folder, content, resume=is_prepared, source=config, on_wait=on_wait
    ) as resolved:
        splits = fold_splits(resolved, folds, fold)  # checked before anything is written
        with folder.undo_on_error():
            budget = budget_of_run(budget, content, resolved, folder, quiet=quiet)
            run = prepare_folds(resolved, folder, splits, budget, quiet=quiet)
            if budget is not None and fold is None and not quiet:
                total = replace(budget, seconds=folds * budget.seconds)
                say(f"The {folds} folds take {total} in total; the final run takes {budget}.")
            parts = list_folds(run, splits)
            require_same_folds(run, parts)
            if fold is not None and not resume:
                parts[fold].folder.require_unused()
        for note in () if quiet else run.split.notes:
            say(note)
        if fold is None:
            for part in parts:
                train_fold(part, run)
            return write_estimate(run, parts)
    train_fold(parts[fold], run)  # without the lock: other folds may be trained at the same time
    if not all(part.is_finished and part.scores.exists() for part in parts):
        return None
    with folder.locked(on_wait):
        return write_estimate(run, parts)


def prepare_folds(
    config: Config,
    folder: RunFolder,
    splits: Sequence[Split],
    budget: Budget | None,
    *,
    quiet: bool,
) -> Run:
    """Write the run that the folds belong to; its number of steps fits into `budget`."""
    run, inputs = prepare_run(config, folder, quiet=quiet)
    if budget is not None:
        limit_threads()
        inputs = replace(inputs, split=splits[0])
        volumes = load_training_volumes(run.config, inputs, quiet=quiet)
        trainer = build_trainer(replace(run, split=splits[0]), volumes)
        with memory_advice(run, trainer):
            run = with_steps(run, steps_within(budget, run, trainer))
    write_description(run)
    return run


def fold_config(config: Config, folds: int, number: int) -> Config:
    return replace(config, split=replace(config.split, folds=folds, fold=number))


def fold_splits(config: Config, folds: int, chosen: int | None) -> list[Split]:
    """The split of each fold; `chosen` is the only fold to train now."""
    if folds < 2:
        raise InputError(f"--folds is {folds}, but must be at least 2.")
    if chosen is not None and not 0 <= chosen < folds:
        raise InputError(f"--fold is {chosen}, but must be between 0 and {folds - 1}.")
    if config.split.folds:
        raise InputError(
            f"split.folds is {config.split.folds}: these are the settings of a single fold. Use "
            "--folds with the settings of the whole run."
        )
    dataset = open_dataset(config)
    settings = [fold_config(config, folds, number).split for number in range(folds)]
    return [make_split(dataset, one) for one in settings]


def list_folds(run: Run, splits: Sequence[Split]) -> list[Fold]:
    """The folds of `run`, in folders below its own."""
    return [
        Fold(
            RunFolder(run.folder.path / f"fold-{number}"),
            fold_config(run.config, len(splits), number),
            split,
        )
        for number, split in enumerate(splits)
    ]


def require_same_folds(run: Run, folds: Sequence[Fold]) -> None:
    """Check that the folds divide the cases of the run, which may be older than the dataset."""
    for fold in folds:
        split, saved = fold.split, fold.folder.split
        if fold.folder.config.exists():
            resumed_config(fold.folder, fold.config.as_dict())  # other settings are an error
        is_same = (
            {*split.labeled, *split.validation} == set(run.split.labeled)
            and set(split.unlabeled) <= set(run.split.unlabeled)
            and split.test == run.split.test
            and (not saved.exists() or split.has_same_cases(Split.read(saved)))
        )
        if not is_same:
            raise InputError(
                f"the cases in {run.config.data.path} have changed since {run.path} was started. "
                "Choose another --out."
            )


def train_fold(fold: Fold, whole: Run) -> None:
    """Train one fold, or resume it, and score its held-out cases; a finished one stays."""
    folder, config, split = fold.folder, fold.config, fold.split
    if fold.is_finished:
        score_held_out(load_run(folder.path, device=config.train.device, quiet=whole.quiet))
        return
    if not whole.quiet:
        labels, held_out = count_noun(len(split.labeled), "label"), ", ".join(split.validation)
        title = f"Fold {config.split.fold} ({config.split.folds} folds, counted from 0)"
        say(f"{title}: {labels} for training, held out: {held_out}.")
    if not folder.config.exists():
        # all folds share one plan, which does not depend on what is held out; the config comes
        # last, because it makes the folder a run
        whole.plan.write(folder.plan)
        write_text(folder.config, config.as_toml())
    fold.scores.unlink(missing_ok=True)  # of an earlier last step
    score_held_out(
        train(out=folder.path, settings=config.as_dict(), resume=True, quiet=whole.quiet)
    )


def score_held_out(run: Run) -> None:
    """Write and score a mask of each held-out case, on the grid of its file."""
    out = run.folder.path / HELD_OUT
    # as test cases: the run has not learned from them
    split = replace(run.split, test=run.split.validation, validation=())
    # what the training labels decide: the held-out cases must not choose their own post-processing
    record = run.folder.postprocessing
    largest = read_postprocessing(record).largest if record.exists() else ()
    written = predict_again(replace(run, split=split), out, ensemble=(), largest=largest)
    scores = out / "scores.csv"
    if written or not scores.exists():
        score_masks(out, run.open_dataset(), scores)


def write_estimate(run: Run, folds: Sequence[Fold]) -> FoldEstimate:
    """The estimate from the masks of all folds; their curves are on the grid of the plan."""
    curves = [row for number, fold in enumerate(folds) for row in fold_curve(fold.folder, number)]
    rows = [row for number, fold in enumerate(folds) for row in held_out_scores(fold, number)]
    subject = {case.name: case.subject for case in open_dataset(run.config).cases}
    write_text(run.folder.folds, csv_text([FOLD_COLUMNS, *map(astuple, rows)]))
    return FoldEstimate(
        tuple(rows),
        mean_by_step(curves, len(folds)),
        tuple(len(fold.split.labeled) for fold in folds),
        len({subject[name] for fold in folds for name in fold.split.validation}),
    )


def held_out_scores(fold: Fold, number: int) -> list[FoldScore]:
    folder, step = fold.folder.path / HELD_OUT, fold.config.train.steps
    manifest = read_manifest(folder)
    summaries = manifest.summaries if manifest else {}

    def confidence(case: str, name: str) -> float:
        found = summaries[case].classes.get(name) if case in summaries else None
        return math.nan if found is None or found.confidence is None else found.confidence

    return [
        FoldScore(step, number, case, name, score.value, confidence(case, name))
        for score in read_scores(fold.scores)
        if score.metric == "dice"
        for case, name in [(score.case, score.class_name)]
    ]


def mean_by_step(rows: Sequence[FoldScore], folds: int) -> dict[int, float]:
    """Mean Dice at each step that all folds have scored.

    A fold that was extended with --resume also has scores at its former last step.
    """
    scored = Counter(step for step, _ in {(row.step, row.fold) for row in rows})
    means = mean_by_key((row.step, row.dice) for row in rows)
    return {step: means[step] for step in sorted(means) if scored[step] == folds}


def fold_curve(folder: RunFolder, fold: int) -> list[FoldScore]:
    """Scores of the held-out cases during training."""
    path = folder.validation
    remedy = f"Delete {folder.path} and train the fold again with --resume."
    try:
        rows = read_validation(path)
    except InputError as error:
        raise InputError(f"{error} {remedy}") from error
    if not rows:
        raise InputError(f"{path} is missing or empty. {remedy}")
    return [FoldScore(row.step, fold, row.case, row.class_name, row.dice) for row in rows]
