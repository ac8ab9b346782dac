from __future__ import annotations

import pytest

from segpl.report.curves import column_title, curve_figure, mean_curve

NAN = float("nan")


def log(**columns: list[float]) -> dict[str, list[float]]:
    return {"step": [10.0, 20.0], **columns}


def test_curve_is_the_mean_over_seeds_with_the_sample_deviation():
    steps, mean, std = mean_curve([log(kl=[1.0, 4.0]), log(kl=[3.0, 4.0])], "kl")
    assert (steps.tolist(), mean.tolist()) == ([10, 20], [2, 4])
    assert std == pytest.approx([2**0.5, 0])


def test_missing_numbers_are_left_out_of_the_mean():
    logs = [log(kl=[NAN, 4.0]), log(kl=[NAN, NAN]), log(), log(kl=[NAN, 6.0])]
    steps, mean, _ = mean_curve(logs, "kl")
    assert (steps.tolist(), mean.tolist()) == ([20], [5])


def test_only_methods_with_the_column_have_a_line_and_no_two_lines_look_alike():
    logs = {name: [log(kl=[1.0, 2.0])] for name in "abcdefg"} | {"without": [log()]}
    (axes,) = curve_figure(logs, "kl", "KL").axes
    assert axes.get_legend_handles_labels()[1] == list("abcdefg")
    looks = {(line.get_color(), str(line.get_linestyle())) for line in axes.lines}
    assert len(looks) == 7


def test_columns_have_readable_titles():
    assert column_title("kl.weight") == "weight of the KL divergence of the threshold"
    assert column_title("free_energy") == "free energy"
