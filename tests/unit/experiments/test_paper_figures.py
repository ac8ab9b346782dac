"""Figures and tables of the paper, from made-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import make_record

from segpl.experiments.experiment import make_experiment
from segpl.experiments.paper import extras, results
from segpl.experiments.paper.figures import sensitivity_figure, study_of, threshold_figure
from segpl.experiments.paper.results import PaperNumbers, PaperResults, PrintedThreshold
from segpl.experiments.stress_inputs import StressSettings
from segpl.report.stress_rows import StressRow, curve_of
from segpl.report.tables import Table


def made_up(numbers: PaperNumbers, **runs) -> PaperResults:
    experiment = make_experiment({"datasets": {"a": {"path": "a"}}}, "test")
    found = {"a": {label.replace("_", "-"): own for label, own in runs.items()}}
    return PaperResults(numbers, experiment, found, {})


def test_study_averages_over_cases_and_groups_seeds_by_the_value_of_the_setting():
    runs = [
        make_record("segpl", 0, validation=[0.5], settings={"train.lr": 0.1}),
        make_record("segpl", 0, validation=[0.2, 0.4], settings={"train.lr": 0.01}),
        make_record("segpl", 1, validation=[0.6], settings={"train.lr": 0.01}),
        make_record("segpl", 2, settings={"train.lr": 0.01}),  # no validation scores
    ]
    study = study_of(runs, "train.lr")
    assert list(study) == [0.01, 0.1]
    assert study[0.01] == pytest.approx([0.3, 0.6])
    assert study[0.1] == [0.5]


def test_sensitivity_panels_show_means_and_deviations_at_the_values():
    studies = {"rate": {0.001: [0.2, 0.4], 0.1: [0.5]}, "ratio": {1.0: [0.3], 10.0: [0.1, 0.5]}}
    figure = sensitivity_figure(studies)
    rate, ratio = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["rate", "ratio"]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]
    assert [text.get_text() for text in rate.get_xticklabels()] == ["0.001", "0.1"]
    assert rate.lines[0].get_xdata().tolist() == [0.001, 0.1]
    assert rate.lines[0].get_ydata() == pytest.approx([0.3, 0.5])
    assert ratio.lines[0].get_ydata() == pytest.approx([0.3, 0.3])
    (bars,) = ratio.collections
    heights = [segment[1][1] - segment[0][1] for segment in bars.get_segments()]
    assert heights == pytest.approx([0, 2 * 0.2 * 2**0.5])  # stdev of 0.1 and 0.5


def test_threshold_figure_shows_the_mean_over_seeds_and_the_papers_value():
    logs = [
        {"step": [1.0, 2.0], "threshold": [0.5, 0.6]},
        {"step": [1.0, 2.0], "threshold": [0.7, 0.8]},
    ]
    (axes,) = threshold_figure({"segpl-vi": logs}, 0.9, "paper").axes
    ours, papers = axes.lines
    assert ours.get_ydata() == pytest.approx([0.6, 0.7])
    assert list(papers.get_ydata()) == [0.9, 0.9]
    assert papers.get_label() == "paper, at the end: 0.9"


def test_curves_average_over_the_seeds_of_a_method(tmp_path, monkeypatch):
    """Rows of other runs, such as those with earlier settings, are in the table but not drawn."""
    runs = {
        label: [make_record(label, seed, path=Path(f"/runs/{label}-{seed}")) for seed in (0, 1)]
        for label in ("supervised", "segpl")
    }
    dice = {"segpl-0": 0.4, "segpl-1": 0.8, "supervised-0": 0.1, "supervised-1": 0.3, "old-0": 1.0}
    rows = [StressRow(name, "gamma", 1.0, "x", "c", value, 0.0) for name, value in dice.items()]
    measured, drawn = [], []
    monkeypatch.setattr(
        results, "stress", lambda paths, *_, **options: measured.append(paths) or rows
    )
    monkeypatch.setattr(results, "draw_stress", lambda shown, *_, **options: drawn.extend(shown))
    found = made_up(PaperNumbers(source="", iou={}), **runs)
    by_run, by_method = results.stress_by_method(
        found, "a", StressSettings(), tmp_path, tmp_path / "figure.png", "cpu"
    )
    assert [path.name for path in measured[0]] == [
        *("supervised-0", "supervised-1", "segpl-0", "segpl-1")
    ]
    assert by_run == rows
    assert by_method == drawn
    assert list(dict.fromkeys(row.run for row in drawn)) == ["supervised", "segpl"]
    assert curve_of(drawn, "segpl", "gamma")[1] == pytest.approx([0.6])
    assert curve_of(drawn, "supervised", "gamma")[1] == pytest.approx([0.2])


def test_costs_are_means_over_seeds_and_flops_are_counted_once(tmp_path, monkeypatch):
    flops = {"supervised": 3.0, "cps": 6.0}
    counted = []

    def count(run, device):
        counted.append(run.method)
        return flops[run.method]

    monkeypatch.setattr(extras, "gflops_per_crop", count)
    cost = {"supervised": (10.0, 6.22, 626.74), "cps": (20.0, 12.44, 1253.48), "cct": (1, 8.3, 2)}
    runs = {"supervised": [make_record("supervised"), make_record("supervised", 2)]}
    runs["cps"] = [make_record("cps")]
    found = made_up(PaperNumbers(source="", iou={}, cost=cost), **runs)
    for _ in range(2):
        (table,) = extras.extras(found, tmp_path, device="cpu")
        assert isinstance(table, Table)
        rows = {row[0]: row[1:] for row in table.rows}
        assert rows["supervised"] == ["11", "10", "3.00", "6.22", "1.23", "626.74"]
        assert rows["cps"][2:4] == ["6.00", "12.44"]
        assert rows["cct"] == ["-", "1", "-", "8.30", "-", "2.00"]
    assert counted == ["supervised", "cps"]  # kept in a file


def test_parts_without_finished_runs_are_named_in_one_line(tmp_path):
    numbers = PaperNumbers(
        source="",
        iou={},
        pair=("a", "segpl", "cps"),
        threshold=PrintedThreshold(5, 0.785),
        sensitivity={"figure-8a": ("train.lr", "learning rate")},
    )
    assert list(extras.extras(made_up(numbers), tmp_path, device="cpu")) == [
        "No finished runs yet for: figure 3, figure 5, figure 8."
    ]
    assert not list(tmp_path.iterdir())
    found = made_up(numbers, segpl=[make_record("segpl")])  # without the other of the pair
    assert "figure 3" in "".join(map(str, extras.extras(found, tmp_path, device="cpu")))


def test_learned_threshold_is_that_of_the_last_step(tmp_path):
    log = {"step": [1.0, 2.0], "threshold": [0.9, 0.7]}
    numbers = PaperNumbers(source="", iou={}, threshold=PrintedThreshold(5, 0.785))
    found = made_up(numbers, segpl_vi=[make_record("segpl-vi", log=log)])
    (sentence,) = extras.extras(found, tmp_path, device="cpu")
    assert "At the last step: 0.700; paper: 0.785." in sentence
    assert (tmp_path / "figure-5.png").exists()
