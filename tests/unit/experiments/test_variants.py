from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from segpl.experiments.variants import with_special

from segpl.data.plan import Plan
from segpl.errors import UserError
from segpl.experiments.compare import CompareSettings, compare_settings, read_compare_config
from segpl.methods.base import METHODS
from segpl.methods.supervised import Supervised
from segpl.settings import resolve

LOWER = {"method": "segpl", "threshold": 0.4}


@dataclass(frozen=True, slots=True)
class Threshold:
    family: str = "normal"


class Nested(Supervised):
    name: ClassVar[str] = "nested"

    @dataclass(frozen=True, slots=True)
    class Settings:
        loss: str = "dice"
        threshold: Threshold = field(default_factory=Threshold)


def test_a_variant_has_the_method_it_names_and_settings_of_its_own():
    config = resolve(with_special({"train": {"steps": 7}}, "lower", LOWER))
    assert (config.method, config.settings.threshold, config.train.steps) == ("segpl", 0.4, 7)


def test_a_method_without_the_key_is_the_method_of_that_name():
    assert with_special({}, "segpl", {"alpha": 1}) == {"method": {"name": "segpl", "alpha": 1}}


def test_sections_of_a_variant_go_to_the_sections():
    shared = {"network": {"width": 4, "dropout": 0.1}}
    content = with_special(shared, "wet", {"method": "segpl", "network": {"dropout": 0.5}})
    assert content["network"] == {"width": 4, "dropout": 0.5}
    assert shared["network"]["dropout"] == 0.1


def test_nested_settings_of_a_variant_stay_with_its_method(monkeypatch):
    monkeypatch.setitem(METHODS.classes, "nested", Nested)
    content = {"methods": {"nested-beta": {"method": "nested", "threshold": {"family": "beta"}}}}
    settings = compare_settings(content, ["nested-beta"], [0])
    resolved = resolve(with_special({}, "nested-beta", settings.special["nested-beta"]))
    assert resolved.settings.threshold.family == "beta"


def test_labels_can_be_chosen_and_are_there_where_nothing_is_chosen():
    chosen = CompareSettings(("lower",), special={"lower": LOWER})
    assert chosen.names == ("supervised", "lower")
    assert set(CompareSettings(special={"lower": LOWER}).names) == {*METHODS.names, "lower"}


@pytest.mark.parametrize(
    ("label", "values", "words"),
    [
        ("cps", LOWER, "names the method 'segpl', and 'cps' is a method itself"),
        ("a/b", LOWER, "a label has letters, digits, - and _"),
        ("-a", LOWER, "a label has letters, digits, - and _"),
        ("lower", {"method": "sgpl"}, "no method named 'sgpl'. Did you mean 'segpl'"),
        ("lower", {"method": 3}, "method is 3, and the name of a method is needed"),
        ("lower", {"method": "segpl", "threshhold": 0.4}, "no setting 'method.threshhold'"),
        ("lower", {"method": "segpl", "name": "x"}, "has a name already"),
        ("lower", {"threshold": 0.4}, "no method named 'lower'"),
    ],
)
def test_what_is_no_variant_is_refused(label, values, words):
    with pytest.raises(UserError) as caught:
        CompareSettings(("segpl",), special={label: values})
    assert words in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest_label():
    with pytest.raises(UserError, match="Did you mean 'lower'"):
        CompareSettings(("lowr",), special={"lower": LOWER})


ROOT = Path(__file__).parents[3]
COMPARISONS = sorted(
    path
    for name in ("comparison", "table")
    for path in (ROOT / "benchmarks" / name).rglob("*.toml")
)


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_comparisons_of_the_benchmarks_fit_their_methods(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings = compare_settings(read_compare_config(path), None, None)
    for name in settings.names:
        config = resolve(with_special(settings.sections, name, settings.special.get(name, {})))
        assert not config.data.plan or Plan.read(Path(config.data.plan)).patch
