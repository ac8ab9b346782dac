"""`segpl paper`: every experiment of the paper, from the unpacked folder to the table."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import nibabel
import numpy as np
import pytest
import torch
from conftest import rows_of
from paper_datasets import make_brats2018, make_carve, make_task01, make_task05

from segpl.data.paper.carve import IGNORED
from segpl.data.plan import Plan
from segpl.experiments import compare, estimate
from segpl.experiments.paper import extras, run
from segpl.experiments.paper.figures import sensitivity_figure
from segpl.experiments.paper.results import finished_runs
from segpl.experiments.paper.run import FILES, PLAN, read_paper
from segpl.records import read_toml
from segpl.report.run_record import read_run
from segpl.report.stress_rows import read_stress

TOY = (
    *("--seeds", 0, "--device", "cpu", "--set", "train.steps=1", "--set", "train.log_every=1"),
    *("--set", "network.width=2", "--set", "train.compile=off"),
)
SMALL = {
    "carve": (
        *("--set", "paper.data.patch=[16, 16, 3]"),
        *("--set", "paper.data.labeled={volumes-2=[2], volumes-5=[3]}"),
        *("--set", "paper.data.test_samples=4", "--only", "volumes-2"),
    ),
    "brats2018": (
        *("--set", "paper.data.patch=[16, 16]"),
        *("--set", "paper.data.labeled={slices-50=[3], slices-150=[5], slices-300=[5, 5]}"),
        *("--set", "paper.data.test=1", "--set", "paper.data.cases=7", "--only", "slices-300"),
    ),
    "task01": (
        *("--set", "paper.data.patch=[16, 16, 16]"),
        *("--set", "paper.data.labeled={task01=[1, 1]}"),
        *("--set", "paper.data.test=2", "--set", "paper.data.unlabeled=2"),
        *("--set", "paper.data.cases=4"),
        *("--set", 'paper.iou={"8x8x8"={supervised=[61.07, 7.93], segpl-vi=[64.44, 8.3]}}'),
    ),
    "task05": (
        *("--set", "paper.data.patch=[16, 16, 8]"),
        *("--set", "paper.data.test=1", "--set", "paper.data.unlabeled=2"),
        *("--set", "paper.data.cases=5"),
        *("--set", 'paper.iou={"12x12x8"={supervised=[67.68, 10.06], segpl-vi=[70.15, 10.59]}}'),
    ),
}
MAKERS = {
    "carve": make_carve,
    "brats2018": make_brats2018,
    "task01": make_task01,
    "task05": make_task05,
}
# what the table must contain: test and method -> as printed in the paper
PRINTED = {
    "carve": {
        ("volumes-2", "supervised"): "56.79 ± 6.44",
        ("volumes-2", "fixmatch"): "62.35 ± 7.87",
        ("volumes-2", "cct"): "51.71 ± 7.31",
        ("volumes-2", "cps"): "66.67 ± 8.16",
        ("volumes-2", "segpl"): "69.44 ± 6.38",
        ("volumes-2", "segpl-vi"): "70.65 ± 6.33",
    },
    "brats2018": {
        ("slices-300", "supervised"): "67.49 ± 11.40",
        ("slices-300", "self-loop (reconstruction)"): "70.80 ± 11.97",
        ("slices-300", "fixmatch"): "70.84 ± 9.37",
        ("slices-300", "cps"): "71.24 ± 10.80",
        ("slices-300", "segpl"): "72.60 ± 10.78",
        ("slices-300", "segpl-vi"): "75.12 ± 13.31",
    },
    "task01": {("8x8x8", "supervised"): "61.07 ± 7.93", ("8x8x8", "segpl-vi"): "64.44 ± 8.30"},
    "task05": {
        ("12x12x8", "supervised"): "67.68 ± 10.06",
        ("12x12x8", "segpl-vi"): "70.15 ± 10.59",
    },
}
# number of cases by role
CASES = {
    "carve": {"labeled": 2, "unlabeled": 10, "validation": 4, "test": 4},
    "brats2018": {"labeled": 10, "unlabeled": 20, "validation": 4, "test": 4},
    "task01": {"labeled": 2, "unlabeled": 2, "validation": 0, "test": 2},
    "task05": {"labeled": 1, "unlabeled": 2, "validation": 0, "test": 1},
}


@pytest.fixture
def without_report(monkeypatch, without_drawings) -> None:
    monkeypatch.setattr(compare, "write_report", lambda *args, **options: None)


def table_of(out: Path) -> dict[tuple[str, str], tuple[str, str]]:
    rows = rows_of(out / "paper.csv")
    return {(row["test"], row["method"]): (row["ours"], row["paper"]) for row in rows}


def without_mark(method: str) -> str:
    return method.split(" ")[0]  # of a reconstruction


def use_one_variant(folder: Path, monkeypatch) -> None:
    """Compare only the last variant of each question with supervised training."""
    folder.mkdir()
    for path in FILES.glob("*.toml"):
        text = re.sub(r"variants = \[.*(\".*?\")\]", r"variants = [\1]", path.read_text())
        (folder / path.name).write_text(text.replace('reference = "cps"', 'reference = "segpl-vi"'))
    monkeypatch.setattr(run, "FILES", folder)


def check_results(name: str, out: Path, methods: set[str]) -> None:
    """The table has the paper's numbers and ours; the runs have the cases and the plan."""
    table = table_of(out)
    assert {key: paper for key, (_, paper) in table.items()} == PRINTED[name]
    ours = {without_mark(method): score for (_, method), (score, _) in table.items()}
    assert {method for method, score in ours.items() if score != "-"} == methods
    runs = [read_run(path) for path in out.glob("*/runs/*")]
    assert {one.method for one in runs} == methods
    for one in runs:
        assert one.plan is not None
        assert one.split is not None
        assert one.plan.patch == Plan.read(out / "data" / "plan.json").patch
        parts = {part: getattr(one.split, part) for part in CASES[name]}
        assert {part: len(cases) for part, cases in parts.items()} == CASES[name]
        if one.split.validation:  # samples are named after their role
            for part, cases in parts.items():
                assert {case.split("-")[0] for case in cases} == {part}
            assert ours[one.method] == f"{100 * fmean(one.by_case('iou').values()):.2f}"
        else:  # tasks of the Decathlon are scored with other windows
            rows = read_stress(out / "windows" / "stress.csv")
            name_of_run = one.path.name
            known = [r.iou for r in rows if (r.run, r.degradation) == (name_of_run, "patch")]
            assert len(known) == CASES[name]["test"]
            assert ours[one.method] == f"{100 * fmean(known):.2f}"


