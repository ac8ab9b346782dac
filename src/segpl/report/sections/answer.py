"""The first lines of a report: the best method, its lead, and whether the lead is significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segpl.evaluate.statistics import Estimate, compare_with, estimate
from segpl.report.collection import RunCollection
from segpl.report.comparison import describe, how_compared
from segpl.report.tables import count_noun, interval, join_names

# with two methods, a two-sided test does not depend on which of them is called the best
SELECTION_NOTE = (
    " The test scores also chose which method is called the best, so these p-values are "
    "optimistic. To test a claim, compare with a fixed reference: `segpl compare`."
)


@dataclass(frozen=True, slots=True)
class Answer:
    headline: str
    sentences: tuple[str, ...] = ()
    note: str = ""  # how the numbers were computed


def estimates(found: RunCollection, metric: str = "dice") -> dict[str, Estimate]:
    """Mean and interval of every method that has this score, the highest mean first."""
    values = {label: found.scores(label, metric) for label in found.labels}
    known = {label: estimate(scores) for label, scores in values.items() if scores}
    return dict(sorted(known.items(), key=lambda item: -item[1].mean))


def answers(found: RunCollection) -> list[Answer]:
    """One answer per dataset: scores on different images cannot be compared."""
    if found.is_comparable:
        return [answer(found)]
    return [answer(found.on(dataset)) for dataset in found.datasets]


def answer(found: RunCollection) -> Answer:
    known = estimates(found)
    if not known:
        return Answer("No run has scores on test cases yet.")
    best = next(iter(known))
    others = [label for label in found.labels if label in known and label != best]
    score = dice_text(known[best])
    if not others:
        return Answer(f"{best}: {score}. There is no other method to compare with.")
    differences = compare_with(
        found.scores(best, "dice"), {other: found.scores(other, "dice") for other in others}
    )
    unclear = [other for other, each in differences.items() if not each.is_significant]
    return Answer(
        headline(best, score, unclear, others),
        tuple(
            describe(other, best, each, comparisons=len(others))
            for other, each in differences.items()
        ),
        how_compared(list(differences.values())) + (SELECTION_NOTE if len(others) > 1 else ""),
    )


def headline(best: str, score: str, unclear: Sequence[str], others: Sequence[str]) -> str:
    """`unclear` are the methods that do not differ significantly from the best."""
    if not unclear:
        who = {1: "the other method", 2: "both other methods"}.get(len(others), "all others")
        return f"{best} is best: {score}, significantly higher than {who}."
    if len(unclear) == len(others):
        return (
            f"No method is significantly best. {best} has the highest mean, {score}, but does not "
            f"differ significantly from {join_names(unclear)}."
        )
    clear = [other for other in others if other not in unclear]
    return (
        f"{best} has the highest mean, {score}. The difference from {join_names(clear)} is "
        f"significant, the difference from {join_names(unclear)} is not."
    )


def dice_text(known: Estimate) -> str:
    """'Dice 0.861 (95% CI 0.840 to 0.880; 3 seeds, 20 test cases)'."""
    ci = interval(known.low, known.high)
    counts = f"{count_noun(known.seeds, 'seed')}, {count_noun(known.cases, 'test case')}"
    return f"Dice {known.mean:.3f} ({'' if ci == '-' else f'95% CI {ci}; '}{counts})"
