"""Settings: defaults in the code, changes in a TOML file, overrides on the command line."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from segpl.data.augment import AugmentSettings
from segpl.data.layouts import accepted_layout
from segpl.data.plan import PAPER_LR, Plan
from segpl.data.split import SplitSettings
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError, count_noun, did_you_mean
from segpl.methods.base import METHODS
from segpl.methods.settings import MethodSettings
from segpl.networks.network import NetworkSettings
from segpl.records import flat_items, read_toml

DEFAULT_METHOD = "bpl-mix"
# a resumed run may change these: they do not affect the steps it has already taken
RESUMABLE = ("train.steps", "train.device", "train.track")
MOVABLE = ("data.path", "data.labels", "data.plan", "train.start")  # paths


@dataclass(frozen=True, slots=True)
class DataSettings:
    path: str = ""  # dataset folder
    layout: str = ""  # layout name; empty: detect it
    subject: str = ""  # regular expression whose group is the subject in a case name
    labels: str = ""  # folder with additional labels, named after the cases; empty: none
    plan: str = ""  # plan.json to use; empty: derive a plan from the data


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one run. Every part receives all of them and reads its own section."""

    method: str
    settings: MethodSettings
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
        return dict(flat_items(self.as_dict()))

    def as_toml(self) -> str:
        text: str = tomli_w.dumps(self.as_dict())
        return text

    def with_planned_rate(self, plan: Plan) -> Config:
        """A copy whose learning rate is explicit, even if the plan decides it."""
        return replace(self, train=replace(self.train, lr=self.learning_rate(plan)))

    def learning_rate(self, plan: Plan) -> float:
        """`train.lr` if set, otherwise the planned rate."""
        return self.train.lr or self.planned_rate(plan)

    def planned_rate(self, plan: Plan) -> float:
        """The learning rate of the plan, scaled to the network.

        A network narrower than planned gets a proportionally higher rate, up to the paper's. The
        planned rate also applies to MONAI networks, whose width is unknown.
        """
        width = self.network.width or plan.width
        return min(plan.lr * plan.width / width, max(plan.lr, PAPER_LR))


SECTIONS: dict[str, type[Any]] = {
    name: kind
    for name, kind in get_type_hints(Config).items()
    if name not in ("method", "settings")
}
FREE_TABLE = "network.options"  # its keys belong to the network, not to segpl
TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def resolve(content: Mapping[str, Any], source: str = "settings") -> Config:
    """Check `content` and fill in the defaults.

    Unknown keys and values of the wrong type raise an error that names the setting and `source`.
    """
    check_sections(content, source)
    method = dict(content.get("method", {}))
    name = parse_value(method.pop("name", DEFAULT_METHOD), str, "method.name", source)
    kind = METHODS.get(name)
    network = content.get("network", {})
    if network.get("name", "unet") == "unet":  # MONAI networks have their own arguments
        network = {**kind.network_defaults, **network}
    given = {**content, "network": network}
    sections = {
        section: parse_table(settings, given.get(section, {}), section, source)
        for section, settings in SECTIONS.items()
    }
    if kind.needs_unlabeled and sections["train"].ratio == 0:
        raise InputError(
            f"{source}: train.ratio is 0, but method '{name}' needs unlabeled crops. Set it to 1 "
            "or more, or use the method 'supervised'."
        )
    settings = parse_table(kind.Settings, method, "method", source)
    return Config(method=name, settings=settings, **sections)


def check_sections(content: Mapping[str, Any], source: str) -> None:
    known = [*SECTIONS, "method"]
    for name, section in content.items():
        if name not in known:
            raise InputError(f"{source}: no section named '{name}'. {did_you_mean(name, known)}")
        if not isinstance(section, Mapping):
            raise InputError(
                f"{source}: '{name}' is {section!r}, but it must be a section. In a file, write "
                f"[{name}] on a line of its own and its settings below it; in Python, pass a "
                "dictionary."
            )


type_hints = cache(get_type_hints)  # evaluates the source of every annotation


def parse_table(kind: Any, values: Mapping[str, Any], section: str, source: str) -> Any:
    """Parse a section, or a table inside one such as `method.threshold`, into its dataclass."""
    known = {entry.name for entry in fields(kind)}
    hints = type_hints(kind)
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            names = {*known, "name"} if section == "method" else known
            raise InputError(f"{source}: no setting '{section}.{key}'. {did_you_mean(key, names)}")
        given[key] = parse_value(value, hints[key], f"{section}.{key}", source)
    return kind(**given)


def parse_value(value: Any, expected: Any, name: str, source: str) -> Any:
    where = f"{source}: {name} is {value!r}"
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise InputError(f"{source}: {name} is too large a number.") from error
    if expected in TYPE_NAMES and type(value) is not expected:
        raise InputError(f"{where}, but it must be {TYPE_NAMES[expected]}.")
    if expected not in TYPE_NAMES and not isinstance(value, Mapping):
        raise InputError(f"{where}, but it must be a table of settings.")
    return parse_table(expected, value, name, source) if is_dataclass(expected) else value