@pytest.mark.parametrize("name", ["carve", "brats2018", "task01"])
def test_experiment_runs_from_the_unpacked_folder_to_the_table(
    segpl, tmp_path, monkeypatch, without_report, name
):
    use_one_variant(tmp_path / "files", monkeypatch)
    data, out = MAKERS[name](tmp_path / "unpacked"), tmp_path / "out"
    answer = segpl("paper", name, "--data", data, "--out", out, *TOY, *SMALL[name])
    assert answer.code == 0, answer.err
    trained = {"supervised", "segpl-vi"} | ({"segpl"} if name == "carve" else set())  # figure 3
    check_results(name, out, trained)
    figures = {path.name for path in out.glob("figure-*.png")}
    assert figures == {"carve": {"figure-9-10.png"}, "task01": {"figure-4.png"}}.get(name, set())
    if name == "carve":
        left_out = "No finished runs yet for: figure 3, uncertainty."
        assert left_out in answer.out
        assert (out / "robustness" / "stress.csv").exists()
        assert [line.split()[:2] for line in answer.out.splitlines() if "fgsm" in line] == [
            ["fgsm", method] for method in ("supervised", "segpl-vi", "segpl")
        ]
    if name == "brats2018":
        assert "No finished runs yet for: figure 8." in answer.out


