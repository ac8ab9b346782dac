"""Questions of a study and what the numbers say: one table and one sentence for each dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from segpl.evaluate.paired import PairedDifference, holm, paired_difference
from segpl.report.comparison import Outcome
from segpl.report.tables import Table, counted, mean_and_spread

LEVEL = 0.05  # of Holm's p below which a difference is told
Measure = Callable[[Outcome], float]


@dataclass(frozen=True, slots=True)
class Question:
    """Variants that are held against one reference."""

    id: str  # of anchors and file names
    text: str
    reference: str
    variants: tuple[str, ...]
    curves: tuple[str, ...] = ()  # columns of `log.csv`
    only: tuple[str, ...] = ()  # datasets; none: all

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.reference, *self.variants)

    def is_asked_on(self, dataset: str) -> bool:
        return not self.only or dataset in self.only


@dataclass(frozen=True, slots=True)
class Finding:
    """One variant against its reference; `holm` is p among all comparisons on that dataset."""

    variant: str
    difference: PairedDifference
    holm: float


def on_validation(outcome: Outcome) -> float:
    return outcome.validation_mean


def on_test(outcome: Outcome) -> float:
    return outcome.mean("dice")


def by_seed(outcomes: Iterable[Outcome], label: str, measure: Measure) -> dict[int, float]:
    """The value of each seed; none where the training failed."""
    values = {outcome.seed: measure(outcome) for outcome in outcomes if outcome.method == label}
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def findings(
    questions: Sequence[Question], outcomes: Sequence[Outcome], measure: Measure
) -> dict[str, list[Finding]]:
    """What each question finds, by its id; p is corrected for the comparisons of all of them.

    Two questions that compare the same two make one comparison.
    """
    values = {
        label: by_seed(outcomes, label, measure)
        for question in questions
        for label in question.labels
    }
    compared = {
        (variant, question.reference): paired_difference(
            values[variant], values[question.reference]
        )
        for question in questions
        for variant in question.variants
    }
    single = {frozenset(pair): difference.p for pair, difference in compared.items()}
    corrected = dict(zip(single, holm(list(single.values())), strict=True))
    return {
        question.id: [
            Finding(
                variant,
                compared[variant, question.reference],
                corrected[frozenset((variant, question.reference))],
            )
            for variant in question.variants
        ]
        for question in questions
    }


def question_table(
    question: Question,
    found: Sequence[Finding],
    outcomes: Sequence[Outcome],
    measure: Measure,
    *,
    cases: str,
) -> Table:
    """The reference, then every variant with its difference; `cases` is "validation" or "test"."""
    named = {finding.variant: finding for finding in found}
    rows = []
    for label in question.labels:
        scores = list(by_seed(outcomes, label, measure).values())
        rows.append(
            [
                label,
                mean_and_spread(scores) if scores else "-",
                *(cells(named[label]) if label in named else [""] * 4),
            ]
        )
    seeds = len({outcome.seed for outcome in outcomes})
    spread = " and standard deviation" if seeds > 1 else ""
    return Table(
        columns=[
            "method",
            f"Dice on {cases}",
            f"difference to {question.reference} (95 % interval)",
            "p",
            "p Holm",
            "seeds better",
        ],
        rows=rows,
        note=" ".join(
            [f"Mean{spread} over {counted(seeds, 'seed')}.", *absent(question, outcomes)]
        ),
    )


def cells(finding: Finding) -> list[str]:
    difference = finding.difference
    if not difference.pairs:
        return ["-"] * 4
    interval = (
        "" if math.isnan(difference.low) else f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    )
    return [
        f"{difference.mean:+.3f}{interval}",
        p_text(difference.p),
        p_text(finding.holm),
        f"{difference.better} of {difference.pairs}",
    ]


def p_text(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def absent(question: Question, outcomes: Sequence[Outcome]) -> list[str]:
    """Which trainings are not there, and that their pairs are left out."""
    failed = [o for o in outcomes if o.error and o.method in question.labels]
    if not failed:
        return []
    names = ", ".join(f"`{o.method}` with seed {o.seed}" for o in failed)
    return [f"Failed or not trained, and left out with their pairs: {names}."]


def verdict(question: Question, found: Sequence[Finding]) -> str:
    """One sentence from the numbers alone."""
    reference, most = question.reference, max(finding.difference.pairs for finding in found)
    if most < 2:
        return "One pair is no test." if most else "Without a pair nothing can be told."
    told = [finding for finding in found if finding.holm < LEVEL]
    if not told:
        return f"No difference from `{reference}` can be told."
    parts = [
        f"`{finding.variant}` is {'better' if finding.difference.mean > 0 else 'worse'} than "
        f"`{reference}` ({finding.difference.mean:+.3f}, Holm p {p_text(finding.holm)})"
        for finding in told
    ]
    if len(told) < len(found):
        parts.append("no other difference can be told")
    return "; ".join(parts) + "."


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
