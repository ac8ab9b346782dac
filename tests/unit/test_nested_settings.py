"""A setting that is itself a table, such as `method.threshold`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from segpl.cli.list import lines_of
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.methods.base import METHODS
from segpl.methods.supervised import Supervised
from segpl.settings import (
    merge_settings,
    resolve,
    resumed_config,
    select_known,
    setting_changes,
    with_overrides,
)


@dataclass(frozen=True, slots=True)
class Grid:
    points: int = 100


@dataclass(frozen=True, slots=True)
class Threshold:
    family: str = "normal"
    mean: float = 0.5
    grid: Grid = field(default_factory=Grid)


class Nested(Supervised):
    name: ClassVar[str] = "nested"

    @dataclass(frozen=True, slots=True)
    class Settings:
        loss: str = "dice"
        threshold: Threshold = field(default_factory=Threshold)


@pytest.fixture(autouse=True)
def nested(monkeypatch) -> None:
    monkeypatch.setitem(METHODS.classes, "nested", Nested)


def config(**threshold: object):
    return resolve({"method": {"name": "nested", "threshold": threshold}})


def test_select_known_drops_unknown_settings_and_other_kinds():
    given = {"loss": "x", "threshold": {"mean": 0.1}, "alpha": 1.0}
    assert select_known(Nested.Settings, given) == {"loss": "x", "threshold": {"mean": 0.1}}
    assert select_known(Nested.Settings, {"loss": {"mean": 0.1}, "threshold": 0.4}) == {}


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        ({"famly": "beta"}, r"no setting 'method.threshold.famly'. Did you mean 'family'"),
        ({"name": "beta"}, r"no setting 'method.threshold.name'.*Known: family, grid, mean"),
        ({"grid": {"point": 7}}, r"no setting 'method.threshold.grid.point'. Did you mean 'poi"),
        ({"mean": "high"}, r"mine.toml: method.threshold.mean is 'high', but it must be a number"),
        (
            {"grid": {"points": 1.5}},
            r"method.threshold.grid.points is 1.5, but it must be a whole number",
        ),
        (0.5, r"mine.toml: method.threshold is 0.5, but it must be a table of settings"),
    ],
)
def test_error_gives_the_full_name_of_a_nested_setting(threshold, words):
    with pytest.raises(InputError, match=words):
        resolve({"method": {"name": "nested", "threshold": threshold}}, "mine.toml")


def test_changes_name_only_the_nested_setting():
    found = setting_changes(config(), config(family="beta", grid={"points": 7}))
    assert found == {
        "method.threshold.family": "'normal' -> 'beta'",
        "method.threshold.grid.points": "100 -> 7",
    }


def test_list_has_one_line_per_nested_setting():
    lines = lines_of("settings", "nested")
    assert lines[-5:] == [
        "method.name = 'nested'",
        "method.loss = 'dice'",
        "method.threshold.family = 'normal'",
        "method.threshold.mean = 0.5",
        "method.threshold.grid.points = 100",
    ]
    assert "network.options = {}" in lines


def test_listed_settings_are_toml():
    listed = tomllib.loads("\n".join(lines_of("settings", None)))
    assert resolve(listed) == resolve({"method": {"name": listed["method"]["name"]}})
    assert listed["network"]["residual"] is True


def test_merge_overrides_nested_settings_one_by_one():
    below = {"method": {"name": "nested", "threshold": {"family": "beta", "mean": 0.25}}}
    above = {"method": {"threshold": {"mean": 0.75}}, "train": {"steps": 5}}
    assert merge_settings(below, above) == {
        "method": {"name": "nested", "threshold": {"family": "beta", "mean": 0.75}},
        "train": {"steps": 5},
    }
    assert below["method"]["threshold"]["mean"] == 0.25


def test_merge_replaces_network_options_as_a_whole():
    """Another network has other options."""
    below = {"network": {"name": "BasicUNet", "options": {"features": [4] * 6}}}
    above = {"network": {"name": "SegResNet", "options": {"init_filters": 8}}}
    assert merge_settings(below, above) == above


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path)
    run.config.write_text(config(family="beta", mean=0.25).as_toml())
    return run


def test_resumed_run_rejects_another_nested_setting_by_its_name(folder):
    with pytest.raises(InputError, match=r"other settings: method.threshold.mean \(0.25 -> 0.5\)"):
        resumed_config(folder, {"method": {"threshold": {"mean": 0.5}}})


def test_set_reaches_a_nested_setting():
    content = with_overrides(
        {"method": {"name": "nested", "threshold": {"mean": 0.25}}},
        ["method.threshold.family=beta", "method.threshold.grid.points=7"],
    )
    assert resolve(content).settings.threshold == Threshold("beta", 0.25, Grid(7))


def test_toml_table_reaches_a_nested_setting():
    text = '[method]\nname = "nested"\n[method.threshold]\nfamily = "beta"\nmean = 1\n'
    threshold = resolve(tomllib.loads(text)).settings.threshold
    assert threshold == Threshold("beta", 1.0)
    assert isinstance(threshold.mean, float)


def test_resumed_run_keeps_its_nested_settings(folder):
    for content in ({}, {"method": {"threshold": {"family": "beta"}}}):
        resumed = resumed_config(folder, {**content, "train": {"steps": 9}})
        assert resumed.settings.threshold == Threshold("beta", 0.25)