def test_brier_scores_are_those_of_the_sampled_predictions(
    segpl, tmp_path, monkeypatch, without_report
):
    """SegPL-VI samples thresholds, so its probabilities are fractions of 5 masks."""
    use_one_variant(tmp_path / "files", monkeypatch)
    data, out = make_carve(tmp_path / "unpacked"), tmp_path / "out"
    command = ("paper", "carve", "--data", data, "--out", out, *TOY, *SMALL["carve"])
    command += ("--only", "volumes-5")
    answer = segpl(*command)
    assert answer.code == 0, answer.err
    assert "No finished runs yet for: figure 3, figures 9 and 10." in answer.out
    found = {row["method"]: row for row in rows_of(out / "uncertainty.csv")}
    assert {name: row["paper"] for name, row in found.items()} == {
        "segpl-vi": "0.97",
        "ensemble": "0.97",
    }
    labels = {
        path.name: np.asarray(nibabel.load(path).dataobj)
        for path in out.glob("data/volumes-5/labels*/*.nii.gz")
    }
    for folder in (out / "uncertainty").iterdir():
        errors, values = [], set()
        for path in sorted(folder.glob("probabilities/*.nii.gz")):
            probability = np.asarray(nibabel.load(path).dataobj, np.float64)
            known = labels[path.name] != IGNORED
            errors.append(((probability - labels[path.name]) ** 2)[known].mean())
            values |= set(np.round(5 * probability, 4).ravel())
        assert len(errors) == CASES["carve"]["test"]
        method = folder.name.rsplit("-", 2)[0]
        assert float(found[method]["ours"]) == pytest.approx(fmean(errors), abs=1e-4)
        assert (values <= {0, 1, 2, 3, 4, 5}) == (method == "segpl-vi")
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("uncertainty/**/*.nii.gz")}
    monkeypatch.setattr(extras, "score_probabilities", lambda *_: pytest.fail("scored again"))
    monkeypatch.setattr(extras, "count_operations", lambda *_: pytest.fail("counted again"))
    assert segpl(*command).code == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_figure_8_shows_validation_scores_over_the_settings_of_the_variants(
    segpl, tmp_path, monkeypatch, without_report
):
    use_one_variant(tmp_path / "files", monkeypatch)
    drawn = {}

    def draw(studies):
        drawn.update(studies)
        return sensitivity_figure(studies)

    monkeypatch.setattr(extras, "sensitivity_figure", draw)
    data, out = make_brats2018(tmp_path / "unpacked"), tmp_path / "out"
    command = ("paper", "brats2018", "--data", data, "--out", out, *TOY, *SMALL["brats2018"])
    answer = segpl(*command, "--only", "slices-150")
    assert answer.code == 0, answer.err
    assert (out / "figure-8.png").stat().st_size > 1000
    runs = {path.name.rsplit("-", 2)[0]: path for path in out.glob("slices-150/runs/*")}
    means = {
        label: fmean(row.dice for row in read_run(path).validation) for label, path in runs.items()
    }
    expected = [
        {0.03: "segpl", 0.1: "rate-01"},
        {0.5: "segpl", 1.0: "warm-up-100"},
        {5.0: "segpl", 10.0: "ratio-10"},
        {0.05: "segpl", 1.0: "alpha-1"},
    ]
    assert list(drawn.values()) == [
        {value: [pytest.approx(means[label])] for value, label in study.items()}
        for study in expected
    ]


def test_another_dataset_replaces_the_papers(segpl, tmp_path, monkeypatch, without_report):
    use_one_variant(tmp_path / "files", monkeypatch)
    data, out = make_task05(tmp_path / "unpacked"), tmp_path / "out"
    source = data.rename(tmp_path / "Task99_Organ")
    small = ("--set", "paper.data.labeled={slices-50=[9], slices-150=[99]}")
    small += ("--set", "paper.data.test=1", "--set", "paper.data.unlabeled=1")
    command = ("paper", "brats2018", "--data", source, "--out", out, *TOY, *small)
    answer = segpl(*command)
    assert answer.code == 0, answer.err
    assert "Task99_Organ replaces the paper's dataset" in answer.err
    assert "the dataset has too few labels: slices-150, slices-300" in answer.err
    rows = {row.pop("method"): row for row in rows_of(out / "paper.csv")}
    assert rows["fixmatch"]["paper on BRATS 2018"] == "67.35 ± 9.68"
    assert rows["fixmatch"]["ours on Task99_Organ"] == "-"
    runs = {one.method: one for one in map(read_run, out.glob("*/runs/*"))}
    assert runs.keys() == {"supervised", "segpl-vi"}
    for method, one in runs.items():
        ours = f"{100 * fmean(one.by_case('iou').values()):.2f}"
        assert rows[method] | {"paper on BRATS 2018": ""} == {
            "test": "slices-50",
            "ours on Task99_Organ": ours,
            "paper on BRATS 2018": "",
        }
        assert one.split is not None
        assert len(one.split.labeled) == 9
        assert {case.split("-")[0] for case in one.split.validation} == {"validation"}
    title = read_toml(out / "data" / "brats2018.toml")["title"]
    assert title.endswith("table 4 of the paper, with Task99_Organ instead")
    again = segpl(*command, "--only", "slices-150")
    assert again.code == 1
    assert "--only slices-150: Task99_Organ has too few labels" in again.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["carve", "brats2018"])
