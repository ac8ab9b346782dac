from __future__ import annotations

import argparse
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from segpl.cli import check as command
from segpl.data.case import Case, Dataset
from segpl.data.check import COMPUTERS, has_errors, planning_problems, render
from segpl.data.fingerprint import ChannelStatistics, Fingerprint
from segpl.data.inspect import Inspection
from segpl.data.layouts import read_dataset
from segpl.data.planner import check_sizes, derive_plan
from segpl.data.problems import Problem
from segpl.errors import InputError

NEXT = "segpl train 'my data' --out runs/first"
STATISTICS = ChannelStatistics(0.0, 200.0, 50.0, 99.0, 150.0, 0.25)


def inspection(*problems: Problem, labeled: int = 2, unlabeled: int = 1) -> Inspection:
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
    Console(file=page, width=width).print(render(inspection, NEXT), crop=False)
    return page.getvalue()


class TestPage:
    def test_page_shows_what_was_found(self):
        page = text(inspection())
        for words in (
            *("2 cases from 2 subjects", "1 case from 1 subject", "folders, 3D", "T2"),
            *("tumor (1)", "8 x 9 x 10", "10 x 9 x 10", "0.5 x 0.5 x 2", "LPS (3)", "25.0 %"),
            *("10.0 % of the image", "2 of 2 labels"),
        ):
            assert words in page

    def test_unnamed_classes_come_with_an_example_that_can_be_read(self, tmp_path):
        found = inspection()
        line = next(line for line in text(found, 30).splitlines() if '{"labels"' in line)
        (tmp_path / "labels.json").write_text(line)
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "a.png").touch()
        assert read_dataset(tmp_path).classes == found.classes
        named = replace(found, dataset=replace(found.dataset, classes=found.classes))
        assert "labels.json" not in text(named)

    @pytest.mark.parametrize(
        ("segments", "expected"),
        [
            (({1: "liver", 2: "cyst"}, {1: "liver"}), '"liver": 1, "cyst": 2}'),
            (({1: "liver", 2: "cyst"}, {1: "spleen"}), '"class-1": 1, "class-2": 2}'),
            (({1: "liver", 2: "cyst"}, {1: ""}), '"class-1": 1, "class-2": 2}'),
            (({1: "liver", 2: "liver"}, {1: "liver"}), '"class-1": 1, "class-2": 2}'),
            (({1: "liver", 2: "7"}, {1: "liver"}), '"class-1": 1, "class-2": 2}'),
        ],
    )
    def test_example_has_the_names_of_segments_if_all_labels_agree(self, segments, expected):
        found = inspection()
        prints = dict(found.fingerprints)
        for case, names in zip(found.dataset.labeled, segments, strict=True):
            meanings = {number: f"segment '{name}'" for number, name in names.items()}
            voxels = {0: 90, **dict.fromkeys(names, 5)}
            prints[case.name] = replace(prints[case.name], voxels=voxels, meanings=meanings)
        classes = {"background": 0, "class-1": 1, "class-2": 2}
        page = text(replace(found, classes=classes, fingerprints=prints))
        assert '{"labels": {"background": 0, ' + expected in page

    @pytest.mark.parametrize("width", [120, 30])
    def test_good_dataset_ends_with_the_training_command_on_one_line(self, width):
        page = text(inspection(), width)
        assert "Ready to train" in page
        assert "segpl train 'my data' --out runs/first\n" in page

    def test_name_of_a_case_with_a_problem_stays_on_one_line(self):
        name = "patient 1, T2 weighted, session 2"
        assert f"{name}\n" in text(inspection(Problem(name, "x", "y")), 30)

    def test_fully_labeled_dataset_is_trained_with_all_its_labels(self):
        page = text(inspection(labeled=20, unlabeled=0))
        assert "training uses all labels. To simulate few labels, add --labeled N" in page
        assert "segpl train 'my data' --out runs/first\n" in page

    def test_a_case_that_training_would_reject_is_an_error(self):
        """One header of 100 mm among those of 0.5 mm: too large after resampling."""
        found = inspection(labeled=4)
        assert planning_problems(found) == []
        wrong = replace(
            found.fingerprints["p1_frame1"], shape=(64, 64, 64), spacing=(100.0, 100.0, 100.0)
        )
        found = replace(found, fingerprints=found.fingerprints | {"p1_frame1": wrong})
        (problem,) = planning_problems(found)
        assert (problem.case, problem.fatal) == ("p1_frame1", True)
        assert "but the limit is 1,000,000,000" in problem.what

    def test_a_case_that_would_vanish_at_the_usual_spacing_is_an_error(self):
        """One header in meters among those in mm: training would call the image constant."""
        found = inspection(labeled=4)
        wrong = replace(found.fingerprints["p1_frame1"], spacing=(5e-4, 5e-4, 2e-3))
        found = replace(found, fingerprints=found.fingerprints | {"p1_frame1": wrong})
        problem, _ = planning_problems(found)
        assert (problem.case, problem.fatal) == ("p1_frame1", True)
        assert "0.5 x 0.5 x 2 mm, would be a single voxel. Correct the voxel" in problem.what

    def test_subjects_in_training_and_test_are_a_warning(self):
        found = inspection(labeled=4)
        cases = found.dataset.cases
        test = replace(cases[0], is_test=True, subject="p1")
        cases = (test, replace(cases[1], subject="p1"), *cases[2:])
        found = replace(found, dataset=replace(found.dataset, cases=cases))
        (problem,) = planning_problems(found)
        assert (problem.case, problem.fatal) == ("", False)
        assert "training cases share 1 subject, for example 'p1'" in problem.what

    def test_a_case_too_large_for_the_finer_plan_of_a_gpu_is_an_error(self):
        """10^9 voxels at the stored spacing; on a CPU the plan is coarser."""
        found = inspection(labeled=4)
        usual = {
            name: replace(
                one, shape=(75, 75, 75), spacing=(1.0, 1.0, 1.0), chords={1: (50.0, 50.0, 50.0)}
            )
            for name, one in found.fingerprints.items()
        }
        wrong = replace(usual["p1_frame1"], spacing=(14.0, 14.0, 14.0))
        found = replace(found, fingerprints=usual | {"p1_frame1": wrong})
        check_sizes(derive_plan(found, COMPUTERS[0]), [wrong])
        (problem,) = planning_problems(found)
        assert (problem.case, problem.fatal) == ("p1_frame1", True)

    def test_dataset_without_labels_is_an_error(self):
        found = inspection(labeled=0)
        assert has_errors(found)
        assert "no training case has a label" in text(found)
        assert "describe the names of their files with --layout" in text(found)

    def test_missing_labels_of_dicom_series_come_with_the_kinds_of_labels(self):
        series = inspection(labeled=0)
        series = replace(series, dataset=replace(series.dataset, layout="dicom"))
        page = " ".join(text(series).split())
        assert "DICOM-SEG or RTSTRUCT files, or volumes" in page
        assert "which `segpl train --set data.labels=FOLDER` reads" in page

    def test_warning_does_not_prevent_training(self):
        found = inspection(Problem("u0", "the label is odd", "Look at it.", fatal=False))
        assert not has_errors(found)
        page = text(found)
        assert "warning: the label is odd. Look at it." in page
        assert "Ready to train" in page

    def test_error_prevents_training_and_has_a_remedy(self):
        found = inspection(Problem("u0", "my data/u0 is broken", "pip install segpl[itk]"))
        assert has_errors(found)
        page = text(found)
        assert "error: u0 is broken. pip install segpl[itk]" in page
        assert "Not ready to train: fix 1 error in 1 case first." in page
        assert "segpl train" not in page

    def test_errors_come_first_in_a_long_list(self):
        warnings = [Problem(f"u{n}", "odd", "Look.", fatal=False) for n in range(30)]
        page = text(inspection(*warnings, Problem("u30", "bad", "Fix it."), unlabeled=31))
        assert "error: bad" in page
        assert "... and 11 more cases with problems" in page

    def test_cases_with_the_same_problems_are_named_together(self):
        alike = [Problem(name, "bad", "Fix it.") for name in ("u0", "u2")]
        page = text(inspection(*alike, Problem("u1", "worse", "Fix it."), unlabeled=3))
        assert page.count("error: bad") == 1
        assert "u0, u2\n  error: bad" in page
        assert "u1\n  error: worse" in page
        assert "fix 3 errors in 3 cases" in page


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        for part in ("images", "labels"):
            (tmp_path / part).mkdir()
        for name in ("p1-a", "p1-b"):
            values = np.random.default_rng(0).normal(size=(8, 9)).astype(np.float32)
            np.save(tmp_path / "images" / f"{name}.npy", values)
        np.save(tmp_path / "labels" / "p1-a.npy", np.eye(8, 9, dtype=np.uint8))
        return tmp_path

    def check(self, data: Path, *more: str) -> int:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return command.run(parser.parse_args([str(data), *more]))

    def test_next_command_keeps_the_options(self, folder, capsys):
        assert self.check(folder, "--layout", "folders", "--subject", "(p[0-9])") == 0
        options = "--set data.layout=folders --set 'data.subject=(p[0-9])'"
        words = " ".join(capsys.readouterr().out.split())
        assert options in words

    def test_proposed_layout_is_accepted_and_repeated_in_the_next_command(self, folder, capsys):
        (folder / "images" / "p1-a.npy").rename(folder / "images" / "p1-a_ct.npy")
        (folder / "images" / "p1-b.npy").rename(folder / "images" / "p1-b_ct.npy")
        with pytest.raises(InputError, match="repeat the command with --yes"):
            self.check(folder)
        assert self.check(folder, "--yes") == 0
        assert "--out runs/first --yes" in capsys.readouterr().out
        layout = "images/{case}_ct.npy -> labels/{case}.npy"
        assert self.check(folder, "--layout", layout, "--subject", "(p[0-9]+)") == 0
        page = capsys.readouterr().out
        assert f"--set 'data.layout={layout}' --set 'data.subject=(p[0-9]+)'" in page
        (folder / "segpl.toml").write_text(f'layout = "{layout}"')
        assert self.check(folder) == 0
        assert "--yes" not in capsys.readouterr().out

    def test_problems_of_the_plan_are_shown(self, folder, capsys):
        rng = np.random.default_rng(0)
        np.save(folder / "labels" / "p1-a.npy", np.eye(64, dtype=np.uint8))
        for name in ("p1-a", *"bcdefghijk"):
            np.save(folder / "images" / f"{name}.npy", rng.normal(size=(64, 64)))
        assert self.check(folder) == 0
        words = " ".join(capsys.readouterr().out.split())
        assert "the image of 8x9 pixels after resampling is much smaller than the others" in words

    def test_ignored_and_unreadable_files_are_named(self, folder, capsys):
        np.save(folder / "extra.npy", np.zeros((8, 9)))
        (folder / "images" / "lost.npy").symlink_to("nowhere")
        (folder / "images" / "folder.nii.gz").mkdir()
        for suffix in (".hdr", ".img"):
            (folder / "images" / f"old{suffix}").touch()
        assert self.check(folder) == 0
        page = " ".join(capsys.readouterr().out.split())
        assert "ignored extra.npy" in page
        for words in (
            "images/lost.npy is a link to a file that does not exist",
            "images/folder.nii.gz is a folder",
            "images/old.hdr is half of a .hdr and .img pair",
        ):
            assert words in page

    def test_exit_code_is_1_if_training_would_fail(self, folder, capsys):
        np.save(folder / "images" / "p1-b.npy", np.zeros((8, 9), np.float32))
        assert self.check(folder) == 1
        assert "constant" in capsys.readouterr().out

    def test_labels_of_test_cases_are_checked(self, folder, capsys):
        for part in ("images", "labels"):
            (folder / "test" / part).mkdir(parents=True)
            np.save(folder / "test" / part / "t.npy", np.random.default_rng(0).normal(size=(8, 9)))
        assert self.check(folder) == 1
        assert "not integers" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("modules", "heavy"),
        [
            ("segpl.data.check, segpl.data.layouts", {"torch"}),
            ("segpl.cli.check", {"numpy", "rich", "nibabel", "torch"}),
        ],
    )
    def test_command_starts_without_heavy_imports(self, modules, heavy):
        code = f"import sys, {modules}; sys.exit(bool({heavy} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
