"""A study as it is written: questions, the variants they compare, and datasets to ask them on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segpl.errors import InputError, did_you_mean
from segpl.experiments.compare import BASELINE, CompareSettings, read_compare_config
from segpl.experiments.variants import LABEL, LABEL_WORDS, known_labels, with_special
from segpl.methods.base import METHODS
from segpl.report.comparison.questions import Question
from segpl.settings import SECTIONS, check_sections, merge_settings, resolve, select_known

KEYS = ("title", "datasets", "methods", "questions", "final")
DATASET_KEYS = ("phantom", "path", "seeds", "method")
QUESTION_KEYS = (
    *("id", "text", "reference", "variants", "curves", "only"),
    *("measure", "tables", "primary", "note"),
)
SEEDS = [0, 1, 2]
# seeds draw these, so that a pair is the same cases and the same first weights
DRAWN = (("train", "seed"), ("split", "draw"), ("data", "path"))


@dataclass(frozen=True, slots=True)
class StudyDataset:
    name: str
    path: str  # below --data; empty: generated lung vessels
    seeds: tuple[int, ...]
    sections: Mapping[str, Any]  # settings of all trainings on it
    method: Mapping[str, Any]  # settings of all methods that have them and no other value


@dataclass(frozen=True, slots=True)
class Study:
    title: str
    datasets: tuple[StudyDataset, ...]
    special: Mapping[str, Mapping[str, Any]]  # settings of single methods and variants
    questions: tuple[Question, ...]
    final: tuple[str, ...] = ()  # scored on test cases, the first against the others

    def asked_on(self, dataset: str) -> list[Question]:
        return [question for question in self.questions if question.is_asked_on(dataset)]

    def labels_on(self, dataset: str) -> tuple[str, ...]:
        """What is trained there, the baseline first, as in every comparison."""
        asked = [label for question in self.asked_on(dataset) for label in question.labels]
        return tuple(dict.fromkeys([BASELINE, *asked, *self.final]))

    def given_on(self, dataset: StudyDataset, label: str) -> dict[str, Any]:
        """Those settings of a dataset's `method` that the method of a label has."""
        kind: Any = METHODS.get(str(self.special.get(label, {}).get("method", label)))
        return select_known(kind.Settings, dataset.method)

    def special_on(self, dataset: StudyDataset) -> dict[str, Mapping[str, Any]]:
        """Settings of each method and variant, with those that the dataset gives to all."""
        special = dict(self.special)
        for label in self.labels_on(dataset.name):
            special[label] = merge_settings(
                self.given_on(dataset, label), self.special.get(label, {})
            )
        return special

    def fitted_on(self, dataset: StudyDataset) -> tuple[str, ...]:
        """Labels whose method calibrates: labels of validation cases were fitted to."""
        special = self.special_on(dataset)
        configs = {
            label: resolve(with_special(dataset.sections, label, special[label]))
            for label in self.labels_on(dataset.name)
        }
        return tuple(
            label
            for label, config in configs.items()
            if getattr(config.settings, "calibrate", "off") != "off"
        )

    def comparison_on(self, dataset: StudyDataset, device: str | None = None) -> CompareSettings:
        """The trainings of one dataset."""
        sections = merge_settings(dataset.sections, {"train": {"device": device}} if device else {})
        return CompareSettings(
            self.labels_on(dataset.name), dataset.seeds, sections, self.special_on(dataset)
        )


def read_study(path: Path) -> Study:
    """A study from its file; whatever cannot be trained or compared is refused here."""
    return parse_study(read_compare_config(path), path.name)


def parse_study(content: Mapping[str, Any], source: str) -> Study:
    refuse_unknown(content, (*KEYS, *SECTIONS), source)
    sections = {name: content[name] for name in SECTIONS if name in content}
    check_sections(sections, source)
    special = tables(content.get("methods", {}), f"{source}: [methods]")
    found = tables(content.get("datasets", {}), f"{source}: [datasets]")
    datasets = tuple(parse_dataset(name, values, sections) for name, values in found.items())
    if not datasets:
        raise InputError(f"{source} names no dataset. Write [datasets.NAME] with a path.")
    asked = content.get("questions", [])
    if not (isinstance(asked, list) and all(isinstance(table, Mapping) for table in asked)):
        raise InputError(f"{source}: write each question below a line [[questions]].")
    final = table_of(content.get("final", {}), f"{source}: [final]")
    refuse_unknown(final, ("variants",), "[final]")
    study = Study(
        title=text_of(content, "title", source),
        datasets=datasets,
        special=special,
        questions=tuple(parse_question(n, table) for n, table in enumerate(asked, 1)),
        final=names_of(final, "variants", "[final]") if final else (),
    )
    check_study(study, source)
    return study


def parse_dataset(name: str, values: Mapping[str, Any], shared: Mapping[str, Any]) -> StudyDataset:
    where = f"[datasets.{name}]"
    refuse_label(name, where)
    refuse_unknown(values, (*DATASET_KEYS, *SECTIONS), where)
    own = {key: value for key, value in values.items() if key in SECTIONS}
    check_sections(own, where)
    sections = merge_settings(shared, own)
    is_phantom = truth_of(values, "phantom", where, default=False)
    if is_phantom == ("path" in values):
        raise InputError(f"{where} needs either a path, below --data, or phantom = true.")
    seeds = values.get("seeds", SEEDS)
    if not (isinstance(seeds, list) and all(type(seed) is int for seed in seeds)):
        raise InputError(f"{where}: seeds is {seeds!r}, and a list of whole numbers is needed.")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"{where}: seeds is {seeds}: give one or more from 0 on, each once.")
    refuse_drawn(sections, where)
    if resolve(sections, where).split.validation < 1:
        raise InputError(
            f"{where} has no validation cases to answer a question on. Hold some out: "
            "validation = N in [split]."
        )
    path = "" if is_phantom else text_of(values, "path", where)
    method = table_of(values.get("method", {}), f"{where}: method")
    return StudyDataset(name, path, tuple(seeds), sections, method)


