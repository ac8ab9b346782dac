"""The paper's figures, and its tables of cost and uncertainty, from the finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

from segpl.data.plan import Plan
from segpl.data.sampler import place_volumes
from segpl.display import bar
from segpl.engine.device import choose_device
from segpl.engine.folder import RunFolder
from segpl.evaluate.calibration import pair_probabilities, score_probabilities
from segpl.evaluate.scores import read_scores, write_scores
from segpl.evaluate.statistics import bland_altman, case_means, mann_whitney
from segpl.experiments.bench.counts import count_operations
from segpl.experiments.bench.trial import LATE, TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.experiments.paper.figures import sensitivity_figure, study_of, threshold_figure
from segpl.experiments.paper.results import PaperResults, stress_by_method, write_csv
from segpl.experiments.scoring import SAMPLES, predict_again
from segpl.experiments.stress_inputs import StressSettings
from segpl.records import read_record, write_json
from segpl.report.figures import run_color, save_figure
from segpl.report.run_record import RunRecord
from segpl.report.sections.volumes import common_limits, difference_figure
from segpl.report.stress_rows import stress_table
from segpl.report.tables import Table, mean_and_std, mean_of, p_text
from segpl.run import load_run
from segpl.settings import read_config, resolve

Part = list[Table | str]  # tables and sentences to print; empty without finished runs
FLOPS, UNCERTAINTY = "flops.json", "uncertainty"


def extras(results: PaperResults, out: Path, *, device: str) -> Iterator[Table | str]:
    """All tables except that of IoU, and a sentence for each figure in `out`, one by one.

    The last sentence lists what has no finished runs. Finished measurements are kept.
    """
    numbers, threshold = results.numbers, results.numbers.threshold
    parts: dict[str, tuple[object, Callable[[PaperResults, Path, str], Part]]] = {
        "cost": (numbers.cost, compare_costs),
        "figure 3": (numbers.pair, draw_pair),
        f"figure {threshold.figure if threshold else 4}": (threshold, draw_threshold),
        "figure 8": (numbers.sensitivity, draw_sensitivity),
        "figures 9 and 10": (numbers.robustness, compare_robustness),
        "uncertainty": (numbers.uncertainty, compare_uncertainty),
    }
    missing = []
    for name, (wanted, make) in parts.items():
        if wanted:
            shown = make(results, out, device)
            yield from shown
            missing += [] if shown else [name]
    if missing:
        yield f"No finished runs yet for: {', '.join(missing)}."


def compare_costs(results: PaperResults, out: Path, device: str) -> Part:
    """Time, FLOPs and parameters of a training run, averaged over all datasets and seeds."""
    runs = {label: results.on_all_datasets(label) for label in results.numbers.cost}
    if not any(runs.values()):
        return []
    flops = count_flops([found[0] for found in runs.values() if found], out / FLOPS, device)
    rows = []
    for label, printed in results.numbers.cost.items():
        own = ["-"] * 3
        if found := runs[label]:
            own = [
                f"{fmean(run.seconds for run in found):.0f}",
                f"{flops[found[0].path.name]:.2f}",
                f"{found[0].summary.parameters / 1000:.2f}",
            ]
        theirs = [f"{printed[0]:.0f}", f"{printed[1]:.2f}", f"{printed[2]:.2f}"]
        cells = [cell for pair in zip(own, theirs, strict=True) for cell in pair]
        rows.append([results.title(label), *cells])
    columns = ["seconds", "paper", "GFLOPs", "paper", "parameters (K)", "paper"]
    note = (
        "Seconds: a training run on this machine, and on the paper's TITAN V. Our GFLOPs: the "
        "forward passes of a training step, divided by its number of crops; a multiply-add counts "
        "as 2. Every method gets the same number of crops (supervised: all labeled). The paper "
        "does not state what it counts."
    )
    return [Table(["method", *columns], rows, note)]


def count_flops(runs: list[RunRecord], path: Path, device: str) -> dict[str, float]:
    """`gflops_per_crop` by run name; counts that are already in `path` are reused."""
    known = read_record(path, dict[str, float]) if path.exists() else {}
    missing = [run for run in runs if run.path.name not in known]
    with bar("counting FLOPs", len(missing)) as advance:
        for run in missing:
            known[run.path.name] = gflops_per_crop(run, device)
            write_json(path, known)
            advance()
    return known


def gflops_per_crop(run: RunRecord, device: str) -> float:
    """GFLOPs of the forward passes of one training step, divided by its number of crops."""
    folder, target = RunFolder(run.path), choose_device(device)
    config, plan = resolve(read_config(folder.config)), Plan.read(folder.plan)
    labeled = config.train.batch or plan.batch
    load = Workload("FLOPs", plan, labeled, labeled * config.train.ratio, cases=2)
    volumes = place_volumes(generate_volumes(plan, load.cases), target, math.inf)
    trial = TrainingTrial(config, load, volumes, target, plain=True)
    with trial.batches:
        batch = trial.batch()
    flops, _ = count_operations(lambda: trial.method.step(batch, LATE))
    return flops / 1e9 / load.crops


def draw_pair(results: PaperResults, out: Path, device: str) -> Part:
    """Figure 3, and the result of the paper's test."""
    assert results.numbers.pair is not None
    dataset, *pair = results.numbers.pair
    runs = results.on(dataset, pair)
    if len(runs) < 2:
        return []
    ours, theirs = (
        case_means({run.seed: run.by_case("iou") for run in runs[label]}) for label in pair
    )
    found = bland_altman(ours, theirs)
    figure = difference_figure(
        found,
        common_limits({dataset: found}),
        run_color(0),
        x="mean IoU of a test image",
        y=f"IoU, {pair[0]} - {pair[1]}",
    )
    path = out / "figure-3.png"
    save_figure(figure, path)
    p = mann_whitney(list(ours.values()), list(theirs.values()))
    return [f"Figure 3, {pair[0]} and {pair[1]} ({dataset}): {path}. Mann-Whitney p {p_text(p)}."]


