"""Runs as they lie on the disk, gathered for a report; and what a report lacks, filled in."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from segpl.assembly import build_method
from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.display import bar, say
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.errors import InputError, UserError
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.scores import Score, evaluate_folders, read_scores, write_scores
from segpl.evaluate.validation_file import read_validation
from segpl.experiments.folds import held_out_rows
from segpl.experiments.report_cases import calibrations, channel_note, volumes, wanted_pictures
from segpl.files import read_json
from segpl.predict.outputs import OtherWeightsError
from segpl.report.gathered import FoldScore, FoundRun, Gathered, grouped, short_paths
from segpl.report.page.assets import write_assets
from segpl.report.page.report import write_report
from segpl.report.page.slices import BUDGET, browse
from segpl.report.sections.agreement import agreement_section
from segpl.report.sections.answer import ranked
from segpl.report.sections.calibration import calibration_section
from segpl.report.sections.expected import expected_sections
from segpl.report.sections.repeat import repeat_section
from segpl.report.sections.scores import score_section
from segpl.report.sections.section import Section
from segpl.report.sections.stress import stress_section
from segpl.report.sections.training import cost_section, curve_sections
from segpl.report.stress.rows import StressRow, read_stress
from segpl.run import load_run
from segpl.settings import Config, read_config, resolve
from segpl.validate.agreement import current_agreement

T = TypeVar("T")
# what reading a file that was cut, edited or replaced by something else can raise
UNREADABLE = (UserError, OSError, ValueError, KeyError, TypeError, IndexError, csv.Error)
SAMPLES = 5
LIMIT = 15_000_000  # bytes of a page, so that it can be sent by mail


def gather(paths: Sequence[Path], *, advance: Callable[[], object] = lambda: None) -> Gathered:
    """Every run that can be read, with what it lacks; the others by name, with the reason."""
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    names = short_paths([str(path) for path in unique])
    runs: list[FoundRun] = []
    broken: dict[str, str] = {}
    for path in unique:
        name = names[str(path)]
        try:
            runs.append(read_run(path, name))
        except UNREADABLE as error:
            broken[name] = reason(error)
        advance()
    if not runs:
        raise InputError(
            "no run can be read: "
            + "; ".join(f"{name}: {why}" for name, why in broken.items())
            + " Give folders that --out named in training."
        )
    return grouped(runs, broken)


def read_run(path: Path, name: str) -> FoundRun:
    """A run whose settings are readable; every other file may be missing."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise InputError(f"{path} is no run of segpl: it has no config.toml.")
    config = resolve(read_config(folder.config), str(folder.config))
    defaults = resolve({"method": {"name": config.method}}).leaves()
    settings = config.leaves()
    problems: list[str] = []

    def attempt(what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except UNREADABLE as error:
            problems.append(f"no {what}: {reason(error)}")
            return otherwise

    plan = attempt("plan", lambda: Plan.read(folder.plan), None)
    split = attempt("split", lambda: Split.read(folder.split), None)
    nothing: dict[str, list[float]] = {}
    times = attempt("times of training", lambda: read_log(folder.times), nothing)
    return FoundRun(
        name=name,
        path=path,
        method=config.method,
        seed=config.train.seed,
        settings=settings,
        changed={key: value for key, value in settings.items() if value != defaults.get(key)},
        dataset=config.data.path,
        plan=plan,
        split=split,
        environment=attempt("versions", lambda: _table(folder.environment), {}),
        log=attempt("log", lambda: read_log(folder.log), nothing),
        validation=attempt("validation scores", lambda: _validation(folder.validation), {}),
        scores=attempt("scores", lambda: _scores(path, split), []),
        folds=attempt("cross-validation", lambda: _folds(folder, config), []),
        agreement=attempt("agreement", lambda: current_agreement(folder), None),
        seconds=_last(times, "seconds"),
        peak_bytes=_last(times, "peak_bytes"),
        parameters=attempt("number of weights", lambda: _parameters(config, plan), 0),
        problems=tuple(problems),
    )


def make_report(
    paths: Sequence[Path],
    out: Path,
    *,
    stress: Path | None = None,
    assets: Path | None = None,
    command: str = "",
    quiet: bool = False,
) -> Gathered:
    """Write the page of these runs, and its tables and figures where `assets` asks for them."""
    rows = read_stress(stress) if stress else None  # before anything long
    with bar("reading runs", len(paths), quiet=quiet) as advance:
        found = gather(paths, advance=advance)
    with bar("calibration", len(found.runs), quiet=quiet) as advance:
        sections = sections_of(found, rows, advance=advance)
    size = write_page(out, found, sections, command, budget=BUDGET, quiet=quiet)
    if size > LIMIT:
        # many runs have many curves: pictures make room for them
        budget = LIMIT - write_page(out, found, sections, command, budget=0, quiet=True)
        while size > LIMIT:
            size = write_page(out, found, sections, command, budget=max(0, budget), quiet=quiet)
            if budget <= 0:
                break
            budget = int(0.9 * (budget - max(0, size - LIMIT)))  # frames of pictures count too
    if assets:
        write_assets(assets, sections)
    return found


def write_page(
    out: Path,
    found: Gathered,
    sections: Sequence[Section],
    command: str,
    *,
    budget: int,
    quiet: bool,
) -> int:
    """Write the page with pictures of at most `budget` bytes; returns the size of the file."""
    wanted = wanted_pictures(found) if budget else []
    with bar("slices", len(wanted), quiet=quiet) as advance:
        browsers, sheets, note = browse(wanted, budget=budget, advance=advance)
    if not any(run.scores for run in found.runs):
        note = "No run has a scored case that could be shown."
    elif browsers and not sheets:
        note = "None of them could be read."
    write_report(
        out,
        found,
        sections,
        browsers=browsers,
        sheets=sheets,
        picture_note=" ".join(filter(None, (note, channel_note(found) if sheets else ""))),
        command=command,
    )
    return out.stat().st_size


def sections_of(
    found: Gathered,
    stress: Sequence[StressRow] | None = None,
    *,
    advance: Callable[[], object] = lambda: None,
) -> list[Section]:
    """Everything but the pictures, in the order of the page."""
    if len(found.datasets) == 1 or found.has_data_by_seed:
        agreement = agreement_section(*volumes(found, ranked(found)[:2]))
    else:
        agreement = agreement_section({}, "", ["These runs are of several datasets."])
    return [
        score_section(found),
        *expected_sections(found),
        *curve_sections(found),
        calibration_section(*calibrations(found, advance=advance)),
        stress_section(found, stress),
        agreement,
        cost_section(found),
        repeat_section(found),
    ]


def fill(path: Path, *, device: str = "auto", quiet: bool = False) -> None:
    """Predict the test cases with probabilities and samples, and score them by every metric."""
    run = load_run(path, device=device, quiet=quiet)
    predictions = path / "predictions"
    for out, options in (
        (predictions, {"probabilities": True}),
        (path / "samples", {"samples": SAMPLES}),
    ):
        try:
            run.predict(out=out, **options)  # keeps finished masks of the same weights
        except OtherWeightsError:
            run.predict(out=out, overwrite=True, **options)
    with bar("scoring", len(run.split.test), quiet=quiet) as advance:
        scores = evaluate_folders(
            predictions, run.config.data.path, metrics=tuple(METRICS), advance=advance
        )
    write_scores(path / "scores.csv", scores)


def fill_all(paths: Sequence[Path], *, device: str = "auto", quiet: bool = False) -> None:
    """Fill in every run that can be; of the others the report tells."""
    for number, path in enumerate(paths, 1):
        if not quiet:
            say(f"filling in {path}, {number} of {len(paths)}")
        try:
            fill(path, device=device, quiet=quiet)
        except UserError as error:
            say(f"{path} is not filled in: {error}", style="yellow")


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _scores(path: Path, split: Split | None) -> list[Score]:
    """Those beside the run and those that `segpl evaluate` left; of one number, the newest."""
    if split is not None and not split.test:
        raise InputError("no case was held out for the test. Train with --test N.")
    places = [path / "scores.csv", path / "predictions" / "scores.csv"]
    found = [place for place in places if place.is_file()]
    if not found:
        raise InputError(
            f"there is no {places[0].name}. Write it with `segpl report --fill`, or with `segpl "
            "predict` and `segpl evaluate`."
        )
    values: dict[tuple[str, str, str], Score] = {}
    for place in sorted(found, key=lambda place: place.stat().st_mtime):
        values |= {(s.case, s.class_name, s.metric): s for s in read_scores(place)}
    if not values:
        raise InputError(f"{found[0]} holds no row.")
    return list(values.values())


def _validation(path: Path) -> dict[int, float]:
    """Mean Dice over cases and classes at each step; empty without the file."""
    groups: dict[int, list[float]] = {}
    for row in read_validation(path):
        groups.setdefault(row.step, []).append(row.dice)
    return {step: math.fsum(values) / len(values) for step, values in sorted(groups.items())}


def _folds(folder: RunFolder, config: Config) -> list[FoldScore]:
    """What cross-validation left behind; empty without the file, refused of other trainings."""
    if not folder.folds.is_file():
        return []
    with folder.folds.open(encoding="utf-8", newline="") as handle:
        rows = [
            FoldScore(int(row["fold"]), row["case"], row["class"], float(row["dice"]))
            for row in csv.DictReader(handle)
        ]
    steps, folds = config.train.steps, sorted({row.fold for row in rows})
    for number in folds:
        place = RunFolder(folder.path / f"fold-{number}")
        if not place.config.is_file():
            continue  # removed to save space: nothing to compare with
        # settings of a fold are written before it is trained on, its scores after
        ended = {
            (row.case, row.class_name): row.dice
            for row in held_out_rows(place, number)
            if row.step == steps
        }
        if ended != {(row.case, row.class_name): row.dice for row in rows if row.fold == number}:
            raise InputError(
                f"{folder.folds.name} is not of trainings of {steps} steps, as the run is. `segpl "
                f"train --out {folder.path} --resume --folds {len(folds)}` goes on with the folds."
            )
    return rows


def _parameters(config: Config, plan: Plan | None) -> int:
    if plan is None:
        raise InputError("the plan cannot be read.")
    return sum(p.numel() for p in build_method(config, plan).parameters() if p.requires_grad)


def _last(log: dict[str, list[float]], column: str) -> float:
    values = log.get(column, [])
    return values[-1] if values else math.nan


def _table(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {content!r}, and a table is needed.")
    return content
