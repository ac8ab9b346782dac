"""Cross-validation over the labeled cases: what Dice to expect where no label can be spared.

runs/a/fold-0 ...   a run each, trained on the other labeled cases
runs/a/folds.csv    fold, case, class, dice: each labeled case by the run that has not seen it
runs/a/folds.md     the same as a table, and what it says
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segpl.assembly import open_dataset
from segpl.data.split import Split, make_split
from segpl.display import say
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.device import choose_device
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.validation_file import read_validation
from segpl.files import csv_text, write_text
from segpl.methods.base import METHODS
from segpl.report.tables import Table, as_markdown, count_noun
from segpl.run import Run, prepare_run, train
from segpl.settings import Config, claim_folder, gather_settings, resumed_config

HIGHER = 0.01  # of mean Dice, by which an earlier step has to be better to be worth a word
PARTS = ("labeled", "unlabeled", "validation", "test")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A class of a labeled case, by the run that was trained without the case."""

    step: int
    fold: int
    case: str
    class_name: str
    dice: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the labeled cases say of a training, each judged by a run that has not seen it."""

    rows: tuple[HeldOut, ...]  # of the last checkpoints
    earlier: dict[int, float]  # step -> mean Dice over cases and classes, the last step included
    trained_on: tuple[int, ...]  # labeled cases of each fold
    subjects: int

    @property
    def cases(self) -> dict[str, float]:
        """Dice of each case, the mean over its classes."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            found.setdefault(row.case, []).append(row.dice)
        return {case: statistics.fmean(values) for case, values in found.items()}

    @property
    def mean(self) -> float:
        return statistics.fmean(self.cases.values())

    @property
    def std(self) -> float:
        """Between cases, as of a sample."""
        return statistics.stdev(self.cases.values())

    @property
    def words(self) -> list[str]:
        """One sentence to remember, then how far it goes."""
        values, fewest, most = self.cases.values(), min(self.trained_on), max(self.trained_on)
        of = "" if self.subjects == len(values) else f" of {count_noun(self.subjects, 'subject')}"
        on = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        said = [
            f"Expected on new scans of this kind: Dice {self.mean:.2f} ({min(values):.2f} to "
            f"{max(values):.2f} over {count_noun(len(values), 'case')}{of}, trained on {on} each).",
            f"That is what {count_noun(len(values), 'case')} can say: a new scan may lie outside "
            "of the range, and scans of another scanner or hospital are of another kind. It is "
            "scored on the grid of the plan, which may be coarser than that of the files.",
        ]
        last, best = max(self.earlier), max(self.earlier, key=lambda step: self.earlier[step])
        if self.earlier[best] > self.earlier[last] + HIGHER:
            said.append(
                f"The mean was higher at step {best} ({self.earlier[best]:.2f}) than at the end, "
                f"step {last} ({self.earlier[last]:.2f}): fewer --steps may be enough."
            )
        return said

    @property
    def table(self) -> Table:
        """One row for each case, then mean, spread and range; one column for each class."""
        classes = list(dict.fromkeys(row.class_name for row in self.rows))
        folds = {row.case: row.fold for row in self.rows}
        dice = {(row.case, row.class_name): row.dice for row in self.rows}
        columns = [[dice[case, name] for case in folds] for name in classes]
        if len(classes) > 1:
            columns.append([self.cases[case] for case in folds])
        rows = [
            [case, str(fold), *(f"{column[number]:.3f}" for column in columns)]
            for number, (case, fold) in enumerate(folds.items())
        ]
        for title, of in (
            ("mean", statistics.fmean),
            ("std", statistics.stdev),
            ("min", min),
            ("max", max),
        ):
            rows.append([title, "", *(f"{of(column):.3f}" for column in columns)])
        titles = [*classes, "mean"] if len(classes) > 1 else classes
        return Table(
            ["case", "fold", *titles],
            rows,
            "Dice of each labeled case by the last checkpoint of the fold that was trained "
            "without it, on the grid of the plan.",
        )


