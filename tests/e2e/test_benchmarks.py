"""The files in benchmarks/ fit the library as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from conftest import make_dataset

from segpl.data.manifest import Manifest, PredictedCase, write_manifest
from segpl.data.summary import CaseSummary, ClassSummary, shifted
from segpl.evaluate.scores import Score, write_scores
from segpl.experiments.experiment import make_experiment
from segpl.methods.bpl_mix import BPLMix
from segpl.records import read_toml
from segpl.settings import resolve
from segpl.types import Batch, PseudoLabels, Unlabeled

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EXPERIMENTS = sorted({*BENCHMARKS.glob("*.toml")} - {BENCHMARKS / "plain.toml"})


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_can_be_read_and_its_plans_exist(path):
    experiment = make_experiment(read_toml(path), path.name)
    assert experiment.questions
    for dataset in experiment.datasets:
        plan = dataset.sections.get("data", {}).get("plan")
        assert plan is None or (BENCHMARKS.parent / plan).is_file(), plan


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_no_experiment_trains_a_run_twice(path):
    experiment = make_experiment(read_toml(path), path.name)
    runs = [
        (dataset.path, dataset.phantom, seed, resolve(experiment.settings(dataset, label)).leaves())
        for dataset in experiment.datasets
        for seed in dataset.seeds
        for label in experiment.labels_on(dataset)
    ]
    assert len({*map(str, runs)}) == len(runs)


def test_readme_maps_every_file_to_its_command():
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for path in EXPERIMENTS:
        assert f"| `{path.name}` | `segpl compare benchmarks/{path.name} --data" in text
    for path in BENCHMARKS.glob("*.py"):
        assert f"| `{path.name}` | `python benchmarks/{path.name} --" in text


def test_evidence_page_has_the_command_of_every_experiment():
    page = BENCHMARKS.parent / "docs" / "explanation" / "evidence.md"
    text = page.read_text(encoding="utf-8")
    for path in EXPERIMENTS:
        commands = [
            line[2:] for line in path.read_text().splitlines() if line.startswith("# segpl")
        ]
        assert commands
        assert [command for command in commands if command not in text] == []


def test_confidence_is_compared_with_dice_before_and_after_calibration(
    tmp_path, monkeypatch, capsys
):
    """All masks are too confident by the same shift, which any five cases reveal."""
    run = tmp_path / "data" / "runs" / "bpl-mix-0-abcd"
    confidence = np.linspace(0.8, 0.98, 12).tolist()
    summaries = [CaseSummary("ml", {"x": ClassSummary(1.0, value)}) for value in confidence]
    files = {
        f"c{n}": PredictedCase((), f"c{n}.nii.gz", summary=one) for n, one in enumerate(summaries)
    }
    write_manifest(run / "predictions", Manifest({"background": 0, "x": 1}, files=files))
    dice = [shifted(value, -1.5) for value in confidence]
    write_scores(
        run / "scores.csv", [Score(f"c{n}", "x", "dice", value) for n, value in enumerate(dice)]
    )
    monkeypatch.setattr(sys, "argv", ["confidence.py", "--runs", str(run)])
    runpy.run_path(str(BENCHMARKS / "confidence.py"), run_name="__main__")
    means = [np.mean(confidence), np.mean(dice), np.mean(confidence) - np.mean(dice), 0.0]
    numbers = " | ".join(f"{value:.3f}" for value in means)
    assert f"| data, bpl-mix | {numbers} |" in capsys.readouterr().out


def test_fair_comparison_trains_every_method_with_the_same_learning_rates():
    experiment = make_experiment(read_toml(BENCHMARKS / "fair.toml"), "fair.toml")
    for label in experiment.labels_on(experiment.datasets[0]):
        configs = [
            resolve(experiment.settings(dataset, label)).leaves() for dataset in experiment.datasets
        ]
        rates = [config.pop("train.lr") for config in configs]
        assert [rate / rates[0] for rate in rates] == pytest.approx([1, 0.3, 3])
        assert configs[0]["method.name"] == label
        assert configs[0] == configs[1] == configs[2]


def test_tuning_changes_one_setting_of_the_default_at_a_time():
    experiment = make_experiment(read_toml(BENCHMARKS / "tuning.toml"), "tuning.toml")
    (dataset,) = experiment.datasets
    reference, *variants = (
        resolve(experiment.settings(dataset, label)).leaves()
        for label in experiment.labels_on(dataset)
    )
    changed = [[key for key in one if one[key] != reference[key]] for one in variants]
    assert [len(keys) for keys in changed] == [1] * 4


def test_exact_e_step_is_timed_as_a_share_of_the_step(monkeypatch, capsys):
    small = "--patch 32 32 32 --labeled 1 --unlabeled 1 --width 2 --repeats 1"
    monkeypatch.setattr(sys, "argv", ["exact_e_step.py", *small.split()])
    runpy.run_path(str(BENCHMARKS / "exact_e_step.py"), run_name="__main__")
    shares = [line for line in capsys.readouterr().out.splitlines() if line.endswith("of the step")]
    assert len(shares) == 2


def test_linear_interpolation_warps_ellipsoids_more_accurately(tmp_path, monkeypatch, capsys):
    label = np.zeros((12, 12, 12), np.uint8)
    label[3:9, 3:9, 3:6], label[3:9, 3:9, 6:9] = 1, 2
    nibabel.save(nibabel.Nifti1Image(label, np.eye(4)), tmp_path / "case.nii.gz")
    arguments = ["--labels", str(tmp_path), "--ellipsoids", "4"]
    monkeypatch.setattr(sys, "argv", ["warped_labels.py", *arguments])
    runpy.run_path(str(BENCHMARKS / "warped_labels.py"), run_name="__main__")
    ellipsoids, labels = capsys.readouterr().out.splitlines()
    assert ellipsoids.startswith("4 ellipsoids")
    assert ellipsoids.endswith("better in 4")
    assert labels.startswith("1 labels, warped and warped back")


ROUNDS = BENCHMARKS / "rounds.py"


@pytest.mark.slow
def test_rounds_of_self_training_are_scored(tmp_path, monkeypatch, capsys):
    data = make_dataset(tmp_path / "data", side=16, labeled=6, unlabeled=0, test=0)
    small = "--labeled 2 --validation 1 --test 1 --steps 2 --longer 3 --folds 2"
    small += " --set train.batch=1 network.width=2"
    arguments = ["--data", str(data), *small.split(), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["rounds.py", *arguments])
    runpy.run_path(str(ROUNDS), run_name="__main__")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.count("  ")]
    scores = {line[:32].strip(): line[32:] for line in rows}
    made = {"supervised", "hard", "soft", "selected", "weighted", "agreed"}
    others = {"largest", "soft-teacher", "decision, upper bound", "decision"}
    assert {"default", "3 steps", "mean of the folds", *made, *others} <= scores.keys()
    # the plan keeps the grid of these files
    assert scores["default, grid of the files"] == scores["default, mirrored views"]


def test_rounds_of_self_training_accept_any_setting(tmp_path):
    data = make_dataset(tmp_path / "data", side=16, labeled=4, unlabeled=0, test=0)
    options = {"labeled": 1, "validation": 1, "test": 1, "steps": 2, "device": "cpu", "plan": ""}
    settings = ["train.ratio=1", "network.width=2"]
    args = SimpleNamespace(data=data, **options, set=settings)
    config = runpy.run_path(str(ROUNDS))["make_study"](args, 3).config
    assert (config.train.ratio, config.network.width, config.train.seed) == (1, 2, 3)


def test_precision_of_held_out_scans_is_that_of_the_scans_and_not_of_their_voxels():
    precision = runpy.run_path(str(ROUNDS))["precision"]
    many = np.full(50, 1000)
    assert precision(many * 0.9, many) == pytest.approx(0.9, abs=0.01)
    # one large scan does not outweigh four small ones
    counts = np.array([100_000, 100, 100, 100, 100])
    hits = counts * np.array([0.5, 0.95, 0.95, 0.95, 0.95])
    assert 0.7 < precision(hits, counts) < 0.9
    assert precision(np.array([0.0]), np.array([0])) == pytest.approx(0.5)


def test_pseudo_labels_keep_only_the_largest_component(monkeypatch):
    kind = runpy.run_path(str(ROUNDS))["LargestComponents"]
    mask = torch.tensor([1.0, 1, 0, 1, 0, 0])
    made = PseudoLabels(torch.stack([1 - mask, mask, mask])[None], torch.ones(1, 3, 6))
    monkeypatch.setattr(BPLMix, "label", lambda *_: (made,))
    method = kind.__new__(kind)
    vars(method)["single"] = [1]
    (found,) = method.label(None, 0.0)
    assert found.target.tolist() == [[[0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], mask.tolist()]]
    assert found.weight is made.weight


def test_soft_pseudo_labels_are_the_probabilities_of_the_teacher():
    kind = runpy.run_path(str(ROUNDS))["SoftTargets"]
    method = kind.__new__(kind)
    vars(method)["teacher"] = lambda image: SimpleNamespace(logits=3 * image)
    image, inside = torch.tensor([[[-1.0, 0.5, 2]]]), torch.tensor([[True, True, False]])
    (made,) = method.label(Batch(None, Unlabeled(image, inside), None), 0.0)
    assert torch.equal(made.target, (3 * image).sigmoid())
    assert made.weight.tolist() == [[[1, 1, 0]]]


@pytest.mark.parametrize("channels", [1, 3])
def test_decision_threshold_has_the_best_dice(channels):
    rounds = runpy.run_path(str(ROUNDS))
    label = np.array([0, 0, 1, 1, 1, 2 if channels > 1 else 0])
    first = torch.tensor([0.1, 0.25, 0.35, 0.4, 0.9, 0.0])
    last = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.9])
    rest = 1 - first - last
    maps = {"case": first[None] if channels == 1 else torch.stack([rest, first, last])}
    classes = ["background", "a", "b"][: max(2, channels)]
    volumes = {"case": SimpleNamespace(label=label)}
    study = rounds["Study"](None, SimpleNamespace(classes=classes), volumes, (), (), (), None)
    others = [0.5] * (len(classes) - 2)
    plain = study.mean_dice(rounds["decide"](maps, [0.5, *others]))
    assert plain == pytest.approx(0.5 if channels == 1 else 0.75)  # of both classes
    assert rounds["fit_thresholds"](study, maps) == [0.3, *others]
    assert study.mean_dice(rounds["decide"](maps, [0.3, *others])) == 1


@pytest.mark.slow
def test_weak_scaling_is_measured_with_one_and_two_processes(tmp_path, monkeypatch, capsys):
    data = make_dataset(tmp_path / "data", dims=2)
    small = f"--data {data} --processes 1 2 --batch 1 --steps 4 --method supervised"
    settings = "--device cpu --set network.width=4"
    monkeypatch.setattr(sys, "argv", ["weak_scaling.py", *small.split(), *settings.split()])
    runpy.run_path(str(BENCHMARKS / "weak_scaling.py"), run_name="__main__")
    _, one, two = capsys.readouterr().out.splitlines()
    assert one.split()[::2] == ["1", "1.00"]
    assert two.split()[0] == "2"
    assert float(two.split()[1]) > 0
