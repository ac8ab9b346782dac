from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from segpl.experiments.study_file import Study, parse_study, read_study

from segpl.errors import UserError

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
        "high": {"method": "segpl", "threshold": 0.6},
        "unused": {"method": "segpl", "threshold": 0.7},
    },
    "questions": [
        {"id": "fixed", "text": "Low?", "reference": "segpl", "variants": ["low"]},
        {"id": "up", "text": "Up?", "reference": "low", "variants": ["high"], "only": ["brain"]},
    ],
    "final": {"variants": ["segpl-vi", "low"]},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with another value at a path such as `questions.0.id`; None takes it away."""
    content = copy.deepcopy(GOOD)
    *above, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    target: Any = content
    for key in above:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return content


def study(content: dict[str, Any] = GOOD) -> Study:
    return parse_study(content, "study.toml")


def test_only_what_is_asked_on_a_dataset_is_trained_there():
    assert study().labels_on("phantom") == ("supervised", "segpl", "low", "segpl-vi")
    assert study().labels_on("brain") == ("supervised", "segpl", "low", "high", "segpl-vi")


def test_setting_of_a_dataset_goes_to_methods_that_have_it_and_no_value_of_their_own():
    content = changed("datasets.brain.method", {"alpha": 0.7, "threshold": 0.2})
    phantom, brain = study(content).datasets
    special = study(content).special_on(brain)
    assert special["supervised"] == {}
    assert special["segpl"] == {"alpha": 0.7, "threshold": 0.2}
    assert special["segpl-vi"] == {"alpha": 0.7}
    assert special["low"] == {"method": "segpl", "alpha": 0.7, "threshold": 0.4}
    assert study(content).comparison_on(brain).special["low"] == special["low"]
    assert study(content).special_on(phantom)["segpl-vi"] == {}


def with_bpl(threshold: object) -> dict[str, Any]:
    """Also a variant whose `threshold` is a table, and that setting of the dataset."""
    content = changed("methods.table", {"method": "bpl", "threshold": {"family": "beta"}})
    content["questions"][0]["variants"] = ["low", "table"]
    content["datasets"]["brain"]["method"] = {"threshold": threshold}
    return content


def test_value_of_a_dataset_goes_where_a_value_is_and_a_table_where_a_table_is():
    special = study(with_bpl(0.2)).special_on(study(with_bpl(0.2)).datasets[1])
    assert special["segpl"] == {"threshold": 0.2}
    assert special["table"]["threshold"] == {"family": "beta"}
    table = with_bpl({"family": "normal", "prior_mean": 0.7})
    special = study(table).special_on(study(table).datasets[1])
    assert special["segpl"] == {}
    assert special["table"]["threshold"] == {"family": "beta", "prior_mean": 0.7}


def test_table_that_no_method_of_the_study_has_is_refused_though_one_has_a_value_of_that_name():
    with pytest.raises(UserError, match="no method of the study has the setting 'threshold'"):
        study(changed("datasets.brain.method", {"threshold": {"family": "beta"}}))


def test_sections_of_a_dataset_overrule_those_of_all():
    phantom, brain = study().datasets
    assert phantom.sections["train"] == {"steps": 7, "lr": 0.5}
    assert brain.sections["train"] == {"steps": 9, "lr": 0.5}
    assert (phantom.sections["split"], brain.sections["split"]["validation"]) == (
        {"validation": 2},
        5,
    )
    assert (phantom.path, phantom.seeds) == ("", (3, 4))
    assert (brain.path, brain.seeds) == ("Task04", (0, 1, 2))


def test_device_of_the_command_goes_to_every_training():
    settings = study().comparison_on(study().datasets[0], "cuda:1")
    assert settings.sections["train"] == {"steps": 7, "lr": 0.5, "device": "cuda:1"}
    assert "device" not in study().comparison_on(study().datasets[0]).sections["train"]


def test_one_seed_is_allowed():
    assert study(changed("datasets.phantom.seeds", [0])).datasets[0].seeds == (0,)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("title", None, "study.toml: title is missing"),
        ("titel", "x", "study.toml: no setting 'titel'. Did you mean 'title'?"),
        ("method", {"alpha": 1}, "Did you mean 'methods'?"),
        ("datasets", {}, "names no dataset"),
        ("datasets", 3, "[datasets] holds 3"),
        ("datasets.phantom", 3, "[datasets] holds 3"),
        ("datasets.phantom.seed", [1], "no setting 'seed'. Did you mean 'seeds'?"),
        ("datasets.phantom.seeds", 3, "seeds is 3, and a list of whole numbers"),
        ("datasets.phantom.seeds", [0.5], "a list of whole numbers"),
        ("datasets.phantom.seeds", [], "give one or more"),
        ("datasets.phantom.seeds", [1, 1], "each once"),
        ("datasets.phantom.seeds", [-1], "from 0 on"),
        ("datasets.phantom.phantom", "yes", "true or false is needed"),
        ("datasets.phantom.path", "x", "needs either a path, below --data, or phantom = true"),
        ("datasets.brain.path", None, "needs either a path"),
        ("datasets.brain.path", 4, "path is 4"),
        ("datasets.brain.split", {"validation": 0}, "has no validation cases"),
        ("datasets.brain.train", {"stepz": 4}, "no setting 'train.stepz'"),
        ("datasets.a b", {"phantom": True}, "a name of files has letters"),
        ("train.seed", 4, "train.seed is given by the seeds"),
        ("split.draw", 4, "split.draw is given by the seeds"),
        ("train.steps", "many", "train.steps is 'many'"),
        ("methods.low.threshold", 2, "method.threshold is 2"),
        ("methods.low.thresold", 0.2, "no setting 'method.thresold'"),
        ("methods.unused.method", "sgpl", "no method named 'sgpl'"),
        ("datasets.brain.method", {"alfa": 1}, "no method of the study has the setting 'alfa'"),
        ("datasets.brain.method", "segpl", "a table of settings is needed"),
        ("methods.low.split", {"labeled": 1}, "all methods of a study have the same cases"),
        ("methods.low.split", {"unlabeled": 1, "test": 1}, "all methods of a study have the same"),
        ("methods.low.split", 1, "all methods of a study have the same cases"),
        ("methods.low.data", {"plan": "p"}, "all methods of a study have the same cases"),
        ("methods.low.train", {"seed": 1}, "train.seed is given by the seeds"),
        ("methods.low.train", {"ratio": 0}, "train.ratio is 0"),
        ("methods.cps", {"method": "segpl"}, "'cps' is a method itself"),
        ("questions", {"id": "x"}, "below a line [[questions]]"),
        ("questions.0.id", None, "question 1: id is missing"),
        ("questions.0.id", "a/b", "a name of files has letters"),
        ("questions.0.id", "up", "two questions have the id 'up'"),
        ("questions.0.text", "", "question 'fixed': text is ''"),
        ("questions.0.reference", "segl", "question 'fixed': no method named 'segl'"),
        ("questions.0.variants", ["lwo"], "no method named 'lwo'. Did you mean 'low'?"),
        ("questions.0.variants", [], "variants is [], and a list of names"),
        ("questions.0.variants", "low", "variants is 'low', and a list of names"),
        ("questions.0.variants", ["low", "low"], "name each once"),
        ("questions.0.variants", ["segpl"], "is the reference and a variant too"),
        ("questions.0.curves", [3], "curves is [3], and a list of names"),
        ("questions.0.curve", ["kl"], "no setting 'curve'. Did you mean 'curves'?"),
        ("questions.0.measure", 3, "question 'fixed': measure is 3, and a text"),
        ("questions.0.note", ["a"], "question 'fixed': note is ['a'], and a text"),
        ("questions.0.tables", "no", "tables is 'no', and true or false is needed"),
        ("questions.0.tables", False, "tables is false and there are no curves"),
        ("questions.0.primary", 1, "primary is 1, and true or false is needed"),
        ("questions.0.only", ["brian"], "no dataset named 'brian'. Did you mean 'brain'?"),
        ("final.variants", ["segpl"], "[final] has one variant"),
        ("final.variants", ["segpl", "lo"], "[final]: no method named 'lo'"),
        ("final.variant", ["low"], "[final]: no setting 'variant'"),
    ],
)
def test_what_is_no_study_is_refused(path, value, words):
    with pytest.raises(UserError) as caught:
        study(changed(path, value))
    assert words in str(caught.value)


def question(**values: object) -> Any:
    content = copy.deepcopy(GOOD)
    content["questions"][0] |= values
    return study(content).questions[0]


def test_question_says_what_is_measured_shown_and_corrected():
    plain, given = question(), question(measure="kl", primary=True, note="See *there*.")
    assert (plain.measure, plain.has_tables, plain.is_primary, plain.note) == ("", True, False, "")
    assert (given.measure, given.is_primary, given.note) == ("kl", True, "See *there*.")
    assert not question(tables=False, curves=["kl"]).has_tables


@pytest.mark.parametrize("given", [{"measure": "kl"}, {"primary": True}])
def test_question_without_tables_measures_and_tests_nothing(given):
    with pytest.raises(UserError, match=f"{next(iter(given))} is given and tables is false"):
        question(tables=False, curves=["kl"], **given)


def test_variants_that_calibrate_have_seen_the_labels_of_validation_cases():
    content = changed("methods.warm", {"method": "bpl", "calibrate": "all"})
    content["methods"]["off"] = {"method": "bpl", "calibrate": "off"}
    content["questions"][0]["variants"] = ["low", "warm", "off"]
    content["datasets"]["brain"]["method"] = {"calibrate": "class"}
    phantom, brain = study(content).datasets
    assert study(content).fitted_on(phantom) == ("warm",)
    content["questions"][0]["variants"] = ["bpl", "off"]
    assert study(content).fitted_on(brain) == ("bpl",)
    assert study(content).fitted_on(phantom) == ()


def test_studies_of_the_benchmarks_and_of_the_guide_can_be_read():
    root = Path(__file__).parents[3]
    (example,) = re.findall(r"```toml\n(title.*?)```", (root / "docs/guide.md").read_text(), re.S)
    assert len(study(tomllib.loads(example)).questions) == 3
    studies = {
        *(root / "benchmarks").glob("*.toml"),
        *(root / "benchmarks/recipe").glob("*.toml"),
    }
    for path in studies - {root / "benchmarks/plain.toml"}:  # settings of a training
        assert read_study(path).questions


def test_study_that_asks_nothing_is_refused():
    content = {key: value for key, value in GOOD.items() if key not in ("questions", "final")}
    with pytest.raises(UserError, match="asks nothing"):
        study(content)