def test_all_methods_of_a_table_run(segpl, tmp_path, name):
    data, out = MAKERS[name](tmp_path / "unpacked"), tmp_path / "out"
    answer = segpl("paper", name, "--data", data, "--out", out, *TOY, *SMALL[name])
    assert answer.code == 0, answer.err
    check_results(name, out, {without_mark(method) for _, method in PRINTED[name]})
    assert (out / "report.html").exists()
    if name == "carve":
        assert "626.74" in answer.out
        assert "Figure 3, segpl and cps (volumes-2)" in answer.out
        assert (out / "figure-3.png").stat().st_size > 1000
        flops = json.loads((out / "flops.json").read_text())
        by_method = {key.rsplit("-", 2)[0]: value for key, value in flops.items()}
        assert by_method["cps"] == pytest.approx(2 * by_method["supervised"])
        # 2 labeled crops, and the weak and strong views of 8 unlabeled ones
        assert by_method["fixmatch"] == pytest.approx(1.8 * by_method["supervised"], rel=0.02)


@pytest.mark.usefixtures("without_drawings")
def test_task05_runs_once_although_the_command_is_repeated(segpl, tmp_path, monkeypatch):
    data, out = make_task05(tmp_path / "unpacked"), tmp_path / "out"
    command = ("paper", "task05", "--data", data, "--out", out, *TOY, *SMALL["task05"])
    first = segpl(*command)
    check_results("task05", out, {"supervised", "segpl-vi"})
    assert "table 6 (section 5.4)" in first.out
    assert "paper: 0.785" in first.out
    assert "Left out" not in first.out
    assert "Does SegPL-VI improve on supervised training?" in (out / "report.html").read_text()
    figure = out / "figure-5.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    measured = (*out.glob("data/**/*.nii.gz"), out / "windows" / "stress.csv")
    stamps = {path: path.stat().st_mtime_ns for path in measured}
    table = table_of(out)
    monkeypatch.setattr(compare, "run_job", lambda *args, **options: pytest.fail("trained again"))
    figure.unlink()
    short = segpl(*command, "--iou-only")
    assert short.code == 0
    assert table_of(out) == table
    assert not figure.exists()
    assert "0.785" not in short.out
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    settings = [value for option, value in pairwise(command) if option == "--set"]
    for steps, count in ((1, 1), (2, 0)):  # runs with other settings do not count
        paper = read_paper("task05", [*settings, f"train.steps={steps}"])
        experiment = paper.experiment(out / "data" / PLAN, [0])
        found = finished_runs(experiment, out)["task05"]
        assert {label: len(runs) for label, runs in found.items()} == {
            "supervised": count,
            "segpl-vi": count,
        }


def test_dry_run_prepares_the_data_and_counts_the_runs(segpl, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "measured_seconds", lambda job, speeds: 60.0)
    data, out = make_task05(tmp_path / "unpacked"), tmp_path / "out"
    options = (*SMALL["task05"], "--set", "network.width=2", "--dry-run")
    answer = segpl("paper", "task05", "--data", data, "--out", out, *options)
    assert answer.code == 0, answer.err
    assert "10 runs" in answer.out
    assert (out / "data" / "plan.json").is_file()
    assert not list(out.glob("*/runs/*"))


def test_half_unpacked_folder_is_an_error_before_anything_is_trained(segpl, tmp_path):
    data = make_brats2018(tmp_path / "unpacked", cases=1)
    next(data.glob("HGG/*/*_flair.nii.gz")).unlink()
    answer = segpl("paper", "brats2018", "--data", data, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "Missing files: 1 (HGG/" in answer.err
    assert not list(tmp_path.glob("out/*/runs"))


def test_truncated_test_image_is_an_error_before_anything_is_trained(segpl, tmp_path):
    """Task01 links its images, and no test image influences the preparation."""
    data, out = make_task01(tmp_path / "unpacked"), tmp_path / "out"
    image = data / "imagesTr" / "BRATS_004.nii.gz"
    image.write_bytes(image.read_bytes()[:-200])
    command = ("paper", "task01", "--data", data, "--out", out, *TOY, *SMALL["task01"])
    answer = segpl(*command)
    assert answer.code == 1
    assert "case BRATS_004: " in answer.err
    assert "imagesTs/BRATS_004.nii.gz is corrupt or truncated" in answer.err
    assert (out / "data" / "prepared.json").exists()
    assert not list(out.glob("*/runs"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "all"), "--only: no dataset named 'all'"),
        (("--jobs", 0), "--jobs is 0"),
        (("--set", "train.stepz=1"), "stepz"),
        (("--device", "cuda"), "torch finds none"),
    ],
)
def test_wrong_options_are_errors_before_data_are_prepared(
    segpl, tmp_path, monkeypatch, options, words
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = segpl("paper", "task05", "--data", tmp_path, "--out", tmp_path / "out", *options)
    assert answer.code == 1
    assert words in answer.err
    assert not (tmp_path / "out").exists()
