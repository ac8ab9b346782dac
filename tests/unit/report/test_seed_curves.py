from __future__ import annotations

import numpy as np
import pytest
from segpl.report.seed_curves import last_number, mean_curve, seed_curves_figure, words

NAN = float("nan")


def log(**columns: list[float]) -> dict[str, list[float]]:
    return {"step": [10.0, 20.0], **columns}


def test_curve_is_the_mean_over_seeds_with_the_deviation_of_the_sample():
    steps, mean, spread = mean_curve([log(kl=[1.0, 4.0]), log(kl=[3.0, 4.0])], "kl")
    assert steps.tolist() == [10, 20]
    assert mean.tolist() == [2, 4]
    assert spread == pytest.approx([2**0.5, 0])


def test_what_a_log_does_not_know_is_left_out_of_the_mean():
    logs = [log(kl=[NAN, 4.0]), log(kl=[NAN, NAN]), log(), log(kl=[NAN, 6.0])]
    steps, mean, _ = mean_curve(logs, "kl")
    assert (steps.tolist(), mean.tolist()) == ([20], [5])


def test_one_seed_has_no_band():
    assert mean_curve([log(kl=[1.0, 2.0])], "kl")[2].tolist() == [0, 0]


def test_last_number_is_the_newest_one_that_is_known():
    assert last_number(log(kl=[1.0, 4.0]), "kl") == 4
    assert last_number(log(kl=[1.0, NAN]), "kl") == 1
    assert np.isnan(last_number(log(kl=[NAN, NAN]), "kl"))
    assert np.isnan(last_number(log(), "kl"))


def figure_of(columns: list[str], labels: list[str]):
    logs = {
        dataset: {label: [log(kl=[1.0, 2.0], total=[1.0, 0.0])] for label in labels}
        for dataset in ("one", "two")
    }
    logs["two"].pop(labels[-1])
    return seed_curves_figure(logs, columns, labels)


def test_there_is_a_panel_for_each_column_and_dataset_with_a_line_for_each_label():
    figure = figure_of(["kl", "total"], ["a", "b", "c"])
    assert [(axes.get_title(loc="left"), axes.get_ylabel()) for axes in figure.axes] == [
        ("one", "KL of the threshold"),
        ("two", "KL of the threshold"),
        ("one", "total loss"),
        ("two", "total loss"),
    ]
    assert [len(axes.lines) for axes in figure.axes] == [3, 2, 3, 2]


def test_legend_is_outside_of_the_panels_and_names_every_line_once():
    figure = figure_of(["kl", "total"], ["a", "b", "c"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    figure.draw_without_rendering()
    top = max(text.get_window_extent().y1 for text in legend.get_texts())
    assert all(top < axes.xaxis.label.get_window_extent().y0 for axes in figure.axes)


def test_legend_of_long_names_stays_inside_of_the_picture():
    figure = figure_of(["kl"], [f"bpl-categorical-image-class-{n}" for n in range(7)])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_no_two_lines_of_seven_look_alike():
    axes = figure_of(["kl"], list("abcdefg")).axes[0]
    looks = {(line.get_color(), str(line.get_linestyle())) for line in axes.lines}
    colors = {line.get_color() for line in axes.lines}
    assert len(looks) == len(colors) == 7


def test_column_that_no_log_has_gets_no_panel():
    assert len(figure_of(["kl", "free_energy"], ["a", "b"]).axes) == 2
    assert figure_of(["free_energy"], ["a", "b"]) is None
    assert figure_of([], ["a", "b"]) is None


def test_panels_of_one_dataset_stand_two_in_a_row():
    logs = {"one": {"a": [log(kl=[1.0, 2.0], total=[1.0, 0.0], lr=[1.0, 0.5])]}}
    figure = seed_curves_figure(logs, ["kl", "total", "lr"], ["a"])
    assert [axes.axison for axes in figure.axes] == [True, True, True, False]
    assert np.ptp([axes.get_subplotspec().rowspan.start for axes in figure.axes]) == 1


@pytest.mark.parametrize(
    ("column", "name"),
    [("free_energy", "free energy"), ("kl.weight", "weight of the KL of the threshold")],
)
def test_columns_have_names_in_words(column, name):
    assert words(column) == name