def select_known(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings that `kind` has.

    Methods may share a setting name that is a number in one and a table in another, so the type
    must match as well.
    """
    hints = type_hints(kind)
    is_table = {entry.name: hints[entry.name] not in TYPE_NAMES for entry in fields(kind)}
    return {
        key: value
        for key, value in given.items()
        if is_table.get(key) is isinstance(value, Mapping)
    }


def read_config(path: Path) -> dict[str, Any]:
    content = read_toml(path)
    check_sections(content, str(path))
    return content


def merge_settings(
    content: Mapping[str, Any], given: Mapping[str, Any], name: str = ""
) -> dict[str, Any]:
    """Override `content` with `given`, setting by setting; free tables are replaced as a whole."""
    result = dict(content)
    for key, value in given.items():
        path = f"{name}.{key}" if name else key
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping) and path != FREE_TABLE:
            value = merge_settings(before, value, path)
        result[key] = value
    return result


def with_overrides(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply each `section.key=value` to `content`. Values are TOML or plain text."""
    result = copy.deepcopy(dict(content))
    for override in [overrides] if isinstance(overrides, str) else overrides:
        path, is_assigned, text = override.partition("=")
        keys = path.strip().split(".")
        if not is_assigned or len(keys) < 2 or not all(keys):
            raise InputError(
                f"cannot read --set {override}. Write section.key=value, such as "
                "--set method.alpha=0.1."
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            # as Python writes them
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
                f"--set {override}: {path.strip()} is a table, and other options set keys in it. "
                "Remove one of them."
            )
        target[keys[-1]] = value
    return result


def gather_settings(
    data: str | Path = "",
    *,
    method: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    yes: bool = False,
) -> dict[str, Any]:
    """Combine settings from all sources.

    `overrides` take precedence over `settings`, and these over `config`. `data` and `method` take
    precedence over all of them. With `yes`, a proposed layout of the dataset becomes a setting.
    """
    content = merge_settings(read_config(Path(config)) if config else {}, settings or {})
    content = with_overrides(content, overrides)  # a copy
    check_sections(content, "settings")
    place = content.setdefault("data", {})
    if str(data):
        place["path"] = str(data)
    for section, key in (name.split(".") for name in MOVABLE):
        if path := content.get(section, {}).get(key):
            # the run may be used from another working directory
            content[section][key] = str(Path(str(path)).expanduser().resolve())
    if yes and place.get("path") and not place.get("layout"):
        place["layout"] = accepted_layout(Path(place["path"])) or ""
    if method:
        content.setdefault("method", {})["name"] = method
    return content


@contextmanager
def claim_folder(
    folder: RunFolder,
    content: Mapping[str, Any],
    *,
    resume: bool,
    source: str | Path | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[Config]:
    """Lock `folder` and yield the config to train with, new or resumed. `on_wait`: see `locked`."""
    if on_wait is None or not folder.lock.exists():  # another process may still be preparing it
        is_resuming(folder, resume)
    with folder.locked(on_wait):
        # check again: another process may have started a run before the lock was taken
        if is_resuming(folder, resume):
            config = resumed_config(folder, content)
        else:
            config = resolve(content, str(source) if source else "settings")
        if not config.data.path:
            missing = f"{folder.path} contains no run to resume, and " if resume else ""
            raise InputError(
                f"{missing}no dataset given. Name its folder, or set data.path in the config."
            )
        yield config


def is_resuming(folder: RunFolder, resume: bool) -> bool:
    """Whether to resume the run in `folder`. Raises if the folder contains anything else."""
    if resume and folder.config.exists():
        return True
    folder.require_unused()
    return False


def resumed_config(folder: RunFolder, content: Mapping[str, Any]) -> Config:
    """The saved config of a run with the settings of `content` that a resumed run may change."""
    saved = read_config(folder.config)
    known = resolve(saved, str(folder.config))
    name = content.get("method", {}).get("name", known.method)
    if name != known.method:
        raise InputError(
            f"{folder.path} was trained with method '{known.method}', not '{name}'. Choose another "
            "--out for another method."
        )
    wanted = resolve(merge_settings(saved, content))
    if changed := changed_settings(folder, wanted, ignore=RESUMABLE):
        raise InputError(
            f"{folder.path} was trained with other settings: {', '.join(changed)}. A resumed run "
            "keeps its settings. Omit these, or choose another --out."
        )
    if folder.last.exists() and (taken := read_checkpoint(folder.last).step) > wanted.train.steps:
        raise InputError(
            f"{folder.path} has already been trained for {count_noun(taken, 'step')}, more than "
            f"the {wanted.train.steps} requested. Increase --steps, or choose another --out."
        )
    return wanted


def changed_settings(folder: RunFolder, wanted: Config, *, ignore: Collection[str]) -> list[str]:
    """Settings in which `wanted` differs from the saved config, except those in `ignore`.

    A saved config always states its learning rate, so `wanted` is completed from a plan first.
    """
    # runs of one comparison share a plan; their own copy only replaces it when it is gone
    for place in (Path(wanted.data.plan), folder.plan):
        if place.is_file():
            wanted = wanted.with_planned_rate(Plan.read(place))
            break
    saved = resolve(read_config(folder.config), str(folder.config))
    moved = [name for name in MOVABLE if is_moved(name, saved, wanted, folder)]
    changes = setting_changes(saved, wanted)
    return [f"{name} ({changes[name]})" for name in changes if name not in (*ignore, *moved)]


def is_moved(name: str, saved: Config, wanted: Config, folder: RunFolder) -> bool:
    """Whether a file or folder of a run has a new path: a plan of equal content, or a lost one."""
    before, after = (Path(config.leaves()[name]) for config in (saved, wanted))
    if name == "data.plan" and after.is_file() and folder.plan.is_file():
        plan, own = Plan.read(after), Plan.read(folder.plan)
        return own == (replace(plan, batch=own.batch) if wanted.train.batch else plan)
    return not before.exists()


def setting_changes(saved: Config, given: Config) -> dict[str, str]:
    """Both values, as `old -> new`, of the settings that differ."""
    before, after = saved.leaves(), given.leaves()
    return {
        name: f"{before.get(name)!r} -> {after.get(name)!r}"
        for name in before | after
        if before.get(name) != after.get(name)
    }
