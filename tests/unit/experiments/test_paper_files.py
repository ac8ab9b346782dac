"""The files of the paper's experiments contain its settings and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from segpl.errors import InputError, UnknownNameError
from segpl.experiments.experiment import Experiment, make_experiment
from segpl.experiments.paper.run import FILES, paper_names, read_paper
from segpl.experiments.stress_inputs import DEGRADATIONS
from segpl.records import read_toml
from segpl.settings import Config, resolve

# tables 1 and 2: batch, learning rate, steps, alpha, ratio, mean and deviation of the prior
HYPERPARAMETERS = {
    "brats2018": (2, 0.03, 200, 0.05, 5, 0.5, 0.1),
    "carve": (2, 0.01, 800, 1.0, 4, 0.4, 0.1),
    "task01": (1, 0.0004, 25000, 0.1, 2, 0.9, 0.1),
    "task05": (1, 0.001, 2000, 0.002, 4, 0.9, 0.1),
}
# section 5.1: labeled, unlabeled, validation and test cases
CASES = {
    "brats2018": (2, 2, 1, 50),
    "carve": (1, 2, 1, 5),
    "task01": (8, 266, 0, 476),
    "task05": (1, 16, 0, 14),
}
# section 5.1 and the descriptions of the datasets
ANNOTATED = {"brats2018": 210, "carve": 10, "task01": 484, "task05": 32}
RUNS = {"brats2018": 90 + 55, "carve": 120 + 5, "task01": 10, "task05": 10}


def experiment_of(name: str) -> Experiment:
    return make_experiment(read_toml(FILES / f"{name}.toml"), name)


def configs_of(name: str) -> dict[tuple[str, str], Config]:
    experiment = experiment_of(name)
    return {
        (dataset.name, label): resolve(experiment.settings(dataset, label))
        for dataset in experiment.datasets
        for label in experiment.labels_on(dataset)
    }


def test_every_experiment_has_a_file():
    assert paper_names() == sorted(HYPERPARAMETERS)
    assert {path.name for path in (Path(__file__).parents[3] / "benchmarks/paper").iterdir()} == {
        f"{name}.toml" for name in HYPERPARAMETERS
    }


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_settings_are_those_of_tables_1_and_2(name):
    configs = configs_of(name)
    variational = [config for (_, label), config in configs.items() if label == "segpl-vi"]
    assert variational
    for config in variational:
        train, method = config.train, config.settings
        shown = (train.batch, train.lr, train.steps, method.alpha, train.ratio)
        assert (*shown, method.prior_mean, method.prior_std) == HYPERPARAMETERS[name]
        assert method.loss == "dice"
    plain = [config for (_, label), config in configs.items() if label == "segpl"]
    assert all(config.settings.alpha == HYPERPARAMETERS[name][3] for config in plain)


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_runs_use_the_networks_of_the_paper_without_augmentation(name):
    for config in configs_of(name).values():
        assert config.network.width == (16 if name == "brats2018" else 8)
        assert not config.network.residual
        assert (config.augment.affine, config.augment.mirror, config.augment.scanner) == (0, 0, 0)
        assert config.train.lr_decay == config.train.foreground == 0


@pytest.mark.parametrize("name", CASES)
def test_cases_are_those_of_section_5_1(name):
    data = read_paper(name).data
    assert (data.labeled_cases, data.unlabeled, data.validation, data.test) == CASES[name]
    assert data.cases == ANNOTATED[name] >= data.labeled_cases + data.validation + data.test
    assert {dataset.path for dataset in experiment_of(name).datasets} == set(data.labeled)


@pytest.mark.parametrize("name", RUNS)
def test_every_method_of_a_table_is_trained_with_five_seeds(name):
    experiment = experiment_of(name)
    runs = sum(len(one.seeds) * len(experiment.labels_on(one)) for one in experiment.datasets)
    assert runs == RUNS[name]
    assert all(len(dataset.seeds) == 5 for dataset in experiment.datasets)
    for key, printed in read_paper(name).numbers.iou.items():
        datasets = [one for one in experiment.datasets if one.name == key] or experiment.datasets
        assert all(set(printed) <= set(experiment.labels_on(one)) for one in datasets)


def test_sensitivity_variants_change_one_setting_of_segpl():
    configs = configs_of("brats2018")
    reference = configs["slices-150", "segpl"].leaves()
    studied = {"rate": "train.lr", "warm": "method.ramp_end", "ratio": "train.ratio"}
    studied["alpha"] = "method.alpha"
    for (_, label), config in configs.items():
        leaves = config.leaves()
        changed = {key for key in leaves if leaves[key] != reference.get(key)}
        if setting := studied.get(label.split("-")[0]):
            assert changed == {setting}, label


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_figures_and_tables_use_datasets_and_methods_that_are_trained(name):
    experiment, numbers = experiment_of(name), read_paper(name).numbers
    trained = {one.name: set(experiment.labels_on(one)) for one in experiment.datasets}
    if numbers.pair:
        assert set(numbers.pair[1:]) <= trained[numbers.pair[0]]
    if numbers.robustness:
        assert set(numbers.robustness.degradations) <= set(DEGRADATIONS)
        assert numbers.robustness.dataset in trained
    if numbers.uncertainty:
        assert set(numbers.uncertainty.brier) <= trained[numbers.uncertainty.dataset]
    assert set(numbers.cost) <= set().union(*trained.values())


def test_every_panel_of_figure_8_shows_the_setting_that_its_variants_change():
    experiment, numbers = experiment_of("brats2018"), read_paper("brats2018").numbers
    configs = configs_of("brats2018")
    studies = [one for one in experiment.questions if one.id.startswith("figure-8")]
    assert [one.id for one in studies] == list(numbers.sensitivity)
    for study in studies:
        setting, _ = numbers.sensitivity[study.id]
        values = [configs["slices-150", label].leaves()[setting] for label in study.labels]
        assert len(set(values)) == len(values)


def test_overrides_change_the_preparation_or_the_runs():
    paper = read_paper("task05", ["paper.data.test=3", "train.steps=5"])
    assert paper.data.test == 3
    assert paper.overrides == ("train.steps=5",)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tests=3", "no setting 'tests'"),
        ("test=0", "test must be at least 1"),
        ("unlabeled=-1", "other numbers at least 0"),
        ("cases=-1", "other numbers at least 0"),
        ("labeled={}", "labeled needs at least one dataset"),
        ("labeled={task05=[0]}", "at least 1 sample per case"),
        ("patch=[64, 64]", r"patch is \[64, 64\], but task05 needs 3 sides"),
    ],
)
def test_impossible_preparation_is_an_error(override, words):
    with pytest.raises(InputError, match=words):
        read_paper("task05", [f"paper.data.{override}"])


def test_unknown_experiment_is_an_error():
    with pytest.raises(UnknownNameError, match="Did you mean 'task05'"):
        read_paper("task5")


def test_data_prepared_with_other_settings_are_not_reused(tmp_path):
    from paper_datasets import make_task05

    source = make_task05(tmp_path / "unpacked")
    small = ["paper.data.patch=[16, 16, 8]", "paper.data.unlabeled=2", "paper.data.cases=5"]
    read_paper("task05", [*small, "paper.data.test=1"]).prepare(source, tmp_path / "out")
    with pytest.raises(InputError, match="Choose another --out"):
        read_paper("task05", [*small, "paper.data.test=2"]).prepare(source, tmp_path / "out")


def test_the_number_of_cases_is_checked_before_the_preparation(tmp_path):
    from paper_datasets import make_carve

    source, small = make_carve(tmp_path / "unpacked", cases=9), ["paper.data.patch=[16, 16, 3]"]
    with pytest.raises(InputError, match="has 9 annotated cases, but the complete dataset has 10"):
        read_paper("carve", small).prepare(source, tmp_path / "out")
    assert not list(tmp_path.glob("out/samples*"))
    read_paper("carve", [*small, "paper.data.cases=9"]).prepare(source, tmp_path / "out")
    read_paper("carve", small).prepare(source, tmp_path / "out")  # finished before


def test_the_number_of_cases_of_another_dataset_is_not_checked(tmp_path):
    from paper_datasets import make_task05

    source = make_task05(tmp_path / "unpacked").rename(tmp_path / "Task99_Organ")
    small = ["paper.data.test=1", "paper.data.unlabeled=1", "paper.data.patch=[16, 16]"]
    small += ["paper.data.labeled={slices-50=[9]}"]
    other = read_paper("brats2018", small).prepare(source, tmp_path / "out")
    assert other is not None
    assert other.name == "Task99_Organ"
