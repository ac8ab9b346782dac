"""The functions of the package that need several of its parts; `segpl.NAME` loads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from segpl.data.check import inspect_all, render
from segpl.data.layouts import read_dataset
from segpl.data.layouts.content import list_content, unused_files
from segpl.data.problems import Problem
from segpl.display import bar, plain_console
from segpl.errors import InputError
from segpl.experiments.compare import ExperimentResult, run_experiment
from segpl.experiments.engines.base import EngineKeywords, EngineOptions
from segpl.experiments.engines.choice import make_engine
from segpl.experiments.experiment import Experiment, make_experiment
from segpl.experiments.scoring import fill_all, predict_missing
from segpl.labeling.ranking import DEFAULT_COUNT, DEFAULT_RULE, Suggestion, rank_cases
from segpl.records import read_toml
from segpl.report.collection import without_scores
from segpl.report.page.report import check_files, write_report
from segpl.run import Run, load_run
from segpl.settings import with_overrides


def check(
    data: str | Path,
    *,
    layout: str | None = None,
    subject: str | None = None,
    yes: bool = False,
    quiet: bool = False,
) -> list[Problem]:
    """Read every case of a dataset, print what was found, and return its problems.

    Args:
        data: folder of the dataset.
        layout: name of a file layout; by default it is detected.
        subject: regular expression whose group is the subject of a case.
        yes: accept the layout that is proposed for other file names.
        quiet: print nothing.
    """
    root = Path(data)
    dataset = read_dataset(root, layout, subject=subject, accept=yes)
    content = list_content(root)
    with bar("reading cases", len(dataset.cases), quiet=quiet) as advance:
        inspection = inspect_all(dataset, content.unusable, advance)
    if not quiet:
        unused = unused_files(dataset, content)
        chosen = {"layout": layout, "subject": subject}
        given = {key: value for key, value in chosen.items() if value}
        more = ", yes=True" if yes else ""
        more += f', settings={{"data": {given}}}' if given else ""
        page = render(inspection, f'segpl.train("{data}"{more})', unused=unused)
        plain_console(soft_wrap=False).print(page, crop=False)
    return list(inspection.problems)


def compare(
    source: str | Path = "",
    *,
    out: str | Path,
    phantom: bool = False,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    steps: int | None = None,
    labeled: int | None = None,
    test: int | None = None,
    device: str | None = None,
    on: str = "local",
    data: str | Path = "",
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    quiet: bool = False,
    **resources: Unpack[EngineKeywords],
) -> ExperimentResult:
    """Train several methods with several seeds, and compare them with significance tests.

    Args:
        source: folder of a dataset, or a TOML file that describes an experiment.
        out: output folder; a repeated call resumes an interrupted comparison.
        phantom: use generated scans as data.
        methods: methods or variants to compare with supervised training; all by default.
        seeds: by default 0, 1 and 2.
        steps: training steps.
        labeled: use this many labels and hide the others.
        test: hold out this many labeled cases for testing.
        device: "auto", "cpu", "cuda" or "cuda:N".
        on: where to train: "local", "ray" or "slurm".
        data: folder that contains the datasets of a TOML file.
        only: train only on these datasets of a TOML file.
        overrides: settings such as "train.lr=0.003" or "methods.segpl.alpha=1".
        quiet: show no progress.
        jobs: runs to train in parallel; by default one, and on a cluster as many as fit.
        address: address of the Ray cluster, such as "host:6379"; by default the one that this
            machine is part of.
        cpus: CPU cores per run on a cluster; 1 by default.
        gpus: GPUs per run on a cluster; by default 1 if the device is "cuda", otherwise 0.
        memory: main memory per run on a cluster, in GB.
        retries: retries of a run whose process or machine is lost; 3 by default.
        partition: Slurm partition.
        account: Slurm account.
        time_limit: time limit of a Slurm job, such as "4h"; a longer run is requeued and resumes.
    """
    experiment = read_comparison(
        source,
        phantom=phantom,
        methods=methods,
        seeds=seeds,
        steps=steps,
        labeled=labeled,
        test=test,
        device=device,
        overrides=overrides,
    )
    engine = make_engine(on, EngineOptions(**resources), Path(out))
    return run_experiment(
        experiment, Path(out), root=Path(data), only=only, engine=engine, quiet=quiet
    )


def read_comparison(
    source: str | Path,
    *,
    phantom: bool,
    methods: Sequence[str],
    seeds: Sequence[int],
    steps: int | None,
    labeled: int | None,
    test: int | None,
    device: str | None,
    overrides: Sequence[str],
) -> Experiment:
    """The experiment that the arguments of `compare` describe."""
    if bool(str(source)) == phantom:
        raise InputError("give either a dataset, a TOML file, or --phantom to generate scans.")
    given = {
        "train.steps": steps,
        "train.device": device,
        "split.labeled": labeled,
        "split.test": test,
    }
    chosen = [f"{key}={value}" for key, value in given.items() if value is not None]
    content: dict[str, Any]
    if phantom:
        content, name = {"datasets": {"": {"phantom": True}}}, "--phantom"
    elif Path(source).suffix.lower() == ".toml":
        content, name = read_toml(Path(source)), Path(source).name
    else:
        content, name = {"datasets": {"": {"path": str(source)}}}, str(source)
    return make_experiment(
        content,
        name,
        methods=[methods] if isinstance(methods, str) else methods,
        seeds=seeds,
        overrides=with_overrides(with_overrides({}, chosen), overrides),
    )


def next_cases(
    run: str | Path | Run,
    *,
    count: int = DEFAULT_COUNT,
    rule: str = DEFAULT_RULE,
    round: int | None = None,  # noqa: A002  # the established name
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> list[Suggestion]:
    """The unlabeled scans to label next, best first, each with `case`, `score` and `reason`.

    Args:
        run: run folder, or a loaded run.
        count: maximum number of scans.
        rule: "entropy", "disagreement", "distance" or "random".
        round: rounds of labeling so far, from 0, for the noise of "entropy"; by default one for
            every 5 labeled scans.
        seed: seed of random choices.
        device: to predict with, if `run` is a folder.
        quiet: show no progress.
    """
    loaded = run if isinstance(run, Run) else load_run(run, device=device, quiet=quiet)
    return rank_cases(loaded, rule=rule, count=count, round=round, seed=seed, quiet=quiet)


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path = "report.html",
    stress: str | Path | None = None,
    assets: str | Path | None = None,
    fill: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Path:
    """Write one HTML page about runs, and return its path.

    Args:
        runs: run folders.
        out: the HTML file.
        stress: table that `segpl stress` wrote about these runs.
        assets: folder for all tables and figures as separate files.
        fill: first predict the test cases with probabilities and samples, and score every metric;
            by default, runs without scores predict and score what the report needs.
        device: to predict with.
        quiet: show no progress.
    """
    paths = [Path(one) for one in ([runs] if isinstance(runs, str | Path) else runs)]
    page, files = Path(out), Path(assets) if assets else None
    table = Path(stress) if stress else None
    check_files(page, files, table)
    if fill:
        fill_all(paths, device=device, quiet=quiet)
    else:
        predict_missing(without_scores(paths), device=device, quiet=quiet)
    write_report(paths, page, stress=table, assets=files, quiet=quiet)
    return page
