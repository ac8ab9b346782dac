from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from segpl.cli import check as command
from segpl.data.case import Case, Dataset
from segpl.data.check import has_fatal, report
from segpl.data.inspect import ChannelStatistics, Fingerprint, Inspection, Problem
from segpl.errors import InputError

STATISTICS = ChannelStatistics(0.0, 200.0, 100.0, 20.0, 50.0, 99.0, 150.0, 0.25)


def inspection(
    *, labeled: int = 2, unlabeled: int = 1, problems: tuple[Problem, ...] = ()
) -> Inspection:
    cases = [Case(f"p{n}_frame1", (Path("a.nii"),), Path("l.nii")) for n in range(labeled)]
    cases += [Case(f"u{n}", (Path("a.nii"),)) for n in range(unlabeled)]
    prints = {
        case.name: Fingerprint(
            case.name,
            (8 + number, 9, 10),
            (0.5, 0.5, 2.0),
            "LPS",
            (STATISTICS,),
            {0: 90, 1: 10} if case.label else None,
            (),
        )
        for number, case in enumerate(cases)
    }
    dataset = Dataset(Path("my data"), "folders", tuple(cases), channels=("T2",))
    return Inspection(dataset, 3, {"background": 0, "tumor": 1}, prints, problems)


def text(inspection: Inspection, width: int = 120) -> str:
    page = io.StringIO()
    Console(file=page, width=width).print(report(inspection), crop=False)
    return page.getvalue()


def test_the_page_counts_cases_and_names_what_was_found():
    page = text(inspection())
    for words in (
        "2 cases of 2 subjects",
        "1 case of 1 subject",
        "folders, 3D",
        "T2",
        "tumor (1)",
    ):
        assert words in page


def test_the_page_shows_shapes_spacings_intensities_and_volumes():
    page = text(inspection())
    for words in ("8 x 9 x 10", "10 x 9 x 10", "0.5 x 0.5 x 2", "LPS (3)", "25.0 %", "10.0 %"):
        assert words in page
    assert "2 of 2" in page


def test_a_sound_dataset_ends_with_the_command_to_train():
    page = text(inspection())
    assert "Ready to train" in page
    assert "segpl train 'my data' --out runs/first" in page


def test_the_command_stays_on_one_line_in_a_narrow_terminal():
    assert "segpl train 'my data' --out runs/first" in text(inspection(), 30)


def test_a_dataset_that_is_labeled_throughout_is_offered_fewer_labels():
    assert "--labeled 4 --out" in text(inspection(labeled=20, unlabeled=0))


def test_a_single_labeled_case_is_offered_supervised_training():
    assert "--method supervised" in text(inspection(labeled=1, unlabeled=0))


def test_no_labeled_case_is_fatal():
    found = inspection(labeled=0)
    assert has_fatal(found)
    assert "no training case has a label" in text(found)


def test_a_warning_does_not_stop_training():
    found = inspection(problems=(Problem("u0", "the label is odd", "Look at it.", fatal=False),))
    assert not has_fatal(found)
    page = text(found)
    assert "warning: the label is odd. Look at it." in page
    assert "Ready to train" in page


def test_an_error_stops_training_and_comes_with_its_remedy():
    found = inspection(problems=(Problem("u0", "my data/u0 is broken", "Mend it.", fatal=True),))
    assert has_fatal(found)
    page = text(found)
    assert "error: u0 is broken. Mend it." in page
    assert "Not ready to train: put right 1 error in 1 case first." in page
    assert "segpl train" not in page


def test_of_many_cases_those_with_errors_are_shown_first():
    warnings = [Problem(f"u{n}", "odd", "Look.", fatal=False) for n in range(30)]
    found = inspection(unlabeled=31, problems=(*warnings, Problem("u30", "bad", "Mend.", True)))
    page = text(found)
    assert "error: bad" in page
    assert "... and 11 more with problems" in page


def test_square_brackets_in_a_message_are_shown():
    found = inspection(problems=(Problem("u0", "needs it", "pip install segpl[itk]", True),))
    assert "segpl[itk]" in text(found)


# the command


def arguments(data: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(data), *more])


@pytest.fixture
def folder(tmp_path):
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for name in ("p1-a", "p1-b"):
        values = np.random.default_rng(0).normal(size=(8, 9)).astype(np.float32)
        np.save(tmp_path / "images" / f"{name}.npy", values)
    np.save(tmp_path / "labels" / "p1-a.npy", np.eye(8, 9, dtype=np.uint8))
    return tmp_path


def test_the_command_accepts_a_sound_dataset(folder, capsys):
    assert command.run(arguments(folder)) == 0
    assert "Ready to train" in capsys.readouterr().out


def test_the_command_exits_1_where_training_would_fail(folder, capsys):
    np.save(folder / "images" / "p1-b.npy", np.zeros((8, 9), np.float32))
    assert command.run(arguments(folder)) == 1
    assert "constant" in capsys.readouterr().out


def test_the_command_looks_at_the_labels_of_test_cases_too(folder, capsys):
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "test" / "labels").mkdir()
    np.save(folder / "test" / "images" / "t.npy", np.random.default_rng(0).normal(size=(8, 9)))
    np.save(folder / "test" / "labels" / "t.npy", np.full((8, 9), 0.5))
    assert command.run(arguments(folder)) == 1
    assert "not whole numbers" in capsys.readouterr().out


def test_the_subject_pattern_reaches_the_counts(folder, capsys):
    np.save(folder / "labels" / "p1-b.npy", np.eye(8, 9, dtype=np.uint8))
    command.run(arguments(folder, "--subject", r"(p\d)"))
    assert "2 cases of 1 subject" in capsys.readouterr().out


def test_the_layout_can_be_forced(folder):
    with pytest.raises(InputError, match="does not follow the layout 'emssl'"):
        command.run(arguments(folder, "--layout", "emssl"))


def test_the_help_names_every_layout():
    from segpl.data.layouts import LAYOUTS

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert all(name in parser.format_help() for name in LAYOUTS.names)


def test_checking_does_not_load_torch():
    """`segpl check` must start at once."""
    code = "import sys, segpl.data.check, segpl.data.layouts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_command_file_loads_nothing_heavy():
    heavy = "{'numpy', 'rich', 'nibabel', 'torch'}"
    code = f"import sys, segpl.cli.check; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
