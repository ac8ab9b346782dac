"""The first lines of a report: the best method, its lead, and whether the lead is significant."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from segpl.data.split import SUGGESTED_FOLDS
from segpl.errors import count_noun, join_names
from segpl.evaluate.statistics import Estimate, compare_with, estimate
from segpl.report.collection import RunCollection
from segpl.report.comparison import describe, how_compared
from segpl.report.run_record import RunRecord
from segpl.report.tables import interval, mean_of

NO_TEST = "No case was held out for testing, so the accuracy on new scans was not measured."

ALL_ZERO = (
    "Every method has a mean Dice of 0.000, so none is best: the networks found almost nothing of "
    "what is labeled. Train with more --steps, and check the labels."
)

ONE_SEED = " Each method has a single training run; other seeds may change this result."

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


def estimates(found: RunCollection) -> dict[str, Estimate]:
    """Mean Dice of every method that has scores, with its interval, the highest mean first."""
    values = {label: found.scores(label, "dice") for label in found.labels}
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
        return answer_without_scores(found)
    best = next(iter(known))
    others = [label for label in found.labels if label in known and label != best]
    if others and known[best].mean < 0.0005:  # the highest
        return Answer(ALL_ZERO)
    score = dice_text(known[best])
    if not others:
        return Answer(f"{best}: {score}. There is no other method to compare with.")
    differences = compare_with(
        found.scores(best, "dice"), {other: found.scores(other, "dice") for other in others}
    )
    unclear = [other for other, each in differences.items() if not each.is_significant]
    return Answer(
        headline(best, score, unclear, others)
        + (ONE_SEED if known[best].seeds == 1 and len(unclear) < len(others) else ""),
        tuple(
            describe(other, best, each, comparisons=len(others))
            for other, each in differences.items()
        ),
        how_compared(list(differences.values())) + (SELECTION_NOTE if len(others) > 1 else ""),
    )


def answer_without_scores(found: RunCollection) -> Answer:
    """What is known of runs without test scores, or how to cross-validate."""
    run = found.runs[0]
    alone = len(found.runs) == 1
    estimated = [one for one in found.runs if one.folds]
    if estimated:
        texts = tuple(fold_text(one) for one in estimated)
        first, rest = (texts[0], texts[1:]) if alone else ("Estimates by cross-validation.", texts)
        return Answer(first, (*rest, NO_TEST))
    cases = len(run.split.labeled) if run.split else 0
    trained = (
        f"The training set of {run.label} has {cases} labeled and "
        f"{count_noun(len(run.split.unlabeled), 'unlabeled case')}. "
        if alone and cases and run.split
        else ""
    )
    has_test = any(one.split and one.split.test for one in found.runs)
    state = "The test cases have no scores yet." if has_test else NO_TEST
    if has_test or cases < 2:
        return Answer(trained + state)
    folds = min(SUGGESTED_FOLDS, cases)
    command = f"segpl train --out {shlex.quote(str(run.path))} --resume --folds {folds}"
    return Answer(trained + state, (f"Cross-validation estimates the Dice: `{command}`.",))


def fold_text(run: RunRecord) -> str:
    """The mean, and the range over cases."""
    by_case = run.folds_by_case()
    low, high = min(by_case.values()), max(by_case.values())
    counts = f"{count_noun(len(by_case), 'labeled case')}, "
    counts += count_noun(len({row.fold for row in run.folds}), "fold")
    return (
        f"{run.label}: Dice {mean_of(by_case.values()):.3f} by cross-validation "
        f"({interval(low, high)} in {counts})."
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
    """'Dice 0.861 (95 % CI 0.840 to 0.880; 3 seeds, 20 test cases)'."""
    ci = interval(known.low, known.high)
    counts = f"{count_noun(known.seeds, 'seed')}, {count_noun(known.cases, 'test case')}"
    return f"Dice {known.mean:.3f} ({'' if ci == '-' else f'95 % CI {ci}; '}{counts})"
