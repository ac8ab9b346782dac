"""The page of a study: every question with its tables, its sentence and its curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from segpl.report.comparison.outcomes import Outcome
from segpl.report.comparison.questions import (
    LEVEL,
    Measure,
    Question,
    by_seed,
    corrected,
    final_question,
    findings,
    on_test,
    on_validation,
    question_table,
    settings_table,
    to_correct,
    verdict,
)
from segpl.report.tables import Table, as_markdown, counted

PAIR = (
    "A pair is one seed: two trainings with the same labeled cases, the same seed of weights and "
    "crops, and the same validation cases."
)
HOW = (
    "The value of a seed is the mean Dice over its validation cases, classes averaged, after the "
    "last step, unless a table says otherwise. p is that of a two-sided paired t-test over seeds, "
    "and the interval its 95 % confidence interval."
)
TOLD = f"a difference is told where it is below {LEVEL}."
ALL = f"p Holm is corrected for all comparisons that the questions make on a dataset; {TOLD}"
SOME = (
    "p Holm is corrected for all comparisons that the primary questions make on a dataset; "
    f"{TOLD} The p of other questions are not corrected, and their tables only describe."
)
FINAL = (
    "No question of this study was answered on these cases. The last step of every training is "
    "scored. p Holm is corrected for the comparisons of a table."
)


Logged = Mapping[tuple[str, int], Mapping[str, float]]


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
    # by dataset, then by label and seed: the last number of columns of the log
    logged: Mapping[str, Logged] = field(default_factory=dict)
    # by dataset: labels of methods that have seen the labels of validation cases
    fitted: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Of the log: those that a question measures."""
        measures = [question.measure for question in self.questions if question.measure]
        return list(dict.fromkeys(measures))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one dataset says to one question."""

    dataset: str
    table: Table | None  # None where no log has what is measured
    sentence: str


def measures_on(results: StudyResults, dataset: str) -> dict[str, Measure]:
    """How questions value a training, by what they measure."""
    logged = results.logged.get(dataset, {})

    def last_of(column: str) -> Measure:
        return lambda outcome: logged.get((outcome.method, outcome.seed), {}).get(column, math.nan)

    return {"": on_validation, **{column: last_of(column) for column in results.columns}}


def family_on(results: StudyResults, dataset: str) -> list[Question]:
    """The questions whose comparisons are corrected for each other."""
    return [asked for asked in to_correct(results.questions) if asked.is_asked_on(dataset)]


def answers(results: StudyResults, question: Question) -> Iterator[Answer]:
    """On every dataset that the question is asked on; none, if it has curves alone."""
    if not question.has_tables:
        return
    for dataset, outcomes in results.outcomes.items():
        if question.is_asked_on(dataset):
            measures = measures_on(results, dataset)
            found = findings(question, family_on(results, dataset), outcomes, measures)
            measure = measures[question.measure]
            if question.measure and not any(
                by_seed(outcomes, label, measure) for label in question.labels
            ):
                yield Answer(dataset, None, f"No log has `{question.measure}`.")
                continue
            table = question_table(
                question,
                found,
                outcomes,
                measure,
                cases="validation",
                fitted=results.fitted.get(dataset, ()),
            )
            yield Answer(dataset, table, verdict(question, found))


def final_answers(results: StudyResults) -> Iterator[Answer]:
    """On the test cases."""
    question = final_question(results.final)
    for dataset, outcomes in results.outcomes.items():
        found = findings(question, [question], outcomes, {"": on_test})
        table = question_table(question, found, outcomes, on_test, cases="test")
        yield Answer(dataset, table, verdict(question, found))


def study_text(results: StudyResults) -> str:
    """The whole page in Markdown."""
    has_primary = any(question.is_primary for question in results.questions)
    parts = [
        f"# {results.title}",
        f"{results.made} {PAIR}",
        f"{HOW} {SOME if has_primary else ALL}",
    ]
    parts.append(
        "\n".join(
            f"- **{dataset}**: {text} {correction(results, dataset)}".rstrip()
            for dataset, text in results.conditions.items()
        )
    )
    for question in results.questions:
        parts += question_text(results, question)
    if results.final:
        parts += ["## On the test cases", FINAL]
        parts += [text for found in final_answers(results) for text in answer_text(found)]
    parts += ["## Variants", as_markdown(settings_table(results.variants)).strip()]
    return "\n\n".join(parts) + "\n"


def correction(results: StudyResults, dataset: str) -> str:
    """For how many comparisons p is corrected there; nothing to say where nothing is asked."""
    if not results.questions:
        return ""
    outcomes, measures = results.outcomes[dataset], measures_on(results, dataset)
    count = len(corrected(family_on(results, dataset), outcomes, measures))
    if not count:
        return "No comparison of a question is corrected here."
    return f"p Holm of the questions is corrected for {counted(count, 'comparison')} here."


def question_text(results: StudyResults, question: Question) -> list[str]:
    parts = [f'<a id="{question.id}"></a>', f"## {question.text}"]
    if question.is_primary:
        parts.append("A primary question.")
    if question.note:
        parts.append(question.note.strip())
    parts += [text for found in answers(results, question) for text in answer_text(found)]
    is_asked = any(question.is_asked_on(dataset) for dataset in results.outcomes)
    if not is_asked:
        parts.append("Not answered yet: no dataset of this question was trained on.")
    return [*parts, *curves_text(question, results.pictures.get(question.id), is_asked)]


def answer_text(found: Answer) -> list[str]:
    table = [as_markdown(found.table).strip()] if found.table else []
    return [f"**{found.dataset}**", *table, found.sentence]


def curves_text(question: Question, picture: str | None, is_answered: bool) -> list[str]:
    columns = ", ".join(f"`{column}`" for column in question.curves)
    if picture:
        return [
            f"![{', '.join(question.curves)} over the steps of training]({picture})",
            f"{columns} of `log.csv`: the mean over seeds, with a band of one standard deviation.",
        ]
    return [f"No log has {columns}."] if question.curves and is_answered else []


def study_rows(results: StudyResults) -> list[list[object]]:
    """A header, then one row for each training."""
    header: list[object] = [
        *("dataset", "method", "seed", "validation dice", "test dice"),
        *(f"last {column}" for column in results.columns),
        *("seconds", "error"),
    ]
    rows: list[list[object]] = [header]
    for dataset, outcomes in results.outcomes.items():
        measures = measures_on(results, dataset)
        for outcome in outcomes:
            values = [
                on_validation(outcome),
                on_test(outcome),
                *(measures[column](outcome) for column in results.columns),
            ]
            rows.append(
                [
                    *(dataset, outcome.method, outcome.seed),
                    *(f"{value:.6f}" for value in values),
                    *(f"{outcome.seconds:.1f}", outcome.error),
                ]
            )
    return rows
