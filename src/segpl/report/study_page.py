"""The page of a study: every question with its tables, its sentence and its curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from segpl.report.comparison import Outcome
from segpl.report.questions import (
    LEVEL,
    Measure,
    Question,
    final_question,
    findings,
    on_test,
    on_validation,
    question_table,
    settings_table,
    verdict,
)
from segpl.report.tables import Table, as_markdown

PAIR = (
    "A pair is one seed: two trainings with the same labelled cases, the same seed of weights and "
    "crops, and the same validation cases."
)
HOW = (
    "The value of a seed is the mean Dice over its validation cases, classes averaged, after the "
    "last step. p is that of a two-sided paired t-test over seeds, and the interval its 95 % "
    "confidence interval. p Holm is corrected for all comparisons that the questions make on a "
    f"dataset; a difference is told where it is below {LEVEL}."
)
FINAL = (
    "Nothing was chosen on these cases: the questions above are answered on validation cases, and "
    "the last step of every training is scored. p Holm is corrected for the comparisons of a table."
)


@dataclass(frozen=True, slots=True)
class StudyResults:
    title: str
    made: str  # how the page was made
    conditions: Mapping[str, str]  # by dataset: cases, steps, seeds
    variants: Mapping[str, tuple[str, Mapping[str, object]]]  # by label: method and settings
    questions: Sequence[Question]
    final: Sequence[str]  # labels
    outcomes: Mapping[str, Sequence[Outcome]]  # by dataset
    pictures: Mapping[str, str] = field(default_factory=dict)  # by question: path beside the page


@dataclass(frozen=True, slots=True)
class Answer:
    """What one dataset says to one question."""

    dataset: str
    table: Table
    sentence: str


def answers(results: StudyResults, question: Question) -> Iterator[Answer]:
    """On the validation cases of every dataset that the question is asked on."""
    for dataset, outcomes in results.outcomes.items():
        if question.is_asked_on(dataset):
            asked = [other for other in results.questions if other.is_asked_on(dataset)]
            yield answer(question, asked, dataset, outcomes, on_validation, "validation")


def final_answers(results: StudyResults) -> Iterator[Answer]:
    """On the test cases."""
    question = final_question(results.final)
    for dataset, outcomes in results.outcomes.items():
        yield answer(question, [question], dataset, outcomes, on_test, "test")


def answer(
    question: Question,
    asked: Sequence[Question],
    dataset: str,
    outcomes: Sequence[Outcome],
    measure: Measure,
    cases: str,
) -> Answer:
    found = findings(asked, outcomes, measure)[question.id]
    table = question_table(question, found, outcomes, measure, cases=cases)
    return Answer(dataset, table, verdict(question, found))


def study_text(results: StudyResults) -> str:
    """The whole page in Markdown."""
    parts = [f"# {results.title}", f"{results.made} {PAIR}", HOW]
    parts.append(
        "\n".join(f"- **{dataset}**: {text}" for dataset, text in results.conditions.items())
    )
    for question in results.questions:
        given = list(answers(results, question))
        parts += [f'<a id="{question.id}"></a>', f"## {question.text}"]
        parts += [text for found in given for text in answer_text(found)]
        if not given:
            parts.append("Not answered yet: no dataset of this question was trained on.")
        parts += curves_text(question, results.pictures.get(question.id), bool(given))
    if results.final:
        parts += ["## On the test cases", FINAL]
        parts += [text for found in final_answers(results) for text in answer_text(found)]
    parts += ["## Variants", as_markdown(settings_table(results.variants)).strip()]
    return "\n\n".join(parts) + "\n"


def answer_text(found: Answer) -> list[str]:
    return [f"**{found.dataset}**", as_markdown(found.table).strip(), found.sentence]


def curves_text(question: Question, picture: str | None, is_answered: bool) -> list[str]:
    columns = ", ".join(f"`{column}`" for column in question.curves)
    if picture:
        return [
            f"![{', '.join(question.curves)} over the steps of training]({picture})",
            f"{columns} of `log.csv`: the mean over seeds, with a band of one standard deviation.",
        ]
    return [f"No log has {columns}."] if question.curves and is_answered else []


def study_rows(outcomes: Mapping[str, Sequence[Outcome]]) -> list[list[object]]:
    """A header, then one row for each training."""
    header: list[object] = [
        *("dataset", "method", "seed", "validation dice", "test dice", "seconds", "error")
    ]
    return [
        header,
        *(
            [
                dataset,
                outcome.method,
                outcome.seed,
                f"{on_validation(outcome):.6f}",
                f"{on_test(outcome):.6f}",
                f"{outcome.seconds:.1f}",
                outcome.error,
            ]
            for dataset, of_dataset in outcomes.items()
            for outcome in of_dataset
        ),
    ]