def draw_threshold(results: PaperResults, out: Path, device: str) -> Part:
    """Figure 4 or 5: the learned threshold."""
    printed = results.numbers.threshold
    logs = [run.log for run in results.on_all_datasets("segpl-vi") if run.log.get("threshold")]
    if printed is None or not logs:
        return []
    path = out / f"figure-{printed.figure}.png"
    figure = threshold_figure({"segpl-vi": logs}, printed.value, results.columns[1])
    save_figure(figure, path)
    ends = mean_and_std([log["threshold"][-1] for log in logs])
    return [
        f"Figure {printed.figure}, learned threshold: {path}. At the last step: {ends}; paper: "
        f"{printed.value:g}."
    ]


def draw_sensitivity(results: PaperResults, out: Path, device: str) -> Part:
    """Figure 8, on the validation case: settings must not be chosen on test cases."""
    experiment, studies = results.experiment, {}
    for question in experiment.questions:
        if question.id in results.numbers.sensitivity:
            setting, title = results.numbers.sensitivity[question.id]
            runs = [
                run
                for dataset in question.only
                for found in results.on(dataset, question.labels).values()
                for run in found
            ]
            if study := study_of(runs, setting):
                studies[title] = study
    if not studies:
        return []
    path = out / "figure-8.png"
    save_figure(sensitivity_figure(studies), path)
    return [
        f"Figure 8, Dice of the validation case by setting of SegPL: {path}. Settings must not be "
        "chosen on test cases."
    ]


def compare_robustness(results: PaperResults, out: Path, device: str) -> Part:
    """Figures 9 and 10: Dice on degraded test images, one curve per method."""
    asked = results.numbers.robustness
    if asked is None or not results.on(asked.dataset):
        return []
    path, settings = out / "figure-9-10.png", StressSettings(only=asked.degradations)
    _, rows = stress_by_method(results, asked.dataset, settings, out / "robustness", path, device)
    return [stress_table(rows), f"Figures 9 and 10, robustness ({asked.dataset}): {path}."]


def compare_uncertainty(results: PaperResults, out: Path, device: str) -> Part:
    """Brier scores of samples of the threshold and of ensembles; also writes `uncertainty.csv`."""
    asked = results.numbers.uncertainty
    if asked is None or not (runs := results.on(asked.dataset, list(asked.brier))):
        return []
    scores: dict[str, list[float]] = {label: [] for label in asked.brier}
    with bar("predicting samples", sum(map(len, runs.values()))) as advance:
        for label, found in runs.items():
            for run in found:
                folder = out / UNCERTAINTY / run.path.name
                scores[label].append(brier_of(run.path, folder, device))
                advance()
    rows = [
        [results.title(label), mean_and_std(scores[label], 4), f"{printed:g}"]
        for label, printed in asked.brier.items()
    ]
    note = (
        f"Brier score on the test images ({asked.dataset}): mean squared error of the predicted "
        "probability; lower is better. The probability is the mean of 5 masks, one per sampled "
        "threshold, or of the networks of an ensemble. Ours: mean ± standard deviation over seeds. "
        "The paper does not define the scale of its number; by its equation, 0.97 would be nearly "
        "the worst score."
    )
    table = Table(["method", *results.columns], rows, note)
    write_csv(out / f"{UNCERTAINTY}.csv", table)
    return [table]


def brier_of(path: Path, out: Path, device: str) -> float:
    """Mean Brier score of sampled predictions of the test cases, which are kept in `out`."""
    run = load_run(path, device=device, quiet=True)
    by = "thresholds" if run.method.has_threshold else "networks"
    written = predict_again(run, out, probabilities=True, samples=SAMPLES, by=by)
    scores = out / "scores.csv"
    if written or not scores.exists():
        pairing = pair_probabilities(out, run.open_dataset())
        write_scores(scores, score_probabilities(pairing))
    return mean_of(one.value for one in read_scores(scores) if one.metric == "brier")
