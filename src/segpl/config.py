"""Settings: defaults in the code, differences in a TOML file, the last word on the command line."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from segpl.data.augment import AugmentSettings
from segpl.data.split import SplitSettings
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError, MissingFileError, did_you_mean
from segpl.methods.base import METHODS
from segpl.networks.network import NetworkSettings

DEFAULT_METHOD = "bpl-mix"


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

    def leaves(self) -> dict[str, Any]:
        """Every setting by its full name, such as `train.lr` or `method.threshold.family`."""
        sections = [pair for name in SECTIONS for pair in leaves_of(getattr(self, name), name)]
        return dict([*sections, ("method.name", self.method), *leaves_of(self.settings, "method")])

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
FREE = "network.options"  # a table whose keys are not ours
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def leaves_of(settings: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for entry in fields(settings):
        name, value = f"{prefix}.{entry.name}", getattr(settings, entry.name)
        if is_dataclass(value):
            yield from leaves_of(value, name)
        else:
            yield name, value


def resolve(content: Mapping[str, Any], source: str = "the settings") -> Config:
    """Settings for every key of `content`, defaults for the rest.

    An unknown key or a value of another type is refused by name.
    """
    check_sections(content, source)
    method = dict(content.get("method", {}))
    name = fitted(method.pop("name", DEFAULT_METHOD), str, "method.name", source)
    kind: Any = METHODS.get(name)
    sections = {
        section: fill(settings, content.get(section, {}), section, source)
        for section, settings in SECTIONS.items()
    }
    if kind.needs_unlabeled and sections["train"].ratio == 0:
        raise InputError(
            f"{source}: train.ratio is 0, and method '{name}' needs unlabeled crops. Use 1 or "
            "more, or the method 'supervised'."
        )
    return Config(method=name, settings=fill(kind.Settings, method, "method", source), **sections)


def check_sections(content: Mapping[str, Any], source: str) -> None:
    known = [*SECTIONS, "method"]
    for name, section in content.items():
        if name not in known:
            raise InputError(f"{source}: no section named '{name}'. {did_you_mean(name, known)}")
        if not isinstance(section, Mapping):
            raise InputError(
                f"{source}: '{name}' is {section!r}, and a section is needed. Write [{name}] on a "
                "line of its own and its settings below."
            )


def fill(kind: Any, values: Mapping[str, Any], section: str, source: str) -> Any:
    """The settings of a section, or of a table inside of one such as `method.threshold`."""
    known = {entry.name for entry in fields(kind)}
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            names = {*known, "name"} if section == "method" else known
            raise InputError(f"{source}: no setting '{section}.{key}'. {did_you_mean(key, names)}")
        given[key] = fitted(value, hints[key], f"{section}.{key}", source)
    return kind(**given)


def fitted(value: Any, wanted: Any, name: str, source: str) -> Any:
    where = f"{source}: {name} is {value!r}"
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted in WORDS and type(value) is not wanted:
        raise InputError(f"{where}: {WORDS[wanted]} is needed.")
    if wanted not in WORDS and not isinstance(value, Mapping):
        raise InputError(f"{where}: a table of settings is needed.")
    return fill(wanted, value, name, source) if is_dataclass(wanted) else value


def fitting(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given settings that `kind` has: a table where it has one, a value where a value.

    Settings of several methods may share a name, and be a number of one and a table of another.
    """
    hints = get_type_hints(kind)
    is_table = {entry.name: hints[entry.name] not in WORDS for entry in fields(kind)}
    return {
        key: value
        for key, value in given.items()
        if is_table.get(key) is isinstance(value, Mapping)
    }


def read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingFileError(f"config {path} does not exist.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config {path} is not valid TOML: {error}.") from error
    check_sections(content, str(path))
    return content


def merged(content: Mapping[str, Any], given: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """`content` overruled by `given`, setting by setting; a table of free options as a whole."""
    result = dict(content)
    for key, value in given.items():
        path = f"{name}.{key}" if name else key
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping) and path != FREE:
            value = merged(before, value, path)
        result[key] = value
    return result


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
            # as `segpl list settings` prints them
            value = {"True": True, "False": False}.get(text.strip(), text.strip())
        target = result
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise InputError(
                    f"--set {override}: '{key}' is a value, not a section. Write section.key=value."
                )
        before = target.get(keys[-1])
        if isinstance(before, dict) and not isinstance(value, dict):
            raise InputError(
                f"--set {override}: {path.strip()} is a table that other settings have filled in. "
                "Leave one of them out."
            )
        target[keys[-1]] = value
    return result


def given_content(
    data: str | Path = "",
    *,
    method: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> dict[str, Any]:
    """Sections of settings from all places where they can be given, the later ones stronger."""
    content = merged(read_config(Path(config)) if config else {}, settings or {})
    content = with_overrides(content, overrides)
    place = {**content.get("data", {})} | ({"path": str(data)} if str(data) else {})
    for key in ("path", "plan"):
        if place.get(key):
            # a run is used from other folders than the one it was started in
            place[key] = str(Path(str(place[key])).expanduser().resolve())
    content["data"] = place
    if method:
        content["method"] = {**content.get("method", {}), "name": method}
    return content


def differences(saved: Config, given: Config) -> list[str]:
    """Settings that differ, as `section.key (old -> new)`."""
    before, after = saved.leaves(), given.leaves()
    return [
        f"{name} ({before.get(name)!r} -> {after.get(name)!r})"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
