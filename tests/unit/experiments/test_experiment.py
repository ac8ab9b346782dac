from __future__ import annotations

import copy
from typing import Any

import pytest

from segpl.engine.trainer import TrainSettings
from segpl.errors import UserError
from segpl.experiments import compare
from segpl.experiments.experiment import Experiment, make_experiment
from segpl.experiments.jobs import TrainingJob, listed_jobs
from segpl.methods.base import METHODS
from segpl.settings import resolve

GOOD: dict[str, Any] = {
    "title": "Thresholds",
    "datasets": {
        "phantom": {"phantom": True, "seeds": [3, 4], "train": {"steps": 7}},
        "brain": {"path": "Task04", "split": {"labeled": 2, "validation": 5}},
    },
    "train": {"steps": 9, "lr": 0.5},
    "split": {"validation": 2},
    "methods": {
        "low": {"method": "segpl", "threshold": 0.4},
        "high": {"method": "segpl", "threshold": 0.6, "network": {"width": 4}},
        "table": {"method": "bpl", "threshold": {"family": "beta"}},
    },
    "questions": [
        {"id": "fixed", "text": "Low?", "reference": "segpl", "variants": ["low"]},
        {"id": "up", "text": "Up?", "reference": "low", "variants": ["high"], "only": ["brain"]},
        {"id": "on-test", "text": "?", "reference": "low", "variants": ["table"], "cases": "test"},
    ],
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with another value at a path such as `questions.0.id`; None deletes it."""
    content = copy.deepcopy(GOOD)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    target: Any = content
    for key in parents:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return content


def experiment(content: dict[str, Any] = GOOD, **options: Any) -> Experiment:
    return make_experiment(content, "file.toml", **options)


def test_a_dataset_trains_only_what_its_questions_need():
    phantom, brain = experiment().datasets
    assert experiment().labels_on(phantom) == ["segpl", "low", "table"]
    assert experiment().labels_on(brain) == ["segpl", "low", "high", "table"]


def test_only_plans_the_chosen_datasets_and_keeps_others_that_have_scores(tmp_path, monkeypatch):
    given, planned = experiment(), []

    def plan(found, dataset, folder, **_):
        planned.append(dataset.name)
        return listed_jobs(found, dataset, folder)

    def gather(*only: str) -> list[tuple[str, str, int]]:
        where = {"root": tmp_path, "derive_plans": True, "quiet": True}
        jobs = compare.gather_jobs(given, tmp_path, only=only, **where)
        return [(job.dataset, job.label, job.seed) for job in jobs]

    monkeypatch.setattr(compare, "plan_jobs", plan)
    phantom = [("phantom", label, seed) for seed in (3, 4) for label in ("segpl", "low", "table")]
    assert gather("phantom") == phantom
    assert planned == ["phantom"]
    # one finished run: the others of its dataset are missing parts of the answer
    (brain,) = (one for one in given.datasets if one.name == "brain")
    first = listed_jobs(given, brain, tmp_path / "brain")[0].folder
    first.mkdir(parents=True)
    (first / "scores.csv").touch()
    found = gather("phantom")
    assert planned == ["phantom"] * 2
    assert found[:6] == phantom
    labels = ("segpl", "low", "high", "table")
    assert found[6:] == [("brain", label, seed) for seed in (0, 1, 2) for label in labels]
    assert gather() == found
    assert planned[2:] == ["phantom", "brain"]


def test_settings_come_from_the_file_the_dataset_and_the_variant_in_this_order():
    phantom, brain = experiment().datasets
    config = resolve(experiment().settings(phantom, "high"))
    assert (config.method, config.settings.threshold) == ("segpl", 0.6)
    assert (config.train.steps, config.train.lr, config.network.width) == (7, 0.5, 4)
    assert resolve(experiment().settings(brain, "low")).split.validation == 5
    assert (brain.path, brain.seeds, phantom.seeds) == ("Task04", (0, 1, 2), (3, 4))


def test_method_settings_of_a_dataset_go_to_the_methods_that_have_them():
    found = experiment(changed("datasets.brain.method", {"alpha": 0.7, "threshold": 0.2}))
    _, brain = found.datasets
    segpl, low, table = (
        found.settings(brain, label)["method"] for label in ("segpl", "low", "table")
    )
    assert segpl == {"name": "segpl", "alpha": 0.7, "threshold": 0.2}
    assert low == {"name": "segpl", "alpha": 0.7, "threshold": 0.4}  # its own value wins
    assert table["threshold"] == {"family": "beta"}  # a table, which a number does not fit


def test_a_variant_starts_from_the_settings_of_its_method():
    content = changed("methods.bpl", {"threshold": {"prior_mean": 0.8}, "train": {"lr": 0.2}})
    content["methods"]["segpl"] = {"threshold": 0.3, "alpha": 0.7}
    found = experiment(content)
    phantom, _ = found.datasets
    table = resolve(found.settings(phantom, "table"))
    assert (table.settings.threshold.family, table.settings.threshold.prior_mean) == ("beta", 0.8)
    assert (table.train.lr, table.train.steps) == (0.2, 7)
    low = found.settings(phantom, "low")["method"]
    assert low == {"name": "segpl", "threshold": 0.4, "alpha": 0.7}  # its own value wins


def test_overrides_and_seeds_of_the_command_come_last():
    found = experiment(
        seeds=[8], overrides={"train": {"steps": 2}, "methods": {"low": {"threshold": 0.1}}}
    )
    assert [dataset.seeds for dataset in found.datasets] == [(8,), (8,)]
    config = resolve(found.settings(found.datasets[0], "low"))
    assert (config.train.steps, config.train.lr, config.settings.threshold) == (2, 0.5, 0.1)


def test_without_questions_every_method_is_compared_with_supervised_training_on_test_cases():
    content = {"datasets": {"": {"path": "data"}}, "methods": {"low": GOOD["methods"]["low"]}}
    (question,) = experiment(content).questions
    assert (question.reference, question.cases) == ("supervised", "test")
    assert {*question.variants} == {*METHODS.names, "low"} - {"supervised"}
    (question,) = experiment(content, methods=["supervised", "low"]).questions
    assert question.labels == ("supervised", "low")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("titel", "x", "file.toml: no setting 'titel'. Did you mean 'title'?"),
        ("datasets", {}, "has no dataset"),
        ("datasets", 3, "[datasets] is 3, but must be a table"),
        ("datasets.brain.seed", [1], "[datasets.brain]: no setting 'seed'. Did you mean 'seeds'?"),
        ("datasets.brain.seeds", 3, "[datasets.brain]: Expected `array`, got `int` for `seeds`"),
        ("datasets.brain.seeds", [1, 1], "one or more different numbers"),
        ("datasets.brain.seeds", [-1], "0 or more"),
        ("datasets.brain.phantom", True, "either a path, below --data, or phantom = true"),
        ("datasets.brain.path", None, "either a path"),
        ("datasets.brain.split", {"validation": 0}, "no validation cases to answer questions on"),
        ("datasets.brain.train", {"stepz": 4}, "'train.stepz'"),
        ("datasets.brain.method", {"alfa": 1}, "has the setting 'alfa'"),
        ("datasets.a b", {"phantom": True}, "may contain only letters"),
        ("datasets.b", {"path": "b", "network": {"name": "UNetR"}}, "no network named 'UNetR'"),
        ("methods.low.network", {"options": {"x": 1}}, "are only for MONAI networks"),
        (f"methods.{'long' * 51}", {"method": "segpl"}, "at most 200 of them. Rename it"),
        ("train.seed", 4, "train.seed follows from the seeds"),
        ("split.draw", 4, "split.draw follows from the seeds"),
        ("methods.low.train", {"seed": 1}, "train.seed follows from the seeds"),
        ("methods.low.threshold", 2, "threshold is 2"),
        ("methods.low.thresold", 0.2, "'method.thresold'"),
        ("methods.low.method", "sgpl", "no method named 'sgpl'"),
        ("methods.low.method", 3, "must be the name of a method"),
        ("methods.low.method", None, "'low' is not a method"),
        ("methods.low.name", "x", "remove 'name'"),
        ("methods.cps", {"method": "segpl"}, "'cps' is a method itself"),
        ("questions", {"id": "x"}, "below a line [[questions]]"),
        ("questions.0.id", None, "question 1: Object missing required field `id`"),
        ("questions.0.id", "a/b", "may contain only letters"),
        ("questions.0.id", "up", "used twice"),
        ("questions.0.reference", "segl", "question 'fixed': no method named 'segl'"),
        ("questions.0.variants", ["lwo"], "no method named 'lwo'. Did you mean 'low'?"),
        ("questions.0.variants", [], "name at least one"),
        ("questions.0.variants", ["segpl"], "both the reference and a variant"),
        ("questions.0.case", "test", "no setting 'case'. Did you mean 'cases'?"),
        ("questions.0.cases", "all", "question 1: Invalid enum value 'all' for `cases`"),
        ("questions.0.only", ["brian"], "no dataset named 'brian'. Did you mean 'brain'?"),
    ],
)
def test_error_names_the_key_and_the_file(path, value, words):
    with pytest.raises(UserError) as caught:
        experiment(changed(path, value))
    assert words in str(caught.value)


def test_methods_of_the_command_do_not_mix_with_questions():
    with pytest.raises(UserError, match=r"--methods: file.toml has its own \[\[questions\]\]"):
        experiment(methods=["cps"])


def test_unknown_section_of_an_option_is_not_blamed_on_the_file():
    content = {"datasets": {"brain": {"path": "brain"}}}
    with pytest.raises(UserError, match=r"^--set: no setting 'trian'\. Did you mean 'train'\?"):
        make_experiment(content, "file.toml", overrides={"trian": {"steps": 1}})


def test_the_reference_alone_is_nothing_to_compare():
    content = {"datasets": {"": {"path": "data"}}}
    with pytest.raises(UserError, match="only supervised, the reference"):
        make_experiment(content, "data", methods=["supervised"])


@pytest.mark.parametrize(("train", "steps"), [({}, TrainSettings().steps), ({"steps": 7}, 7)])
def test_compared_runs_have_a_fixed_number_of_steps(monkeypatch, tmp_path, train, steps):
    """A time budget would give slower methods fewer."""
    trained = []
    monkeypatch.setattr(compare, "train", lambda **given: trained.append(given["steps"]))
    monkeypatch.setattr(compare, "score_run", lambda run: None)
    content = {"method": {"name": "segpl"}, "train": train}
    job = TrainingJob("brain", "segpl", 0, tmp_path / "run", content)
    assert compare.run_job(job, quiet=True) == ""
    assert trained == [steps]
