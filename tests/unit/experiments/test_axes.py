from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segpl.errors import UserError
from segpl.experiments.experiment import Experiment, make_experiment
from segpl.experiments.jobs import listed_jobs, reject_repeated_runs
from segpl.settings import resolve

CONTENT: dict[str, Any] = {
    "datasets": {"brain": {"path": "Task04", "train": {"steps": 7}}, "lung": {"phantom": True}}
}


def experiment(axes: Any, **more: Any) -> Experiment:
    return make_experiment({**CONTENT, "axes": axes, **more}, "file.toml")


def test_methods_labels_and_seeds_give_every_combination():
    found = experiment(
        {"method": ["supervised", "segpl", "cps"], "labels": [4, 8], "seed": [3, 4]},
        datasets={"brain": CONTENT["datasets"]["brain"]},
    )
    assert [dataset.name for dataset in found.datasets] == ["brain-labeled-4", "brain-labeled-8"]
    runs = [
        (resolve(found.settings(dataset, label)).split.labeled, label, seed)
        for dataset in found.datasets
        for label in found.labels_on(dataset)
        for seed in dataset.seeds
    ]
    assert len(runs) == 12
    assert set(runs) == {
        (labels, name, seed)
        for labels in (4, 8)
        for name in ("supervised", "segpl", "cps")
        for seed in (3, 4)
    }
    assert resolve(found.settings(found.datasets[0], "cps")).train.steps == 7


def test_settings_of_methods_make_variants_of_the_methods_that_have_them():
    found = experiment(
        {
            "method": ["segpl", "bpl", "ensemble"],
            "alpha": [0.1, 1.0],
            "threshold": {"family": ["beta", "logit-normal"]},
        }
    )
    first = found.datasets[0]
    assert found.labels_on(first) == [
        "supervised",
        "segpl-alpha-0.1",
        "segpl-alpha-1.0",
        "bpl-alpha-0.1-family-beta",
        "bpl-alpha-0.1-family-logit-normal",
        "bpl-alpha-1.0-family-beta",
        "bpl-alpha-1.0-family-logit-normal",
        "ensemble",
    ]
    config = resolve(found.settings(first, "bpl-alpha-1.0-family-beta"))
    assert (config.settings.alpha, config.settings.threshold.family) == (1.0, "beta")
    assert config.method == "bpl"


def test_an_axis_without_methods_uses_the_default_method():
    found = experiment({"alpha": [0.1, 1.0]})
    labels = found.labels_on(found.datasets[0])
    assert labels == ["supervised", "bpl-mix-alpha-0.1", "bpl-mix-alpha-1.0"]


def test_variants_of_the_file_can_be_values_and_keep_their_settings():
    found = experiment(
        {"method": ["narrow"], "alpha": [0.1]},
        methods={"narrow": {"method": "segpl", "network": {"width": 4}}},
    )
    config = resolve(found.settings(found.datasets[0], "narrow-alpha-0.1"))
    assert (config.method, config.network.width, config.settings.alpha) == ("segpl", 4, 0.1)


def test_a_question_about_a_dataset_is_asked_for_every_value():
    question = {"id": "q", "text": "?", "reference": "supervised", "variants": ["segpl"]}
    found = experiment(
        {"lr": [0.1, 0.2]}, questions=[{**question, "cases": "test", "only": ["lung"]}]
    )
    asked = [dataset.name for dataset in found.datasets if found.labels_on(dataset)]
    assert asked == ["lung-lr-0.1", "lung-lr-0.2"]


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (3, "[axes] is 3, but must be a table"),
        ({"alfa": [1]}, "[axes]: no setting 'alfa'. Did you mean 'alpha'?"),
        ({"split": {"labelled": [1]}}, "no setting 'split.labelled'. Did you mean 'split.labeled'"),
        ({"alpha": []}, "alpha is [], but must be a list of values"),
        ({"threshold": {}}, "threshold is {}, but must be a list of values"),
        ({"alpha": 0.1}, "alpha is 0.1, but must be a list of values"),
        ({"method": []}, "method is [], but must be a list of values"),
        ({"seed": []}, "seed is [], but must be a list of values"),
        ({"seed": [1, 1]}, "seed is [1, 1], but each value may appear only once"),
        ({"seed": [1], "train": {"seed": [2]}}, "train.seed is given twice"),
        ({"seed": ["a"]}, "Expected `int`, got `str`"),
        ({"method": ["segpl", "segpl"]}, "method is ['segpl', 'segpl'], but each value may"),
        ({"alpha": [1, 1.0]}, "alpha is [1, 1.0], but each value may appear only once"),
        ({"lr": ["a b", "a/b"]}, "two runs would write to the same folder, 'brain-lr-a-b'"),
        ({"labels": [4], "split": {"labeled": [8]}}, "split.labeled is given twice"),
        ({"method": ["fixmach"]}, "[axes]: no method named 'fixmach'. Did you mean 'fixmatch'"),
        ({"method": ["supervised"]}, "[axes]: method contains only supervised, the reference"),
        ({"alpha": ["high"]}, "[methods.bpl-mix-alpha-high]: method.alpha is 'high', but it must"),
        ({"method": ["cps"], "threshold": {"family": ["beta"]}}, "has the setting 'method.thresh"),
        ({"split": {"draw": [1]}}, "split.draw follows from the seeds"),
        ({"lr": ["high"]}, "train.lr is 'high', but it must be a number"),
    ],
)
def test_error_names_the_axis_and_the_file(axes, words):
    with pytest.raises(UserError) as caught:
        experiment(axes)
    assert words in str(caught.value)
    assert "file.toml" in str(caught.value)


def test_axes_of_methods_mix_neither_with_questions_nor_with_the_option():
    question = {"id": "q", "text": "?", "reference": "supervised", "variants": ["segpl"]}
    with pytest.raises(UserError, match=r"cannot be axes together with \[\[questions\]\]"):
        experiment({"alpha": [1]}, questions=[question])
    with pytest.raises(UserError, match=r"has its own \[axes\] for methods"):
        make_experiment({**CONTENT, "axes": {"alpha": [1]}}, "file.toml", methods=["cps"])
    with pytest.raises(UserError, match="has seeds, too"):
        experiment({"seed": [1]}, datasets={"lung": {"phantom": True, "seeds": [0]}})


@pytest.mark.parametrize(
    ("axes", "more", "words"),
    [
        (
            {"method": ["segpl", "mine"], "alpha": [0.1, 1.0]},
            {"methods": {"mine": {"method": "segpl"}}},
            "'brain, segpl-alpha-0.1, seed 0' and 'brain, mine-alpha-0.1, seed 0' have the same",
        ),
        (
            {"method": ["segpl"]},
            {"datasets": {"a": {"path": "x"}, "A": {"path": "y"}}},
            "'a, supervised, seed 0' and 'A, supervised, seed 0' would write to the same folder",
        ),
    ],
)
def test_runs_that_repeat_another_are_an_error(axes, more, words):
    found = experiment(axes, **more)
    jobs = [job for one in found.datasets for job in listed_jobs(found, one, Path("out", one.name))]
    with pytest.raises(UserError, match=words):
        reject_repeated_runs(jobs)
