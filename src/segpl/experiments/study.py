"""Questions answered by training: variants of methods on several datasets, over several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from segpl.data.split import Split
from segpl.engine.log import read_log
from segpl.errors import InputError, MissingFileError
from segpl.experiments.compare import FOUND, carry_out, outcome_from, prepare, run_folder
from segpl.experiments.study_file import Study, StudyDataset, refuse_absent
from segpl.experiments.variants import with_special
from segpl.files import csv_text, write_atomically, write_text
from segpl.report.comparison.outcomes import Outcome
from segpl.report.comparison.questions import Question
from segpl.report.comparison.study import StudyResults, study_rows, study_text
from segpl.report.figures import with_palette
from segpl.report.seed_curves import Log, last_number, seed_curves_figure
from segpl.report.tables import counted
from segpl.run import load_run
from segpl.settings import changed_settings, merge_settings, read_config, resolve

ABSENT = "not trained yet"
# what a comparison fills in, or what may differ without another result
FILLED = ("data.path", "data.plan", "split.draw")
DPI = 110


def run_study(
    study: Study,
    out: Path,
    *,
    root: Path = Path(),
    only: Sequence[str] = (),
    jobs: int = 1,
    device: str | None = None,
    quiet: bool = False,
) -> dict[str, list[Outcome]]:
    """Train and score what the questions need; what is there already is kept.

    Args:
        study: what is asked.
        out: folder of the study; `out/datasets/NAME` holds the comparison on one dataset.
        root: folder of the datasets.
        only: datasets to train on; of the others, what was trained before is taken. None: all.
        jobs: trainings that run at the same time, of all datasets together.
        device: overrules `train.device`.
        quiet: no progress on the error stream.

    Returns the outcomes by dataset; a dataset without any is not there.
    """
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one training has to run at a time.")
    refuse_absent(only, [dataset.name for dataset in study.datasets], "--only: no dataset named")
    chosen = [dataset for dataset in study.datasets if not only or dataset.name in only]
    places = {dataset.name: place_of(dataset, root) for dataset in chosen}
    kept = {
        dataset.name: list(kept_outcomes(study, dataset, out))
        for dataset in study.datasets
        if dataset not in chosen
    }
    todo = [
        job
        for dataset in chosen
        for job in prepare(
            places[dataset.name],
            folder_of(out, dataset),
            study.comparison_on(dataset, device),
            dataset=dataset.name,
            quiet=quiet,
        )
    ]
    results = carry_out(todo, jobs=jobs, quiet=quiet)
    trained: dict[str, list[Outcome]] = {}
    for job, outcome in zip(todo, results, strict=True):
        trained.setdefault(job.dataset, []).append(outcome)
    everything = {**kept, **trained}
    names = [dataset.name for dataset in study.datasets if everything[dataset.name]]
    return {name: everything[name] for name in names}


def trained_so_far(study: Study, out: Path) -> dict[str, list[Outcome]]:
    """The outcomes of a study that was interrupted, as `run_study` returns them."""
    kept = {dataset.name: list(kept_outcomes(study, dataset, out)) for dataset in study.datasets}
    if not any(kept.values()):
        raise InputError(f"{out} has no training of this study that has ended: no page to write.")
    return {name: outcomes for name, outcomes in kept.items() if outcomes}


def place_of(dataset: StudyDataset, root: Path) -> Path | None:
    """The folder of a dataset; None for generated scans."""
    if not dataset.path:
        return None
    place = root / dataset.path
    if not place.is_dir():
        raise MissingFileError(
            f"dataset '{dataset.name}': {place} is no folder. Say with --data where the datasets "
            "are, or leave this one out with --only."
        )
    return place


def folder_of(out: Path, dataset: StudyDataset) -> Path:
    return out / "datasets" / dataset.name


def kept_outcomes(study: Study, dataset: StudyDataset, out: Path) -> Iterator[Outcome]:
    """What was trained before on a dataset that is not trained on now; nothing, if it never was."""
    folder = folder_of(out, dataset)
    labels = study.labels_on(dataset.name)
    runs = {
        (label, seed): run_folder(folder, label, seed) for seed in dataset.seeds for label in labels
    }
    if not any((run.path / "scores.csv").exists() for run in runs.values()):
        return
    special = study.special_on(dataset)
    for (label, seed), run in runs.items():
        if not (run.path / "scores.csv").exists():
            yield Outcome(label, seed, error=ABSENT)
            continue
        shared = merge_settings(dataset.sections, {"train": {"seed": seed}})
        wanted = resolve(with_special(shared, label, special[label]))
        # where a study does not say how many labels there are, the comparison has filled it in
        filled = FILLED if wanted.split.labeled else (*FILLED, "split.labeled")
        if changed := changed_settings(run, wanted, ignore=(*FOUND, *filled)):
            raise InputError(
                f"{run.path} was trained with other settings: {', '.join(changed)}. Choose another "
                "--out, or give the same settings."
            )
        yield outcome_from(load_run(run.path, quiet=True), label, seed)


def write_study(
    study: Study, out: Path, outcomes: Mapping[str, Sequence[Outcome]], *, source: str
) -> StudyResults:
    """Write `study.md`, `study.csv` and the pictures; `source` is the file as the page names it."""
    pictures = {}
    for question in study.questions:
        figure = seed_curves_figure(
            logs_of(question, study, out, outcomes), question.curves, question.labels
        )
        if figure is not None:
            pictures[question.id] = f"images/{question.id}.png"
            save_picture(out / pictures[question.id], figure)
    shown = [dataset for dataset in study.datasets if dataset.name in outcomes]
    labels = dict.fromkeys(label for dataset in shown for label in study.labels_on(dataset.name))
    results = StudyResults(
        title=study.title,
        made=made_by(study, shown, outcomes, source),
        conditions={
            dataset.name: conditions(dataset, out, outcomes[dataset.name]) for dataset in shown
        },
        variants={label: described(label, study.special.get(label, {})) for label in labels},
        questions=study.questions,
        final=study.final,
        outcomes=outcomes,
        pictures=pictures,
        logged={
            dataset.name: logged_on(study, dataset, out, outcomes[dataset.name])
            for dataset in shown
        },
        fitted={dataset.name: study.fitted_on(dataset) for dataset in shown},
    )
    write_text(out / "study.csv", csv_text(study_rows(results)))
    write_text(out / "study.md", study_text(results))
    return results


def save_picture(path: Path, figure: Figure) -> None:
    picture = with_palette(figure, dpi=DPI)
    write_atomically(path, lambda draft: picture.save(draft, optimize=True))


def logs_of(
    question: Question, study: Study, out: Path, outcomes: Mapping[str, Sequence[Outcome]]
) -> dict[str, dict[str, list[Log]]]:
    """The logs of a question's trainings, by dataset and label."""
    found: dict[str, dict[str, list[Log]]] = {}
    for dataset in study.datasets:
        if not question.curves or not question.is_asked_on(dataset.name):
            continue
        for outcome in outcomes.get(dataset.name, ()):
            if outcome.method in question.labels and not outcome.error:
                run = run_folder(folder_of(out, dataset), outcome.method, outcome.seed)
                by_label = found.setdefault(dataset.name, {})
                by_label.setdefault(outcome.method, []).append(read_log(run.log))
    return found


