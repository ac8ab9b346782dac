from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tiny import plain_crops

from segpl.data.augment import AugmentSettings
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError, MissingFileError, UnknownNameError
from segpl.methods.base import METHODS
from segpl.methods.segpl import SegPL
from segpl.networks.network import NetworkSettings
from segpl.settings import (
    DEFAULT_METHOD,
    changed_settings,
    gather_settings,
    read_config,
    resolve,
    setting_changes,
    with_overrides,
)


class TestResolve:
    def test_empty_config_has_all_defaults(self):
        config = resolve({})
        assert config.method == DEFAULT_METHOD == "bpl-mix"
        assert config.augment == AugmentSettings()
        assert config.train == TrainSettings()
        assert config.network == NetworkSettings()

    def test_plain_benchmark_settings_turn_augmentation_off(self):
        path = Path(__file__).parents[2] / "benchmarks" / "plain.toml"
        assert resolve(read_config(path)).augment == plain_crops()

    def test_given_value_replaces_only_its_default(self):
        config = resolve({"train": {"steps": 7}, "method": {"name": "segpl", "alpha": 0.77}})
        assert config.train == TrainSettings(steps=7)
        assert config.settings == SegPL.Settings(alpha=0.77)

    def test_only_the_method_that_needs_it_changes_the_network(self):
        found = {name: resolve({"method": {"name": name}}).network for name in METHODS.names}
        assert found.pop("ua-mt") == NetworkSettings(dropout=0.5)
        assert set(map(repr, found.values())) == {repr(NetworkSettings())}

    @pytest.mark.parametrize("network", [{"dropout": 0.0}, {"name": "SegResNet"}])
    def test_given_network_replaces_that_of_the_method(self, network):
        found = resolve({"method": {"name": "ua-mt"}, "network": network}).network
        assert found == NetworkSettings(**network)

    @pytest.mark.parametrize(
        ("section", "key", "value", "words"),
        [
            ("train", "steps", 1.5, "train.steps is 1.5, but it must be a whole number"),
            ("train", "steps", True, "train.steps is True, but it must be a whole number"),
            ("train", "steps", "ten", "train.steps is 'ten', but it must be a whole number"),
            ("train", "steps", None, "train.steps is None, but it must be a whole number"),
            ("train", "lr", "fast", "train.lr is 'fast', but it must be a number"),
            ("train", "lr", False, "train.lr is False, but it must be a number"),
            ("data", "path", 3, "data.path is 3, but it must be text"),
            ("method", "name", 3, "method.name is 3, but it must be text"),
            ("method", "alpha", [1], r"method.alpha is \[1\], but it must be a number"),
            ("network", "options", 3, "network.options is 3, but it must be a table of settings"),
        ],
    )
    def test_value_of_the_wrong_type_is_rejected_by_name(self, section, key, value, words):
        with pytest.raises(InputError, match=words):
            resolve({section: {key: value}})

    def test_unknown_section_suggests_the_nearest_one(self):
        with pytest.raises(InputError, match=r"no section named 'trian'. Did you mean 'train'"):
            resolve({"trian": {}})

    def test_unknown_key_suggests_the_nearest_one(self):
        with pytest.raises(InputError, match=r"no setting 'train.stesp'. Did you mean 'steps'"):
            resolve({"train": {"stesp": 3}})

    def test_unknown_method_setting_lists_the_settings_of_that_method(self):
        with pytest.raises(InputError, match=r"no setting 'method.prior_mean'.*Known: loss, name"):
            resolve({"method": {"name": "supervised", "prior_mean": 0.5}})

    def test_unknown_method_suggests_the_nearest_one(self):
        with pytest.raises(UnknownNameError, match=r"no method named 'segpl-v'. Did you mean"):
            resolve({"method": {"name": "segpl-v"}})

    def test_value_in_place_of_a_section_is_rejected(self):
        with pytest.raises(InputError, match="'method' is 'segpl', but it must be a section"):
            resolve({"method": "segpl"})
        for section in ("data", "train", "method"):
            with pytest.raises(InputError, match=f"'{section}' is 5, but it must be a section"):
                gather_settings("folder", method="segpl", settings={section: 5})

    @pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
    def test_learning_rate_must_be_finite_and_not_negative(self, value):
        with pytest.raises(InputError, match=r"train.lr is .*: it must be 0 or more, and finite"):
            resolve({"train": {"lr": value}})

    @pytest.mark.parametrize("seed", [-1, 2**32])
    def test_seed_must_fit_every_generator(self, seed):
        with pytest.raises(InputError, match=r"train.seed is .*: it must be from 0 to"):
            resolve({"train": {"seed": seed}})

    @pytest.mark.parametrize("method", METHODS.names)
    def test_config_survives_a_round_trip_through_toml(self, method):
        content = {"method": {"name": method}, "network": {"options": {"features": [4, 8]}}}
        config = resolve(content)
        assert resolve(tomllib.loads(config.as_toml())) == config


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("train.steps=5", 5),
            ("train.steps=5.5", 5.5),
            ("train.steps = 1e-3", 1e-3),
            ("train.steps=true", True),
            ("train.steps=True", True),  # as Python writes it
            ("train.steps=False", False),
            ("train.steps=[1, 2]", [1, 2]),
            ("train.steps='5'", "5"),
            ("train.steps=plain text", "plain text"),
            ("train.steps=a=b", "a=b"),
            ("train.steps=/some/path", "/some/path"),
            ("train.steps=", ""),
        ],
    )
    def test_value_is_parsed_as_toml_or_else_text(self, text, value):
        assert with_overrides({}, [text]) == {"train": {"steps": value}}
        assert with_overrides({}, text) == {"train": {"steps": value}}, "one string"

    def test_options_of_a_network_are_leaves(self):
        options = {"features": 2, "norm": "batch"}
        config = resolve({"network": {"name": "BasicUNet", "options": options}})
        assert {f"network.options.{key}": value for key, value in options.items()}.items() <= (
            config.leaves().items()
        )

    def test_last_override_wins(self):
        content = {"train": {"steps": 1, "lr": 2.0}}
        result = with_overrides(content, ["train.steps=5", "train.steps=6"])
        assert result == {"train": {"steps": 6, "lr": 2.0}}

    def test_overrides_do_not_modify_their_input(self):
        content = {"network": {"options": {"features": 1}}}
        with_overrides(content, ["network.options.features=2", "train.lr=1"])
        assert content == {"network": {"options": {"features": 1}}}

    @pytest.mark.parametrize("text", ["train.steps", "steps=5", "=5", ".steps=5", "train.=5", ""])
    def test_malformed_override_is_rejected(self, text):
        with pytest.raises(InputError, match=r"cannot read .*Write section.key=value"):
            with_overrides({}, [text])

    def test_key_below_a_value_is_rejected(self):
        with pytest.raises(InputError, match="'steps' is a value, not a section"):
            with_overrides({"train": {"steps": 5}}, ["train.steps.more=5"])


