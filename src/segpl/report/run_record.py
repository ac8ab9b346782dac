"""One run as its folder describes it. Reading it loads no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from segpl.data.case import Dataset
from segpl.data.layouts import read_dataset
from segpl.data.manifest import PredictedCase
from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.data.summary import CaseSummary
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.errors import InputError, UserError
from segpl.evaluate.fold_scores import FoldScore, read_fold_scores
from segpl.evaluate.postprocessing_file import PostProcessing, read_postprocessing
from segpl.evaluate.scores import Score, with_percentages
from segpl.evaluate.statistics import mean_by_key
from segpl.evaluate.validation import ValidationRow, read_validation
from segpl.files import RESTORE
from segpl.records import flat_items, read_record, read_toml
from segpl.report.run_scores import current_predictions, current_scores

Value = TypeVar("Value")
UNREADABLE = (UserError, OSError)
# settings that a report relies on
RELIED_ON = {
    **dict.fromkeys(("method.name", "data.path"), (str, "text")),
    **dict.fromkeys(("train.seed", "train.steps"), (int, "a whole number")),
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`summary.json`."""

    parameters: int = 0  # trainable weights; 0 if unknown
    changed: tuple[str, ...] = ()  # names of the settings that differ from their default
    reconstruction: bool = False  # the paper of the method is known only in part


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run folder. Parts that could not be read are empty, and `problems` says why."""

    name: str  # of the folder, with parent folders where names repeat
    path: Path
    settings: Mapping[str, Any]  # every setting by its full name, such as `train.lr`
    summary: RunSummary = RunSummary()
    plan: Plan | None = None
    split: Split | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    log: Mapping[str, Sequence[float]] = field(default_factory=dict)  # column -> values
    validation: Sequence[ValidationRow] = ()
    scores: Sequence[Score] = ()  # of cases not labeled in training; volume errors in %
    predicted: Mapping[str, PredictedCase] = field(default_factory=dict)  # by case
    folds: Sequence[FoldScore] = ()
    postprocessing: PostProcessing | None = None
    seconds: float = math.nan
    peak_bytes: float = math.nan
    problems: tuple[str, ...] = ()
    label: str = ""  # of its method in a report or a comparison

    @property
    def method(self) -> str:
        return str(self.settings["method.name"])

    @property
    def seed(self) -> int:
        return int(self.settings["train.seed"])

    @property
    def dataset(self) -> str:
        """Folder of the data."""
        return str(self.settings["data.path"])

    def open_dataset(self) -> Dataset:
        """The dataset of the run as it is now, including the labels of `data.labels`."""
        layout, subject, labels = (
            self.settings.get(f"data.{name}") for name in ("layout", "subject", "labels")
        )
        return read_dataset(Path(self.dataset), layout, subject=subject, labels=labels)

    @property
    def summaries(self) -> dict[str, CaseSummary]:
        """Of predicted cases that were not labeled in training."""
        labeled = self.split.labeled if self.split else ()
        return {
            case: one.summary
            for case, one in self.predicted.items()
            if one.summary and case not in labeled
        }

    @property
    def loss_terms(self) -> list[str]:
        """Columns of the log that have a weight."""
        return [column for column in self.log if f"{column}.weight" in self.log]

    def by_case(self, metric: str) -> dict[str, float]:
        """Test score of each case, averaged over classes; nan if a class has no number."""
        return mean_by_key((s.case, s.value) for s in self.scores if s.metric == metric)

    def folds_by_case(self) -> dict[str, float]:
        """Dice of each labeled case by the fold that held it out, averaged over classes."""
        return mean_by_key((row.case, row.dice) for row in self.folds)

    def validation_by_case(self) -> dict[str, float]:
        """Dice of each validation case at the last step, averaged over classes."""
        last = max((row.step for row in self.validation), default=0)
        return mean_by_key((row.case, row.dice) for row in self.validation if row.step == last)

    def validation_curve(self) -> dict[int, float]:
        """Mean validation Dice over cases and classes, by step."""
        return mean_by_key((row.step, row.dice) for row in self.validation)


def read_run(path: Path, *, name: str = "", label: str = "") -> RunRecord:
    """The record of a run folder. Only its config must be readable; other files may be missing."""
    folder = RunFolder(path)
    settings = read_settings(folder)
    problems: list[str] = []

    def attempt(what: str, read: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return read()
        except UNREADABLE as error:
            problems.append(f"no {what}: {reason(error)}")
            return otherwise

    components = folder.postprocessing
    split = attempt("split", lambda: Split.read(folder.split), None)
    no_times: dict[str, list[float]] = {}
    times = attempt("training times", lambda: read_log(folder.times), no_times)
    no_scores: tuple[list[Score], list[str]] = ([], [])
    scores, notes = attempt("scores", lambda: current_scores(folder, split), no_scores)
    problems += notes
    return RunRecord(
        name=name or path.name,
        path=path,
        settings=settings,
        summary=attempt("summary", lambda: read_record(folder.summary, RunSummary), RunSummary()),
        plan=attempt("plan", lambda: Plan.read(folder.plan), None),
        split=split,
        environment=attempt(
            "environment", lambda: read_record(folder.environment, dict[str, Any]), {}
        ),
        log=attempt("log", lambda: read_log(folder.log), {}),
        validation=attempt("validation scores", lambda: read_validation(folder.validation), []),
        scores=with_percentages(scores),
        predicted=attempt("predictions", lambda: current_predictions(folder), {}),
        folds=attempt("cross-validation", lambda: _folds(folder, settings), []),
        postprocessing=attempt("post-processing", lambda: read_postprocessing(components), None)
        if components.exists()
        else None,
        seconds=_last(times, "seconds"),
        peak_bytes=_last(times, "peak_bytes"),
        problems=tuple(problems),
        label=label,
    )


def read_settings(folder: RunFolder) -> dict[str, Any]:
    """Every setting of a run by its full name. A run saves all of them, defaults included."""
    path = folder.config
    if not path.is_file():
        raise InputError(f"{folder.path} is not a run folder: it has no config.toml.")
    settings = dict(flat_items(read_toml(path)))
    for name, (kind, words) in RELIED_ON.items():
        if type(settings.get(name)) is not kind:
            raise InputError(
                f"{path} cannot be used: {name} is {settings.get(name)!r}, but must be "
                f"{words}. {RESTORE}"
            )
    return settings


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _folds(folder: RunFolder, settings: Mapping[str, Any]) -> list[FoldScore]:
    """Cross-validation scores; empty without the file. Folds with other steps are an error."""
    rows = read_fold_scores(folder.folds)
    steps = settings["train.steps"]
    if any(row.step != steps for row in rows):
        raise InputError(
            f"{folder.folds.name} is from folds with other --steps than this run ({steps}). Resume "
            f"them with `segpl train --out {folder.path} --resume --folds N`."
        )
    return rows


def _last(log: Mapping[str, Sequence[float]], column: str) -> float:
    values = log.get(column, [])
    return values[-1] if values else math.nan
