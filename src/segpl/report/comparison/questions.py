"""Questions of a study and what the numbers say: one table and one sentence for each dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from segpl.evaluate.paired import PairedDifference, holm, paired_difference
from segpl.evaluate.statistics import p_text
from segpl.report.comparison.outcomes import Outcome
from segpl.report.tables import Table, counted, mean_and_spread

LEVEL = 0.05  # of Holm's p below which a difference is told
Measure = Callable[[Outcome], float]
Comparison = tuple[str, frozenset[str]]  # what is measured, and of which two


@dataclass(frozen=True, slots=True)
class Question:
    """Variants that are held against one reference."""

    id: str  # of anchors and file names
    text: str
    reference: str
    variants: tuple[str, ...]
    curves: tuple[str, ...] = ()  # columns of `log.csv`
    only: tuple[str, ...] = ()  # datasets; none: all
    measure: str = ""  # a column of `log.csv`; none: the Dice
    has_tables: bool = True  # if not, curves are all there is to see
    is_primary: bool = False
    note: str = ""  # Markdown

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.reference, *self.variants)

    def is_asked_on(self, dataset: str) -> bool:
        return not self.only or dataset in self.only

    def comparison(self, variant: str) -> Comparison:
        return self.measure, frozenset((variant, self.reference))


@dataclass(frozen=True, slots=True)
class Finding:
    """One variant against its reference; `holm` is the corrected p, None where none is."""

    variant: str
    difference: PairedDifference
    holm: float | None


def on_validation(outcome: Outcome) -> float:
    return outcome.validation_mean


def on_test(outcome: Outcome) -> float:
    return outcome.mean("dice")


def by_seed(outcomes: Iterable[Outcome], label: str, measure: Measure) -> dict[int, float]:
    """The value of each seed; none where the training failed."""
    values = {outcome.seed: measure(outcome) for outcome in outcomes if outcome.method == label}
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def to_correct(questions: Sequence[Question]) -> list[Question]:
    """The primary questions of a study; where none is primary, all that compare."""
    primary = [question for question in questions if question.is_primary]
    return primary or [question for question in questions if question.has_tables]


def differences(
    question: Question, outcomes: Sequence[Outcome], measure: Measure
) -> dict[str, PairedDifference]:
    """Of each variant to the reference, at equal seeds."""
    reference = by_seed(outcomes, question.reference, measure)
    return {
        variant: paired_difference(by_seed(outcomes, variant, measure), reference)
        for variant in question.variants
    }


def corrected(
    questions: Sequence[Question], outcomes: Sequence[Outcome], measures: Mapping[str, Measure]
) -> dict[Comparison, float]:
    """Holm's p of every comparison of these questions that can be tested.

    Two questions that compare the same two by the same measure make one comparison.
    """
    single = {
        question.comparison(variant): difference.p
        for question in questions
        for variant, difference in differences(
            question, outcomes, measures[question.measure]
        ).items()
        if not math.isnan(difference.p)
    }
    return dict(zip(single, holm(list(single.values())), strict=True))


def findings(
    question: Question,
    family: Sequence[Question],
    outcomes: Sequence[Outcome],
    measures: Mapping[str, Measure],
) -> list[Finding]:
    """What a question finds; p is corrected for all comparisons of its family, if it is in there.

    Args:
        question: what is asked.
        family: the questions whose comparisons are corrected for each other.
        outcomes: the trainings of one dataset.
        measures: the value of a training by the `measure` of a question.
    """
    found = differences(question, outcomes, measures[question.measure])
    if question not in family:
        return [Finding(variant, difference, None) for variant, difference in found.items()]
    p_of = corrected(family, outcomes, measures)
    return [
        Finding(variant, difference, p_of.get(question.comparison(variant), math.nan))
        for variant, difference in found.items()
    ]


def question_table(
    question: Question,
    found: Sequence[Finding],
    outcomes: Sequence[Outcome],
    measure: Measure,
    *,
    cases: str,
    fitted: Collection[str] = (),
) -> Table:
    """The reference, then every variant with its difference.

    Args:
        question: what is asked.
        found: its findings.
        outcomes: the trainings of one dataset.
        measure: the value of a training.
        cases: "validation" or "test".
        fitted: labels of methods that have seen the labels of validation cases.
    """
    column = question.measure
    is_corrected = any(finding.holm is not None for finding in found)
    named = {finding.variant: cells(finding) for finding in found}
    empty = [""] * (4 if is_corrected else 3)
    rows = []
    for label in question.labels:
        values = list(by_seed(outcomes, label, measure).values())
        rows.append([label, mean_and_spread(values) if values else "-", *named.get(label, empty)])
    seeds = len({outcome.seed for outcome in outcomes})
    spread = " and standard deviation" if seeds > 1 else ""
    value = f"of the last `{column}` in `log.csv` " if column else ""
    notes = [f"Mean{spread} {value}over {counted(seeds, 'seed')}.", *absent(question, outcomes)]
    if not column and cases == "validation":
        notes += seen(question, fitted)
    return Table(
        columns=[
            "method",
            f"last `{column}`" if column else f"Dice on {cases}",
            f"difference to {question.reference} (95 % interval)",
            "p",
            *(["p Holm"] if is_corrected else []),
            "seeds higher" if column else "seeds better",
        ],
        rows=rows,
        note=" ".join(notes),
    )


def cells(finding: Finding) -> list[str]:
    difference = finding.difference
    if not difference.pairs:
        return ["-"] * (3 if finding.holm is None else 4)
    interval = (
        "" if math.isnan(difference.low) else f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    )
    return [
        f"{difference.mean:+.3f}{interval}",
        p_text(difference.p),
        *([] if finding.holm is None else [p_text(finding.holm)]),
        f"{difference.better} of {difference.pairs}",
    ]


def absent(question: Question, outcomes: Sequence[Outcome]) -> list[str]:
    """Which trainings are not there, and that their pairs are left out."""
    failed = [o for o in outcomes if o.error and o.method in question.labels]
    if not failed:
        return []
    names = ", ".join(f"`{o.method}` with seed {o.seed}" for o in failed)
    return [f"Failed or not trained, and left out with their pairs: {names}."]


def seen(question: Question, fitted: Collection[str]) -> list[str]:
    """That these cases are not new ones to some."""
    labels = [f"`{label}`" for label in question.labels if label in fitted]
    if not labels:
        return []
    return [
        f"Fitted to the labels of these cases, so that its scores are not those of new ones: "
        f"{', '.join(labels)}."
    ]


def verdict(question: Question, found: Sequence[Finding]) -> str:
    """One sentence from the numbers alone."""
    reference, most = question.reference, max(finding.difference.pairs for finding in found)
    if most < 2:
        return "One pair is no test." if most else "Without a pair nothing can be told."
    if all(finding.holm is None for finding in found):
        return description(question, found)
    told = [(one, one.holm) for one in found if one.holm is not None and one.holm < LEVEL]
    if not told:
        about = f" in `{question.measure}`" if question.measure else ""
        return f"No difference from `{reference}`{about} can be told."
    parts = [
        f"`{finding.variant}` {relation(question, finding.difference)} than `{reference}` "
        f"({finding.difference.mean:+.3f}, Holm p {p_text(p)})"
        for finding, p in told
    ]
    if len(told) < len(found):
        parts.append("no other difference can be told")
    return "; ".join(parts) + "."


def relation(question: Question, difference: PairedDifference) -> str:
    """Of a column of the log nobody knows whether more is better."""
    is_above = difference.mean > 0
    if question.measure:
        return f"has a {'higher' if is_above else 'lower'} `{question.measure}`"
    return f"is {'better' if is_above else 'worse'}"


def description(question: Question, found: Sequence[Finding]) -> str:
    """What there is to see where nothing was corrected, and so nothing is told."""
    value = f"last `{question.measure}`" if question.measure else "Dice"
    parts = [
        f"{distance(finding.difference.mean)} for `{finding.variant}`"
        for finding in found
        if finding.difference.pairs
    ]
    return (
        f"Not corrected, descriptive: compared with `{question.reference}` at equal seeds, the "
        f"mean {value} is {', '.join(parts)}."
    )


def distance(mean: float) -> str:
    if f"{abs(mean):.3f}" == "0.000":
        return "the same to three decimals"
    return f"{abs(mean):.3f} {'higher' if mean > 0 else 'lower'}"


def final_question(labels: Sequence[str]) -> Question:
    """The last table: every label against the first one."""
    return Question("final", "", labels[0], tuple(labels[1:]))


def settings_table(variants: Mapping[str, tuple[str, Mapping[str, object]]]) -> Table:
    """What each label stands for: its method and the settings that are not the default."""
    rows = []
    for label, (method, settings) in variants.items():
        named = ", ".join(f"`{key} = {value!r}`" for key, value in settings.items())
        rows.append([label, method, named or "defaults"])
    return Table(
        columns=["label", "method", "settings"],
        rows=rows,
        note="All other settings are the same for all, or the method's defaults.",
    )
