"""The answer that a report begins with: which method is best, by how much, and is it sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segpl.evaluate.paired import holm
from segpl.evaluate.statistics import LEVEL, Effect, Estimate, effect, estimate, sentence
from segpl.report.comparison.words import explanation, tests
from segpl.report.gathered import Gathered
from segpl.report.tables import counted

METRIC = "dice"


@dataclass(frozen=True, slots=True)
class Answer:
    headline: str
    sentences: tuple[str, ...] = ()  # the best method against each other one
    note: str = ""  # how they were found


def estimates(found: Gathered, metric: str = METRIC) -> dict[str, Estimate]:
    """Mean and interval of every method that has this score, in the order of the labels."""
    values = {label: found.scores_of(label, metric) for label in found.labels}
    return {
        label: estimate(scores, np.random.default_rng(0))
        for label, scores in values.items()
        if scores
    }


def ranked(found: Gathered, metric: str = METRIC) -> list[str]:
    """Methods with a score, the highest mean first."""
    known = estimates(found, metric)
    return sorted(known, key=lambda label: -known[label].mean)


def answers(found: Gathered) -> list[Answer]:
    """One for each dataset, since scores on different images cannot be compared."""
    if len(found.datasets) == 1 or found.has_data_by_seed:
        return [answer(found)]
    return [
        answer(Gathered(tuple(run for run in found.runs if run.dataset == dataset)))
        for dataset in found.datasets
    ]


def answer(found: Gathered) -> Answer:
    known = estimates(found)
    order = sorted(known, key=lambda label: -known[label].mean)
    if not order:
        return Answer("There is no answer yet: no run has scores of test cases.")
    best, others = order[0], order[1:]
    told = f"{known[best].mean:.3f}{interval(known[best])}"
    size = f"{counted(known[best].seeds, 'seed')} and {counted(known[best].cases, 'test case')}"
    if not others:
        return Answer(f"{best} scores a Dice of {told}, over {size}; there is no other to compare.")
    reference = found.scores_of(best, METRIC)
    effects = [
        # a generator for each: what is said of one method does not depend on the others
        effect(reference, found.scores_of(other, METRIC), np.random.default_rng(0))
        for other in others
    ]
    corrected = holm([each.p for each in effects])
    sure = [is_told(each, p) for each, p in zip(effects, corrected, strict=True)]
    unsure = [other for other, is_sure in zip(others, sure, strict=True) if not is_sure]
    headline = verdict(best, f"a Dice of {told}, over {size}", unsure, others)
    if any(sure) and max(each.estimate.seeds for each in effects) == 1:
        headline += " That is of these trainings: with one seed, another may turn it round."
    return Answer(
        headline,
        tuple(
            f"Against {other} ({known[other].mean:.3f}): {sentence(each, holm=p)}"
            f"{tests(each, p, len(others))}."
            for other, each, p in zip(others, effects, corrected, strict=True)
        ),
        explanation(effects),
    )


def verdict(best: str, mean: str, unsure: Sequence[str], others: Sequence[str]) -> str:
    if not unsure:
        count = len(others)
        against = {1: "the other", 2: "both others"}.get(count, f"all {count} others")
        return f"{best} is best: {mean}, and the difference from {against} is sure."
    if len(unsure) == len(others):
        return (
            f"No method can be told to be best. {best} has the highest mean, {mean}, but the "
            f"difference from {listed(unsure)} is not sure."
        )
    sure = [other for other in others if other not in unsure]
    return (
        f"{best} has the highest mean, {mean}. The difference from {listed(sure)} is sure, that "
        f"from {listed(unsure)} is not."
    )


def is_told(found: Effect, corrected: float) -> bool:
    """Whether `sentence` would tell this difference."""
    return found.estimate.low > 0 and corrected < LEVEL


def interval(known: Estimate) -> str:
    if math.isnan(known.low):
        return ""
    return f" (95 % interval {known.low:.3f} to {known.high:.3f})"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
