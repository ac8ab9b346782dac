"""An experiment: training runs (datasets x methods x seeds) and questions about them.

docs/how-to/compare.md describes the TOML file. Without [[questions]], every method is compared with
supervised training on the test cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import msgspec

from segpl.errors import InputError, did_you_mean
from segpl.experiments.axes import parse_axes
from segpl.methods.base import METHODS
from segpl.networks.build import check_network
from segpl.report.collection import BASELINE
from segpl.report.sections.questions import Question
from segpl.settings import SECTIONS, check_sections, merge_settings, resolve, select_known

Entry = TypeVar("Entry")
# `segpl paper` reads the table of that name
KEYS = ("title", "axes", "datasets", "methods", "questions", "paper")
# labels and dataset names become folder names, which have at most 255 characters
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{,199}")
# determined by the seeds and path of a dataset, so that runs of a seed share cases and weights
DRAWN = (("train", "seed"), ("split", "draw"), ("data", "path"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentDataset:
    name: str = ""  # empty for the only dataset of a comparison without a file
    path: str = ""  # below --data
    phantom: bool = False  # generated lung vessels, different ones for every seed
    seeds: tuple[int, ...] = (0, 1, 2)
    method: dict[str, Any] = field(default_factory=dict)  # for every method that has the setting
    sections: dict[str, Any] = field(default_factory=dict)  # settings of every run

    def __post_init__(self) -> None:
        if self.phantom == bool(self.path):
            raise InputError("give either a path, below --data, or phantom = true")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise InputError(
                f"seeds is {list(self.seeds)}: give one or more different numbers, 0 or more"
            )


@dataclass(frozen=True, slots=True)
class Experiment:
    title: str
    datasets: tuple[ExperimentDataset, ...]
    variants: Mapping[str, Mapping[str, Any]]  # [methods.*]: settings of a method or a variant
    questions: tuple[Question, ...]

    def questions_on(self, dataset: ExperimentDataset) -> list[Question]:
        return [one for one in self.questions if not one.only or dataset.name in one.only]

    def require_datasets(self, names: Sequence[str]) -> None:
        known = [dataset.name for dataset in self.datasets]
        if names and known == [""]:
            raise InputError("--only needs a TOML file with several datasets. Remove --only.")
        reject_unknown(names, known, "--only: no dataset named")

    def labels_on(self, dataset: ExperimentDataset) -> list[str]:
        """The methods and variants to train on a dataset."""
        asked = [label for question in self.questions_on(dataset) for label in question.labels]
        return list(dict.fromkeys(asked))

    def settings(
        self, dataset: ExperimentDataset, label: str, shared: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """All settings of one run; `shared` replaces the dataset's sections."""
        own = self.given_by(dataset, label)
        for name in (self.method_of(label), label):  # a variant starts from the table of its method
            own = merge_settings(own, self.variants.get(name, {}))
        content = dict(dataset.sections if shared is None else shared)
        method: dict[str, Any] = {"name": own.pop("method", label)}
        for key, value in own.items():
            if key in SECTIONS and isinstance(value, Mapping):
                content[key] = {**content.get(key, {}), **value}
            else:
                method[key] = value
        return {**content, "method": method}

    def given_by(self, dataset: ExperimentDataset, label: str) -> dict[str, Any]:
        """Those settings of `[datasets.NAME.method]` that the method of a label has."""
        return select_known(METHODS.get(self.method_of(label)).Settings, dataset.method)

    def method_of(self, label: str) -> str:
        return str(self.variants.get(label, {}).get("method", label))


def known_labels(variants: Mapping[str, Any]) -> list[str]:
    """All methods, then the variants."""
    return [*METHODS.names, *(label for label in variants if label not in METHODS.classes)]


