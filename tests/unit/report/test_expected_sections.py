from __future__ import annotations

from dataclasses import replace

from records import collect, make_record

from segpl.evaluate.agreement import ClassAgreement, NetworkAgreement
from segpl.report.collection import RunCollection
from segpl.report.run_record import FoldScore
from segpl.report.sections.expected import expected_sections
from segpl.report.sections.section import Section

CLASSES = [(0, "a", "x", 0.9), (0, "a", "y", 0.5), (1, "b", "x", 0.7), (1, "b", "y", 0.3)]


def found(*parts: dict[str, object]) -> RunCollection:
    """A run of segpl for each part, with seeds 0, 1, ..."""
    return collect(*(make_record("segpl", n, name=f"r{n}", **part) for n, part in enumerate(parts)))


def record(dice: float | None, *, lowest: float | None = None, **more: object) -> NetworkAgreement:
    known = {"x": ClassAgreement(2, dice, lowest, 0.9)}
    return NetworkAgreement(10, ("u0", "u1", "u2"), 0, ("student", "teacher"), known, **more)


def only(sections: list[Section]) -> Section:
    (section,) = sections
    return section


def test_runs_without_these_files_have_neither_section():
    assert expected_sections(found({}, {})) == []


def test_cross_validation_has_mean_deviation_worst_and_best_over_cases():
    rows = [
        FoldScore(9, 0, "a", "x", 0.9),
        FoldScore(9, 1, "b", "x", 0.7),
        FoldScore(9, 1, "c", "x", 0.8),
    ]
    section = only(expected_sections(found({"folds": rows}, {})))
    assert section.tables[0].table.rows == [
        ["r0", "x", "0.800 ± 0.100", "0.700", "0.900", "2", "3"]
    ]
    assert "do not bound the score of a new scan" in section.text[0]


def test_a_case_of_several_classes_counts_by_their_mean():
    rows = [FoldScore(9, n, case, name, dice) for n, case, name, dice in CLASSES]
    table = only(expected_sections(found({"folds": rows}))).tables[0].table
    assert [row[1] for row in table.rows] == ["x", "y", "mean over classes"]
    assert table.rows[2][2:5] == ["0.600 ± 0.141", "0.500", "0.700"]


def test_agreement_is_the_mean_over_seeds_and_the_lowest_that_of_any():
    both = [{"agreement": record(0.8, lowest=0.4)}, {"agreement": record(0.6, lowest=0.5)}]
    section = only(expected_sections(found(*both)))
    (row,) = section.tables[0].table.rows
    assert row[:4] == ["segpl", "x", "0.700 ± 0.141", "0.400"]
    assert row[6:] == ["4 of 6", "student, teacher"]
    assert "not accuracy" in section.text[0]


def test_one_network_has_no_agreement_and_a_fixed_threshold_no_spread():
    table = only(expected_sections(found({"agreement": record(None)}))).tables[0].table
    assert table.rows[0][2:6] == ["-", "-", "0.900", "-"]


def test_a_learned_threshold_is_shown_with_its_deviation():
    learned = record(0.8, threshold=0.52, threshold_std=0.1)
    table = only(expected_sections(found({"agreement": learned}))).tables[0].table
    assert table.rows[0][5] == "0.520 (std 0.100)"


def test_skipped_cases_are_reported_without_a_table():
    nothing = NetworkAgreement(10, (), 3, ("network",), {"x": ClassAgreement(0, None, None, None)})
    section = only(expected_sections(found({"agreement": nothing})))
    assert not section.tables
    assert section.missing[0].startswith("3 cases per run skipped")


def test_skipped_cases_of_several_seeds_are_not_added_up():
    several = [{"agreement": replace(record(0.8), too_large=count)} for count in (2, 3, 0)]
    section = only(expected_sections(found(*several)))
    assert section.missing[0].startswith("Up to 3 cases per run skipped")