class TestSettingChanges:
    def test_change_shows_both_values(self):
        saved = resolve({"train": {"lr": 0.25}, "method": {"alpha": 0.125}})
        given = resolve({"train": {"lr": 0.5}, "method": {"alpha": 0.75}, "data": {"path": "x"}})
        assert setting_changes(saved, given) == {
            "train.lr": "0.25 -> 0.5",
            "method.alpha": "0.125 -> 0.75",
            "data.path": "'' -> 'x'",
        }

    def test_settings_of_another_method_count_as_changes(self):
        saved = resolve({"method": {"name": "segpl", "alpha": 0.125}})
        found = setting_changes(saved, resolve({"method": {"name": "supervised"}}))
        assert found["method.name"] == "'segpl' -> 'supervised'"
        assert found["method.alpha"] == "0.125 -> None"


class TestReadConfig:
    def test_missing_file_is_named(self, tmp_path):
        with pytest.raises(MissingFileError, match=r"nothere.toml does not exist"):
            read_config(tmp_path / "nothere.toml")

    @pytest.mark.parametrize("content", [b"a: 1\n", b"\xff\xfe"])
    def test_invalid_toml_names_the_file(self, tmp_path, content):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(InputError, match=r"a.toml is not valid TOML"):
            read_config(tmp_path / "a.toml")

    def test_unknown_section_names_the_file(self, tmp_path):
        (tmp_path / "a.toml").write_text("[trian]")
        with pytest.raises(InputError, match=r"a\.toml: no section named 'trian'"):
            read_config(tmp_path / "a.toml")


def test_value_cannot_replace_a_table():
    given = ["method.threshold.e_step=exact", "method.threshold=0.4"]
    with pytest.raises(InputError, match=r"method\.threshold is a table, and other options"):
        with_overrides({}, given)


def test_a_moved_dataset_is_no_change_but_another_dataset_is(tmp_path):
    """A dataset that has left its place was moved."""
    folder, old, new = RunFolder(tmp_path), tmp_path / "old", tmp_path / "new"
    folder.config.write_text(resolve({"data": {"path": str(old)}}).as_toml())
    wanted = resolve({"data": {"path": str(new)}})
    for place in (old, new):
        place.mkdir()
    assert changed_settings(folder, wanted, ignore=("train.lr",)) == [
        f"data.path ({str(old)!r} -> {str(new)!r})"
    ]
    old.rmdir()
    assert changed_settings(folder, wanted, ignore=("train.lr",)) == []