def make_experiment(
    content: Mapping[str, Any],
    source: str,
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Experiment:
    """Decode and check the tables of a TOML file; `source` names it in messages.

    `methods` are compared with supervised training, if there are no [[questions]]. `seeds` replace
    those of every dataset. `overrides`, sections and `methods`, take precedence over all others.
    """
    given = dict(overrides or {})
    reject_unknown(content, (*KEYS, *SECTIONS), f"{source}: no setting")
    reject_unknown(given, ("methods", *SECTIONS), "--set: no setting")
    variants = merge_settings(
        _tables(content, "methods", source), _tables(given, "methods", "--set")
    )
    shared = {name: content[name] for name in SECTIONS if name in content}
    last = {name: given[name] for name in SECTIONS if name in given}
    check_sections(shared, source)
    check_sections(last, "--set")
    axes = parse_axes(content.get("axes", {}), source)
    reject_unknown(axes.methods, known_labels(variants), f"{axes.where}: no method named")
    variants, chosen = axes.variants(variants)
    datasets = [
        decode_dataset(name, table, shared, last, f"{source}: [datasets.{name}]")
        for name, table in axes.datasets(_tables(content, "datasets", source)).items()
    ]
    if not datasets:
        raise InputError(f"{source} has no dataset. Add [datasets.NAME] with a path.")
    if seeds:
        try:
            datasets = [replace(dataset, seeds=tuple(seeds)) for dataset in datasets]
        except InputError as error:
            raise InputError(f"--seeds: {error}.") from error
    asked = content.get("questions", [])
    if methods and (asked or chosen):
        own = "[[questions]]" if asked else "[axes] for methods"
        raise InputError(f"--methods: {source} has its own {own}. Edit these instead.")
    if asked and chosen:
        raise InputError(
            f"{axes.where}: methods and their settings cannot be axes together with [[questions]]. "
            "Define variants as [methods.NAME] and use them in the questions."
        )
    reject_unknown(methods, known_labels(variants), "--methods: no method named")
    if not isinstance(asked, list):
        raise InputError(f"{source}: write each question below a line [[questions]].")
    questions = [
        decode(Question, table, f"{source}: question {n}") for n, table in enumerate(asked, 1)
    ]
    questions = [
        # each dataset of the file may have become several
        replace(one, only=tuple(name for each in one.only for name in axes.datasets({each: {}})))
        for one in questions
    ]
    where = f"{axes.where}: method" if chosen else "--methods"
    experiment = Experiment(
        str(content.get("title", "")),
        tuple(datasets),
        variants,
        tuple(questions) or (against_baseline(methods or chosen, variants, where),),
    )
    check_experiment(experiment, source)
    return experiment


def against_baseline(methods: Sequence[str], variants: Mapping[str, Any], where: str) -> Question:
    """Every method compared with supervised training; all methods and variants by default."""
    chosen = [name for name in dict.fromkeys(methods or known_labels(variants)) if name != BASELINE]
    if not chosen:
        raise InputError(
            f"{where} contains only {BASELINE}, the reference. Add a method to compare with it."
        )
    return Question(
        id=f"against-{BASELINE}",
        text=f"Which methods improve on {BASELINE} training?",
        reference=BASELINE,
        variants=tuple(chosen),
        cases="test",
    )


def decode_dataset(
    name: str,
    table: Mapping[str, Any],
    shared: Mapping[str, Any],
    overrides: Mapping[str, Any],
    where: str,
) -> ExperimentDataset:
    own = {key: value for key, value in table.items() if key in SECTIONS}
    rest = {key: value for key, value in table.items() if key not in SECTIONS}
    for key in ("name", "sections"):
        if key in rest:
            raise InputError(f"{where}: no setting '{key}'.")
    check_sections(own, where)
    sections = merge_settings(merge_settings(shared, own), overrides)
    return decode(ExperimentDataset, {**rest, "name": name, "sections": sections}, where)


def decode(kind: type[Entry], table: Any, where: str) -> Entry:
    """A table as a dataclass; unknown keys and wrong types are errors that name the key."""
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    if isinstance(table, Mapping):
        reject_unknown(table, known, f"{where}: no setting")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace(" - at `$.", " for `").replace(" - at `$`", "")
        raise InputError(f"{where}: {text}.") from error


def check_experiment(experiment: Experiment, source: str) -> None:
    """Reject names that do not exist, and settings that cannot be trained or compared."""
    names = [dataset.name for dataset in experiment.datasets]
    ids = [question.id for question in experiment.questions]
    labels = known_labels(experiment.variants)
    for label, values in experiment.variants.items():
        check_variant(label, values, f"{source}: [methods.{label}]")
    for question in experiment.questions:
        where = f"{source}: question '{question.id}'"
        reject_bad_label(question.id, where)
        if ids.count(question.id) > 1:
            raise InputError(f"{where}: this id is used twice. Rename one.")
        reject_unknown(question.only, names, f"{where}: no dataset named")
        reject_unknown(question.labels, labels, f"{where}: no method named")
    for dataset in experiment.datasets:
        check_dataset(experiment, dataset, source)


def check_variant(label: str, values: Mapping[str, Any], where: str) -> None:
    reject_bad_label(label, where)
    reject_drawn(values, where)
    if "name" in values:
        raise InputError(f"{where}: remove 'name'; use 'method' for the method of a variant.")
    method = values.get("method", label)
    if label in METHODS.classes and method != label:
        raise InputError(f"{where}: '{label}' is a method itself. Choose another name.")
    if not isinstance(method, str):
        raise InputError(f"{where}: method is {method!r}, but must be the name of a method.")
    if label not in METHODS.classes and "method" not in values:
        raise InputError(
            f"{where}: '{label}' is not a method. {did_you_mean(label, METHODS.names)}"
        )


def check_dataset(experiment: Experiment, dataset: ExperimentDataset, source: str) -> None:
    where = source
    if dataset.name:
        where += f": [datasets.{dataset.name}]"
        reject_bad_label(dataset.name, where)
    reject_drawn(dataset.sections, where)
    split = resolve(dataset.sections, where).split
    kinds = {question.cases for question in experiment.questions_on(dataset)}
    if "validation" in kinds and split.validation < 1:
        raise InputError(
            f"{where}: there are no validation cases to answer questions on. Set split.validation."
        )
    labels = experiment.labels_on(dataset)
    for key in dataset.method:
        if not any(key in experiment.given_by(dataset, label) for label in labels):
            raise InputError(f"{where}: no method of the experiment has the setting '{key}'.")
    for label in labels:
        config = resolve(experiment.settings(dataset, label), f"{source}: [methods.{label}]")
        check_network(config.network)


def reject_unknown(names: Iterable[str], known: Sequence[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{what} '{name}'. {did_you_mean(name, known)}")


def reject_bad_label(name: str, where: str) -> None:
    if not LABEL.fullmatch(name):
        raise InputError(
            f"{where}: '{name}' may contain only letters, digits, -, _ and dots, at most 200 of "
            "them. Rename it."
        )


def reject_drawn(sections: Mapping[str, Any], where: str) -> None:
    for section, key in DRAWN:
        table = sections.get(section, {})
        if isinstance(table, Mapping) and key in table:
            raise InputError(
                f"{where}: {section}.{key} follows from the seeds and the path of a dataset. "
                "Remove it, and use seeds (--seeds) instead."
            )


def _tables(content: Mapping[str, Any], key: str, source: str) -> dict[str, Mapping[str, Any]]:
    """A table of tables; nothing if the key is missing."""
    found = content.get(key, {})
    entries = found.items() if isinstance(found, Mapping) else [("", found)]
    for name, entry in entries:
        if not isinstance(entry, Mapping):
            where = f"[{key}.{name}]" if name else f"[{key}]"
            raise InputError(f"{source}: {where} is {entry!r}, but must be a table.")
    return dict(entries)
