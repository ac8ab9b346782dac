"""What a page says of the cases behind its numbers: who has seen them, and what seeds change."""

from __future__ import annotations

from segpl.experiments.study import coverage, write_study
from segpl.experiments.study_file import StudyDataset, parse_study
from segpl.report.comparison.outcomes import Outcome

from segpl.data.split import Split

FOLDER = StudyDataset("brain", "Task04", (0, 1), {}, {})
GENERATED = StudyDataset("phantom", "", (0, 1), {}, {})


def split(*labeled: str) -> Split:
    return Split(labeled, (), ("v",), ("t",), ())


def test_seeds_of_a_dataset_draw_labeled_cases_and_no_new_scans():
    text = coverage(FOLDER, [split("a", "b"), split("b", "c")])
    assert text.startswith(" The validation and test cases are the same for all seeds: ")
    assert text.endswith("new draws of labeled cases, weights and crops, not about new scans.")


def test_where_all_seeds_have_the_same_labeled_cases_none_are_drawn():
    text = coverage(FOLDER, [split("a", "b"), split("b", "a")])
    assert "about new draws of weights and crops, not about new scans." in text


def test_seeds_of_generated_scans_have_other_scans():
    text = coverage(GENERATED, [split("a"), split("a")])
    assert text.startswith(" Every seed has other scans")
    assert "intervals and p are about new scans" in text


def test_one_seed_has_no_interval_to_speak_of():
    assert coverage(FOLDER, [split("a")]) == ""


def test_page_names_the_variants_that_calibrate_on_validation_cases(tmp_path):
    content = {
        "title": "Calibration",
        "datasets": {"phantom": {"phantom": True, "seeds": [0], "split": {"validation": 1}}},
        "methods": {"warm": {"method": "bpl", "calibrate": "all"}},
        "questions": [{"id": "a", "text": "Is it?", "reference": "bpl", "variants": ["warm"]}],
    }
    failed = [Outcome(label, 0, error="no memory") for label in ("supervised", "bpl", "warm")]
    write_study(parse_study(content, "a.toml"), tmp_path, {"phantom": failed}, source="a.toml")
    assert "its scores are not those of new ones: `warm`." in (tmp_path / "study.md").read_text()
