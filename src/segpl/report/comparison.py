"""Methods compared with a reference: the sentence, the table, and how the numbers were computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from segpl.errors import count_noun
from segpl.evaluate.statistics import (
    BOOTSTRAP_SAMPLES,
    SIGNIFICANCE,
    BySeed,
    Difference,
    case_means,
    compare_with,
    smallest_p,
)
from segpl.report.tables import Table, interval, mean_and_std, mean_of, p_text, signed_number

FEW_SEEDS = 5  # below, bootstrap intervals may be far too narrow


def describe(name: str, reference: str, found: Difference, *, comparisons: int = 1) -> str:
    """One sentence about `name` compared with `reference`, in units of Dice."""
    known = found.estimate
    left_out = (
        f" Left out: {count_noun(found.left_out, 'pair')} of seed and case without two scores."
        if found.left_out
        else ""
    )
    if not known.cases:
        return f"{name} and {reference} have no scored case of the same seed in common.{left_out}"
    cases = count_noun(known.cases, "case")
    if not (found.higher or found.lower or known.low < known.high):
        return f"{name} and {reference} have the same Dice in {cases}.{left_out}"
    size = f"{abs(known.mean):.{3 if abs(known.mean) >= 0.001 else 4}f}"
    is_higher = known.mean >= 0
    agreeing = found.higher if is_higher else found.lower
    detail = f"{'higher' if is_higher else 'lower'} in {agreeing} of {cases}"
    if math.isfinite(known.low):
        test = "Holm-corrected p" if comparisons > 1 else "p"
        p = p_text(found.corrected)
        shown = p if p.startswith("<") else f"= {p}"
        detail = f"95 % CI {interval(known.low, known.high, signed=True)}; {detail}; {test} {shown}"
    if found.is_significant:
        direction = "higher" if is_higher else "lower"
        text = f"{name} scores {size} Dice {direction} than {reference}"
    else:
        sign = "+" if is_higher else "-"
        text = f"No significant difference between {name} and {reference}: {sign}{size} Dice"
    return f"{text} ({detail}).{left_out}"


def how_compared(found: Sequence[Difference]) -> str:
    """How differences were tested, and what the numbers of seeds and cases allow."""
    correction = f", Holm-corrected for {len(found)} comparisons" if len(found) > 1 else ""
    text = (
        "Differences are paired by seed and case. 95 % CI: bootstrap over seeds and cases "
        f"({BOOTSTRAP_SAMPLES:,} samples). p: Wilcoxon signed-rank test over cases, each averaged "
        f"over seeds{correction}. A difference is significant if its interval excludes 0 and "
        f"p < {SIGNIFICANCE}."
    )
    seeds = max((each.estimate.seeds for each in found), default=0)
    cases = max((each.estimate.cases for each in found), default=0)
    if seeds == 1:
        text += " There is only one seed: another training run may differ by more."
    elif 1 < seeds < FEW_SEEDS:
        text += f" With only {count_noun(seeds, 'seed')} the intervals tend to be too narrow."
    if cases and smallest_p(cases, len(found)) >= SIGNIFICANCE:
        text += f" With {count_noun(cases, 'case')}, p cannot reach {SIGNIFICANCE}."
    return text


def significantly_best(
    scores: Mapping[str, BySeed], direction: Literal["high", "low"] = "high"
) -> str | None:
    """The method that is significantly better than every other one; None without one."""
    means = {label: mean_of(seed_means(values)) for label, values in scores.items() if values}
    if len(means) < 2:
        return None
    best = (max if direction == "high" else min)(means, key=lambda label: means[label])
    others = {label: scores[label] for label in means if label != best}
    differences = compare_with(scores[best], others)
    return best if all(each.is_significant for each in differences.values()) else None


def comparison_table(
    reference: str, scores: Mapping[str, BySeed], *, cases: str, failed: Sequence[str] = ()
) -> Table:
    """The reference, then every method with its difference from it.

    `scores` are Dice by label, seed and case, `cases` is "validation" or "test".
    """
    others = {label: values for label, values in scores.items() if label != reference}
    found = compare_with(scores[reference], others)
    rows = [[reference, mean_and_std(seed_means(scores[reference])), *[""] * 4]]
    for label, each in found.items():
        known = each.estimate
        rows.append(
            [
                label,
                mean_and_std(seed_means(scores[label])),
                signed_number(known.mean) if known.cases else "-",
                interval(known.low, known.high, signed=True),
                f"{each.higher} of {known.cases}" if known.cases else "-",
                p_text(each.corrected),
            ]
        )
    seeds = max((len(values) for values in scores.values()), default=0)
    count = max((len(case_means(values)) for values in scores.values()), default=0)
    notes = [
        f"Mean{' ± standard deviation' if seeds > 1 else ''} over {count_noun(seeds, 'seed')}, "
        f"{count_noun(count, f'{cases} case')}. Difference from {reference}; bold if significant.",
        how_compared(list(found.values())),
    ]
    if failed:
        notes.append(f"Failed or not trained yet, and left out: {', '.join(failed)}.")
    return Table(
        columns=["method", "Dice", "difference", "95 % CI", "higher in", "p"],
        rows=rows,
        note=" ".join(notes),
        bold=frozenset(
            (row, 2) for row, each in enumerate(found.values(), 1) if each.is_significant
        ),
    )


def seed_means(values: BySeed) -> list[float]:
    """The mean over cases of each seed."""
    return [mean_of(cases.values()) for cases in values.values()]
