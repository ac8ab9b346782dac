"""What each method of a comparison is worth against the baseline, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segpl.evaluate.paired import holm
from segpl.evaluate.statistics import LEVEL, BySeed, Effect, effect, p_text, sentence
from segpl.report.comparison.outcomes import Outcome

METHOD = (
    "In words: Dice in hundredths, the mean over seeds and cases of the differences at equal seeds "
    "and cases. Intervals are percentiles of 10,000 resamples of seeds, and of cases below them; "
    "with few seeds they are too narrow. p is Wilcoxon's over cases, each the mean over its seeds"
    "{corrected}; it knows nothing of how seeds differ. A difference is told where the interval "
    "leaves out 0 and p is below 0.05."
)


def comparison_words(
    outcomes: Sequence[Outcome], baseline: str, *, own_cases: bool = False
) -> list[str]:
    """One sentence for each method against the baseline, then how they were found.

    Args:
        outcomes: all trainings; those that failed have no scores, and their pairs are left out.
        baseline: the method that the others are held against.
        own_cases: every seed has images of its own, even if they have the same names.
    """
    methods = [name for name in dict.fromkeys(o.method for o in outcomes) if name != baseline]
    reference = scores_of(outcomes, baseline, own_cases=own_cases)
    # a generator for each: what is said of one method does not depend on the others
    found = {
        name: effect(
            scores_of(outcomes, name, own_cases=own_cases), reference, np.random.default_rng(0)
        )
        for name in methods
    }
    corrected = holm([each.p for each in found.values()])
    lines = [
        f"{name} against {baseline}: {sentence(each, holm=p)}{tests(each, p, len(methods))}."
        for (name, each), p in zip(found.items(), corrected, strict=True)
    ]
    return [*lines, explanation(list(found.values()))] if lines else []


def scores_of(outcomes: Sequence[Outcome], method: str, *, own_cases: bool) -> BySeed:
    """The Dice of each seed and case, mean over classes."""
    return {
        o.seed: {(o.seed, case) if own_cases else case: v for case, v in o.by_case("dice").items()}
        for o in outcomes
        if o.method == method
    }


def tests(found: Effect, corrected: float, methods: int) -> str:
    if not found.estimate.cases:
        return ""
    by_holm = f", by Holm {p_text(corrected)}" if methods > 1 else ""
    return f"; p {p_text(found.p)}{by_holm}"


def explanation(found: Sequence[Effect]) -> str:
    count = len(found)
    text = METHOD.format(corrected=f", corrected by Holm for {count} methods" * (count > 1))
    most = max(each.estimate.cases for each in found)
    # all signs the same, both ways
    if most and count * 2 ** (1 - most) >= LEVEL:
        text += f" With {most} case{'s' * (most > 1)} p never is: hold more out with --test."
    return text