def cross_validate(
    data: str | Path = "",
    *,
    out: str | Path,
    folds: int,
    method: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Estimate:
    """Train `folds` times with a part of the labeled cases held out, and score these.

    Settings, plan and seed are those of the run in `out`, which is written down and not trained:
    `segpl.train(out=out, resume=True)` does that, before or after. The plan is derived once, from
    all labeled cases.

    Args:
        data: folder of the dataset.
        out: folder of the run, as for `segpl.train`; `out/fold-0` and so on are those of the folds.
        folds: parts of the labeled subjects, 2 or more.
        method: name of a method.
        config: a TOML file of settings.
        settings: sections of settings; they overrule `config`.
        overrides: texts such as "method.alpha=0.1"; they overrule both.
        resume: go on where an interrupted call was, or add folds to a run that is there.
        quiet: no progress on the error stream.
    """
    content = gather_settings(
        data, method=method, config=config, settings=settings, overrides=overrides
    )
    folder = RunFolder(Path(out))
    with claim_folder(folder, content, resume=resume, source=config) as resolved:
        parts = fold_splits(resolved, folds)  # refused before anything is written
        with folder.undo_on_error():
            run, _ = prepare_run(
                resolved, folder, choose_device(resolved.train.device), quiet=quiet
            )
            refuse_calibration(run)
            places = [RunFolder(folder.path / f"fold-{number}") for number in range(folds)]
            configs = [fold_config(run.config, folds, number) for number in range(folds)]
            for place, wanted in zip(places, configs, strict=True):
                if place.config.exists():
                    resumed_config(place, wanted.as_dict())  # refuses other settings by name
            refuse_other_cases(run, places, parts)
        for note in () if quiet else run.split.notes:
            say(note)
        for number, (place, wanted) in enumerate(zip(places, configs, strict=True)):
            train_fold(place, wanted, run, f"Fold {number + 1} of {folds}", parts[number])
        estimate = gathered(run, places, parts)
        write_text(folder.folds, csv_of(estimate))
        listed = "".join(f"\n- {line}" for line in estimate.words)
        write_text(folder.path / "folds.md", f"{as_markdown(estimate.table)}{listed}\n")
    return estimate


def fold_config(config: Config, folds: int, number: int) -> Config:
    return replace(config, split=replace(config.split, folds=folds, fold=number))


def fold_splits(config: Config, folds: int) -> list[Split]:
    """Who is trained on and who is held out in each fold."""
    if folds < 2:
        raise InputError(f"--folds {folds} holds nothing out. Ask for 2 or more.")
    if config.split.folds:
        raise InputError(
            f"split.folds is {config.split.folds}: these settings are of one fold. Give --folds, "
            "and the settings of the whole training."
        )
    dataset, needs_unlabeled = open_dataset(config), METHODS.get(config.method).needs_unlabeled
    settings = [fold_config(config, folds, number).split for number in range(folds)]
    return [make_split(dataset, one, needs_unlabeled=needs_unlabeled) for one in settings]


def refuse_calibration(run: Run) -> None:
    """Held-out cases that a method calibrates on would be scored by what they have shaped."""
    if run.method.needs_validation:
        raise InputError(
            f"--folds: method '{run.method.name}' is to calibrate on validation cases, and those "
            "of a fold are there to be scored. Leave the calibration out, or --folds."
        )


def refuse_other_cases(run: Run, places: Sequence[RunFolder], parts: Sequence[Split]) -> None:
    """The folds must deal out what the run is trained on, also if it was begun a while ago."""
    for place, part in zip(places, parts, strict=True):
        is_same = (
            {*part.labeled, *part.validation} == set(run.split.labeled)
            and set(part.unlabeled) <= set(run.split.unlabeled)
            and part.test == run.split.test
        )
        if place.split.exists():
            saved = Split.read(place.split)
            is_same &= all(getattr(saved, name) == getattr(part, name) for name in PARTS)
        if not is_same:
            raise InputError(
                f"{run.path} was begun with other cases than {run.config.data.path} now gives: the "
                "dataset has changed. Choose another --out."
            )


def train_fold(folder: RunFolder, config: Config, whole: Run, title: str, split: Split) -> None:
    """Train one fold, as far as it is not trained yet."""
    last, steps = folder.last, config.train.steps
    if last.exists() and read_checkpoint(last).step == steps:
        return
    if not whole.quiet:
        held = ", ".join(split.validation)
        say(f"{title}: {count_noun(len(split.labeled), 'label')} to train on, held out: {held}.")
    if not folder.config.exists():
        # one plan for all, which has not looked at which case is held out; the settings come last,
        # since they make a run of a folder
        whole.plan.write(folder.plan)
        write_text(folder.config, config.as_toml())
    train(out=folder.path, settings=config.as_dict(), resume=True, quiet=whole.quiet)


def gathered(run: Run, folders: Sequence[RunFolder], parts: Sequence[Split]) -> Estimate:
    """The scores that the folds have left behind."""
    rows = [row for number, folder in enumerate(folders) for row in held_out_rows(folder, number)]
    by_step = means_by_step(rows, len(folders))
    owner = {case.name: case.subject for case in open_dataset(run.config).cases}
    return Estimate(
        tuple(row for row in rows if row.step == run.config.train.steps),
        by_step,
        tuple(len(part.labeled) for part in parts),
        len({owner[name] for part in parts for name in part.validation}),
    )


def means_by_step(rows: Sequence[HeldOut], folds: int) -> dict[int, float]:
    """Mean Dice at each step that all folds have scored.

    A fold that was lengthened by --resume has scores of its own: those of its first length.
    """
    found: dict[int, list[HeldOut]] = {}
    for row in rows:
        found.setdefault(row.step, []).append(row)
    return {
        step: statistics.fmean(row.dice for row in there)
        for step, there in sorted(found.items())
        if len({row.fold for row in there}) == folds
    }


def held_out_rows(folder: RunFolder, fold: int) -> list[HeldOut]:
    path = folder.validation
    scores = read_validation(path)
    if not scores:
        raise InputError(
            f"{path} is missing: training writes it. Remove {folder.path} and resume with --resume."
        )
    return [HeldOut(one.step, fold, one.case, one.class_name, one.dice) for one in scores]


def csv_of(estimate: Estimate) -> str:
    rows = [(row.fold, row.case, row.class_name, row.dice) for row in estimate.rows]
    return csv_text([("fold", "case", "class", "dice"), *rows])