def logged_on(
    study: Study, dataset: StudyDataset, out: Path, outcomes: Sequence[Outcome]
) -> dict[tuple[str, int], dict[str, float]]:
    """The last number of each column that a question measures, by label and seed."""
    asked = [question for question in study.asked_on(dataset.name) if question.measure]
    found: dict[tuple[str, int], dict[str, float]] = {}
    for outcome in outcomes:
        columns = {question.measure for question in asked if outcome.method in question.labels}
        if columns and not outcome.error:
            run = run_folder(folder_of(out, dataset), outcome.method, outcome.seed)
            log = read_log(run.log)
            found[outcome.method, outcome.seed] = {
                column: last_number(log, column) for column in columns
            }
    return found


def made_by(
    study: Study,
    shown: Sequence[StudyDataset],
    outcomes: Mapping[str, Sequence[Outcome]],
    source: str,
) -> str:
    """The command, without the folders of this machine, and how many trainings it took."""
    data = " --data DATASETS" if any(dataset.path for dataset in shown) else ""
    part = "" if len(shown) == len(study.datasets) else f" --only {' '.join(d.name for d in shown)}"
    count = sum(o.error != ABSENT for of_dataset in outcomes.values() for o in of_dataset)
    command = f"segpl study {source}{data}{part} --out FOLDER"
    return f"Made by `{command}` from {counted(count, 'training')}."


def conditions(dataset: StudyDataset, out: Path, outcomes: Sequence[Outcome]) -> str:
    """Cases, steps and seeds, and what a test over these seeds can speak of."""
    seeds = ", ".join(map(str, dataset.seeds))
    place = f"`{Path(dataset.path).name}`"
    source = place if dataset.path else "generated lung vessels, other ones for every seed"
    text = f"{source}; seed{'s' if len(dataset.seeds) > 1 else ''} {seeds}"
    if dataset.method:
        given = ", ".join(f"`{name}` {value}" for name, value in flat(dataset.method))
        text += f"; {given} unless a variant says otherwise"
    # of each seed the first, the baseline: variants may have other steps and fewer cases
    runs = {
        outcome.seed: run_folder(folder_of(out, dataset), outcome.method, outcome.seed)
        for outcome in reversed(outcomes)
        if not outcome.error
    }
    if not runs:
        return f"{text}."
    splits = [Split.read(run.split) for run in runs.values()]
    split, steps = splits[0], resolve(read_config(next(iter(runs.values())).config)).train.steps
    return (
        f"{text}; {len(split.labeled)} labeled, {len(split.unlabeled)} unlabeled, "
        f"{len(split.validation)} validation and {len(split.test)} test cases; {steps} steps."
        f"{coverage(dataset, splits)}"
    )


def coverage(dataset: StudyDataset, splits: Sequence[Split]) -> str:
    """Over what the seeds vary, and so what intervals and p are about; one seed has none."""
    if len(splits) < 2:
        return ""
    if not dataset.path:
        return (
            " Every seed has other scans, for training, validation and test: intervals and p are "
            "about new scans, weights and crops."
        )
    is_drawn = len({frozenset(split.labeled) for split in splits}) > 1
    varied = "labeled cases, weights and crops" if is_drawn else "weights and crops"
    return (
        " The validation and test cases are the same for all seeds: intervals and p are about new "
        f"draws of {varied}, not about new scans."
    )


def described(label: str, special: Mapping[str, Any]) -> tuple[str, dict[str, object]]:
    """The method behind a label, and its settings with their full names."""
    settings = {key: value for key, value in special.items() if key != "method"}
    return str(special.get("method", label)), dict(flat(settings))


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
