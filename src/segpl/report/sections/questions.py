"""Questions about methods, each answered by a table and a sentence per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from segpl.errors import InputError
from segpl.evaluate.statistics import compare_with
from segpl.report.collection import RunCollection
from segpl.report.comparison import comparison_table, describe, how_compared
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

Cases = Literal["validation", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Variants that are compared with one reference, on one kind of cases."""

    id: str  # file name of its table
    text: str
    reference: str
    variants: tuple[str, ...]
    only: tuple[str, ...] = ()  # datasets; empty means all
    cases: Cases = "validation"

    def __post_init__(self) -> None:
        if not self.variants or len(set(self.variants)) < len(self.variants):
            raise InputError(f"variants is {list(self.variants)}: name at least one, each once")
        if self.reference in self.variants:
            raise InputError(f"'{self.reference}' is both the reference and a variant")

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.reference, *self.variants)

    def relabeled(self, labels: Mapping[str, str]) -> Question:
        variants = tuple(labels[variant] for variant in self.variants)
        return replace(self, reference=labels[self.reference], variants=variants)


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The answer that one dataset gives."""

    question: Question
    dataset: str
    table: Table
    sentences: tuple[str, ...]
    note: str

    @property
    def title(self) -> str:
        return f"{self.question.text} ({self.dataset})" if self.dataset else self.question.text


def answer_question(
    question: Question, found: RunCollection, *, dataset: str = "", failed: Sequence[str] = ()
) -> QuestionAnswer:
    """Compare the variants with the reference on the finished runs of one dataset.

    `failed` are titles of runs that failed or have not been trained yet.
    """
    values = {"test": lambda run: run.by_case("dice"), "validation": RunRecord.validation_by_case}
    scores = {label: found.by_seed(label, values[question.cases]) for label in question.labels}
    others = {label: scores[label] for label in question.variants}
    differences = compare_with(scores[question.reference], others)
    sentences = [
        describe(label, question.reference, each, comparisons=len(others))
        for label, each in differences.items()
    ]
    return QuestionAnswer(
        question,
        dataset,
        comparison_table(question.reference, scores, cases=question.cases, failed=failed),
        tuple(sentences),
        how_compared(list(differences.values())),
    )


def question_section(given: Sequence[QuestionAnswer]) -> Section:
    on = {each.question.cases for each in given}
    where = "the cases that its heading names" if len(on) > 1 else f"the {min(on)} cases"
    advice = " Test scores must not be used to choose between variants."
    return Section(
        "questions",
        "Questions",
        text=(
            f"Each question is answered on {where}, at the last step of training."
            f"{advice if 'validation' in on else ''}",
        ),
        tables=tuple(
            NamedTable(
                "-".join(filter(None, ("question", each.question.id, each.dataset))),
                each.table,
                each.title
                + ("" if "validation" not in on else f", on {each.question.cases} cases"),
            )
            for each in given
        ),
    )