def parse_question(number: int, values: Mapping[str, Any]) -> Question:
    where = f"question {number}"
    if isinstance(values.get("id"), str):
        where = f"question '{values['id']}'"
    refuse_unknown(values, QUESTION_KEYS, where)
    question = Question(
        id=text_of(values, "id", where),
        text=text_of(values, "text", where),
        reference=text_of(values, "reference", where),
        variants=names_of(values, "variants", where),
        curves=names_of(values, "curves", where) if "curves" in values else (),
        only=names_of(values, "only", where) if "only" in values else (),
        measure=text_of(values, "measure", where) if "measure" in values else "",
        has_tables=truth_of(values, "tables", where, default=True),
        is_primary=truth_of(values, "primary", where, default=False),
        note=text_of(values, "note", where) if "note" in values else "",
    )
    refuse_label(question.id, where)
    if not question.has_tables:
        refuse_unseen(question, where)
    if question.reference in question.variants:
        raise InputError(
            f"{where}: '{question.reference}' is the reference and a variant too. Leave it out of "
            "the variants."
        )
    return question


def refuse_unseen(question: Question, where: str) -> None:
    """Without tables there are curves to see, and nothing that is measured or tested."""
    if not question.curves:
        raise InputError(
            f"{where}: tables is false and there are no curves, so that nothing is shown. Name "
            "columns of log.csv in curves, or leave tables out."
        )
    for key, is_given in (("measure", question.measure), ("primary", question.is_primary)):
        if is_given:
            raise InputError(
                f"{where}: {key} is given and tables is false, so that nothing is compared. Leave "
                "one of them out."
            )


def check_study(study: Study, source: str) -> None:
    """What only the whole can tell: names that must be known, and settings that must fit."""
    if not study.questions and not study.final:
        raise InputError(f"{source} asks nothing. Write [[questions]], or [final].")
    if len(study.final) == 1:
        raise InputError("[final] has one variant, and two or more can be compared. Add another.")
    ids = [question.id for question in study.questions]
    for twice in {name for name in ids if ids.count(name) > 1}:
        raise InputError(f"{source}: two questions have the id '{twice}'. Rename one.")
    known = [dataset.name for dataset in study.datasets]
    labels = known_labels(study.special)
    for question in study.questions:
        where = f"question '{question.id}'"
        refuse_absent(question.only, known, f"{where}: no dataset named")
        refuse_absent(question.labels, labels, f"{where}: no method named")
    refuse_absent(study.final, labels, "[final]: no method named")
    for label, values in study.special.items():
        refuse_drawn(values, f"[methods.{label}]")
        for section in ("data", "split"):
            given = values.get(section)
            fewer = isinstance(given, Mapping) and (section, *given) == ("split", "unlabeled")
            if given is not None and not fewer:
                raise InputError(
                    f"[methods.{label}] has a [{section}] of its own, and all methods of a study "
                    "have the same cases. Leave it out; split.unlabeled alone, for fewer "
                    "unlabeled cases, is allowed."
                )
    for dataset in study.datasets:
        study.comparison_on(dataset)
        special = study.special_on(dataset)
        given = [study.given_on(dataset, label) for label in study.labels_on(dataset.name)]
        for key in dataset.method:
            if not any(key in settings for settings in given):
                raise InputError(
                    f"[datasets.{dataset.name}.method]: no method of the study has the setting "
                    f"'{key}'. Leave it out."
                )
        for label in study.labels_on(dataset.name):
            content = with_special(dataset.sections, label, special[label])
            resolve(content, f"[methods.{label}] on '{dataset.name}'")


def refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    refuse_absent(table, known, f"{where}: no setting")


def refuse_absent(names: Iterable[str], known: Sequence[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{what} '{name}'. {did_you_mean(name, known)}")


def refuse_label(name: str, where: str) -> None:
    if not LABEL.fullmatch(name):
        raise InputError(f"{where}: a name of files has {LABEL_WORDS}. Choose another one.")


def refuse_drawn(sections: Mapping[str, Any], where: str) -> None:
    for section, key in DRAWN:
        table = sections.get(section, {})
        if isinstance(table, Mapping) and key in table:
            raise InputError(
                f"{where}: {section}.{key} is given by the seeds and the path of a dataset. Leave "
                "it out."
            )


def tables(value: Any, where: str) -> dict[str, Mapping[str, Any]]:
    """A table of tables."""
    return {name: table_of(entry, where) for name, entry in table_of(value, where).items()}


def table_of(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} holds {value!r}, and a table of settings is needed.")
    return value


def text_of(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        found = f"is {value!r}" if key in table else "is missing"
        raise InputError(f"{where}: {key} {found}, and a text is needed.")
    return value


def truth_of(table: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is {value!r}, and true or false is needed.")
    return value


def names_of(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key)
    if not (isinstance(value, list) and value and all(isinstance(name, str) for name in value)):
        found = f"is {value!r}" if key in table else "is missing"
        raise InputError(f"{where}: {key} {found}, and a list of names is needed.")
    if len(set(value)) < len(value):
        raise InputError(f"{where}: {key} is {value}: name each once.")
    return tuple(value)
