from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.colors import same_color
from matplotlib.text import Text

from segpl.errors import MissingFileError
from segpl.report.figures import INK
from segpl.report.sections.stress import DEGRADATION_TITLES, stress_figure
from segpl.report.stress_rows import (
    CLEAN,
    PATCH_SIZE,
    StressRow,
    curve_of,
    degradations_in,
    read_stress,
    relabeled,
    stress_table,
    write_stress,
)


def row(run: str, degradation: str, severity: float, case: str, dice: float) -> StressRow:
    return StressRow(run, degradation, severity, case, "vessel", dice, dice / 2)


ROWS = [
    row("a", CLEAN, 0, "x", 0.9),
    row("a", CLEAN, 0, "y", 0.7),
    row("a", "blur", 1.0, "x", 0.3),
    row("a", "blur", 1.0, "y", 0.1),
    row("a", "blur", 0.5, "x", 0.6),
    row("a", "blur", 0.5, "y", 0.6),
    row("a", PATCH_SIZE, 32, "x", 0.5),
    row("a", PATCH_SIZE, 32, "y", 0.5),
    row("b", CLEAN, 0, "x", 0.5),
    row("b", CLEAN, 0, "y", 0.5),
    row("b", "blur", 0.5, "x", 0.5),
    row("b", "blur", 0.5, "y", 0.5),
    row("b", "blur", 1.0, "x", 0.5),
    row("b", "blur", 1.0, "y", 0.5),
]


def test_rows_survive_a_round_trip_exactly(tmp_path):
    rows = [*ROWS, row("a, the first", "gamma", 0.1, "z", 1 / 3)]
    write_stress(tmp_path / "stress.csv", rows)
    assert read_stress(tmp_path / "stress.csv") == rows


def test_missing_table_names_the_command_that_writes_it(tmp_path):
    with pytest.raises(MissingFileError, match=r"Pass the stress\.csv of `segpl stress`"):
        read_stress(tmp_path / "stress.csv")


def test_curve_begins_with_the_clean_images_and_is_sorted():
    severities, means, stds = curve_of(ROWS, "a", "blur")
    assert severities == [0, 0.5, 1]
    assert means == pytest.approx([0.8, 0.6, 0.2])
    assert stds == pytest.approx([0.2 / 2**0.5, 0, 0.2 / 2**0.5])


def test_classes_of_a_case_are_averaged():
    rows = [*ROWS, *(replace(r, class_name="wall", dice=0.0) for r in ROWS)]
    assert curve_of(rows, "a", "blur")[1] == pytest.approx([0.4, 0.3, 0.1])


def test_curve_of_windows_has_no_severity_zero_and_unmeasured_curve_is_empty():
    assert curve_of(ROWS, "a", PATCH_SIZE)[0] == [32]
    assert curve_of(ROWS, "b", PATCH_SIZE)[0] == []


def test_table_has_clean_mean_worst_and_relative_drop():
    """Run a with blur: (0.6 + 0.2) / 2 = 0.4, half of 0.8."""
    table = stress_table(ROWS)
    assert table.rows == [
        ["blur", "a", "0.800", "0.400", "0.200", "50.0"],
        ["blur", "b", "0.500", "0.500", "0.500", "0.0"],
        ["patch", "a", "0.800", "0.500", "0.500", "37.5"],
    ]
    assert table.bold == frozenset()  # one case proves nothing
    assert "2 cases" in table.note


def test_figure_has_a_panel_for_each_degradation_and_a_line_for_each_run():
    figure = stress_figure(ROWS, notes={"blur": "3 voxels at 1"})
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["blur (3 voxels at 1)", "window size"]
    blur, patch = figure.axes
    assert [line.get_label() for line in blur.lines] == ["a", "b"]
    assert blur.lines[0].get_ydata().tolist() == pytest.approx([0.8, 0.6, 0.2])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert patch.lines[1].get_ydata() == pytest.approx([0.8, 0.8])  # the window of the plan
    assert len({line.get_color() for line in blur.lines}) == 2
    assert len({line.get_marker() for line in blur.lines}) == 2


def test_run_that_is_missing_in_the_first_panel_is_in_the_legend():
    rows = [r for r in ROWS if r.run == "b" or r.degradation != "blur"]
    figure = stress_figure(rows)
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == ["a", "b"]


def test_legend_shows_any_name_of_a_run():
    """Matplotlib hides names that start with '_', and reads '$' as mathematics."""
    rows = [replace(one, run={"a": "_a", "b": "$b$"}[one.run]) for one in ROWS]
    texts = [text.get_text() for text in stress_figure(rows).legends[0].get_texts()]
    assert [text.removeprefix("\u200b") for text in texts] == ["_a", r"\$b\$"]


def test_all_texts_have_the_color_that_a_page_replaces():
    """Black would be invisible on a dark page."""
    texts = [text for text in stress_figure(ROWS).findobj(Text) if text.get_text()]
    assert all(same_color(text.get_color(), INK) for text in texts)
    assert any("band" in text.get_text() for text in texts)


@pytest.mark.parametrize("count", [1, 6, 10])
def test_any_number_of_panels_fits(count):
    names = list(DEGRADATION_TITLES)[:count]
    rows = [ROWS[0], *(row("a", name, 0.5, "x", 0.5) for name in names)]
    figure = stress_figure(rows)
    assert [axes.get_visible() and axes.axison for axes in figure.axes].count(True) == count
    assert degradations_in(rows) == names


def test_bands_stay_between_zero_and_one():
    rows = [
        row("a", CLEAN, 0, "x", 1.0),
        row("a", CLEAN, 0, "y", 0.5),
        row("a", "blur", 1, "x", 0.0),
        row("a", "blur", 1, "y", 0.5),
    ]
    (axes,) = stress_figure(rows).axes
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0
    assert heights.max() == 1


def test_only_a_significant_difference_is_bold():
    rows = [
        row(run, degradation, severity, str(case), 0.5 + 0.01 * case + (run == "b") / 4)
        for run in "ab"
        for degradation, severity in ((CLEAN, 0), ("blur", 1))
        for case in range(8)
    ]
    assert stress_table(rows).bold == {(1, 3)}


def test_axis_of_the_scores_fits_the_data():
    rows = [row("a", CLEAN, 0, "x", 0.82), row("a", "blur", 1, "x", 0.78)]
    low, high = stress_figure(rows).axes[0].get_ylim()
    assert 0.7 < low < 0.78
    assert 0.82 < high < 0.9
    rows = [row("a", CLEAN, 0, "x", 1.0), row("a", "blur", 1, "x", 0.0)]
    assert stress_figure(rows).axes[0].get_ylim() == (0, 1)


def test_rows_of_the_same_method_share_one_curve_in_the_order_of_the_labels():
    labels = {"b": "segpl", "a": "supervised"}
    shown = relabeled([*ROWS, row("old", "blur", 1.0, "x", 1.0)], labels, ["supervised", "segpl"])
    assert list(dict.fromkeys(one.run for one in shown)) == ["supervised", "segpl"]
    both = relabeled(ROWS, {"a": "segpl", "b": "segpl"}, ["segpl"])
    assert curve_of(both, "segpl", "blur")[:2] == (
        [0.0, 0.5, 1.0],
        pytest.approx([(0.7 + 0.6) / 2, 0.55, (0.4 + 0.3) / 2]),
    )
