from __future__ import annotations

from records import collect, make_record

from segpl.evaluate.fold_scores import FoldScore
from segpl.report.collection import RunCollection
from segpl.report.sections.folds import folds_section

CLASSES = [(0, "a", "x", 0.9), (0, "a", "y", 0.5), (1, "b", "x", 0.7), (1, "b", "y", 0.3)]


def found(*parts: dict[str, object]) -> RunCollection:
    """A run of segpl for each part, with seeds 0, 1, ..."""
    return collect(*(make_record("segpl", n, name=f"r{n}", **part) for n, part in enumerate(parts)))


def test_the_section_is_empty_without_cross_validation():
    section = folds_section(found({}, {}))
    assert section.is_empty
    assert not section.missing


def test_cross_validation_has_mean_deviation_worst_and_best_over_cases():
    rows = [
        FoldScore(9, 0, "a", "x", 0.9),
        FoldScore(9, 1, "b", "x", 0.7),
        FoldScore(9, 1, "c", "x", 0.8),
    ]
    section = folds_section(found({"folds": rows}, {}))
    assert section.tables[0].table.rows == [
        ["r0", "x", "0.800 ± 0.100", "0.700", "0.900", "2", "3"]
    ]
    assert "do not bound the score of a new scan" in section.text[0]


def test_a_case_of_several_classes_counts_by_their_mean():
    rows = [FoldScore(9, n, case, name, dice) for n, case, name, dice in CLASSES]
    table = folds_section(found({"folds": rows})).tables[0].table
    assert [row[1] for row in table.rows] == ["x", "y", "mean over classes"]
    assert table.rows[2][2:5] == ["0.600 ± 0.141", "0.500", "0.700"]
