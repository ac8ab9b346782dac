"""Settings: defaults in the code, differences in a TOML file, the last word on the command line."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from segpl.data.augment import AugmentSettings
from segpl.data.split import SplitSettings
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError, MissingFileError, nearest
from segpl.methods.base import METHODS
from segpl.networks.network import NetworkSettings

DEFAULT_METHOD = "segpl-vi"


@dataclass(frozen=True, slots=True)
class DataSettings:
    path: str = ""  # folder of the dataset
    layout: str = ""  # name of a layout; empty: found
    subject: str = ""  # regular expression whose group is the subject in a case's name
    plan: str = ""  # a plan.json to use; empty: derived from the data


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides a training."""

    method: str
    settings: Any  # the Settings of that method
    data: DataSettings = field(default_factory=DataSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        sections = {name: asdict(getattr(self, name)) for name in SECTIONS}
        return {**sections, "method": {"name": self.method, **asdict(self.settings)}}

    def as_toml(self) -> str:
        text: str = tomli_w.dumps(self.as_dict())
        return text


SECTIONS: dict[str, type[Any]] = {
    "data": DataSettings,
    "split": SplitSettings,
    "train": TrainSettings,
    "network": NetworkSettings,
    "augment": AugmentSettings,
}
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def resolve(content: Mapping[str, Any], source: str = "the settings") -> Config:
    """Settings for every key of `content`, defaults for the rest.

    An unknown key or a value of another type is refused by name.
    """
    check_sections(content, source)
    method = dict(content.get("method", {}))
    name = fitted(method.pop("name", DEFAULT_METHOD), str, f"{source}: method.name")
    kind: Any = METHODS.get(name)
    sections = {
        section: fill(settings, content.get(section, {}), section, source)
        for section, settings in SECTIONS.items()
    }
    if kind.needs_unlabeled and sections["train"].ratio == 0:
        raise InputError(
            f"{source}: train.ratio is 0, and method '{name}' needs unlabelled crops. Use 1 or "
            "more, or the method 'supervised'."
        )
    return Config(method=name, settings=fill(kind.Settings, method, "method", source), **sections)


def check_sections(content: Mapping[str, Any], source: str) -> None:
    known = [*SECTIONS, "method"]
    for name, section in content.items():
        if name not in known:
            raise InputError(f"{source}: no section named '{name}'. {nearest(name, known)}")
        if not isinstance(section, Mapping):
            raise InputError(
                f"{source}: '{name}' is {section!r}, and a section is needed. Write [{name}] on a "
                "line of its own and its settings below."
            )


def fill(kind: type[Any], values: Mapping[str, Any], section: str, source: str) -> Any:
    known = {entry.name for entry in fields(kind)}
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            names = {*known, "name"} if section == "method" else known
            raise InputError(f"{source}: no setting '{section}.{key}'. {nearest(key, names)}")
        given[key] = fitted(value, hints[key], f"{source}: {section}.{key}")
    return kind(**given)


def fitted(value: Any, wanted: Any, where: str) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted in WORDS and type(value) is not wanted:
        raise InputError(f"{where} is {value!r}: {WORDS[wanted]} is needed.")
    if wanted not in WORDS and not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}: a table of settings is needed.")
    return value


def read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingFileError(f"config {path} does not exist.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config {path} is not valid TOML: {error}.") from error
    check_sections(content, str(path))
    return content


def with_overrides(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`content` with each `section.key=value` put in; the value is TOML, or plain text."""
    result = copy.deepcopy(dict(content))
    for override in overrides:
        path, is_assigned, text = override.partition("=")
        keys = path.strip().split(".")
        if not is_assigned or len(keys) < 2 or not all(keys):
            raise InputError(
                f"--set {override} cannot be read. Write section.key=value, such as "
                "--set method.alpha=0.1."
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        target = result
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise InputError(
                    f"--set {override}: '{key}' is a value, not a section. Write section.key=value."
                )
        target[keys[-1]] = value
    return result


def differences(saved: Config, given: Config) -> list[str]:
    """Settings that differ, as `section.key (old -> new)`."""
    before, after = saved.as_dict(), given.as_dict()
    return [
        f"{section}.{key} ({before[section].get(key)!r} -> {after[section].get(key)!r})"
        for section in before
        for key in {**before[section], **after[section]}
        if before[section].get(key) != after[section].get(key)
    ]
