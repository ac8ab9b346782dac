"""Scores: one row per case, class and metric, their file, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from segpl.data.masks import in_areas
from segpl.errors import MissingFileError, count_noun
from segpl.evaluate.metrics import empty_policy
from segpl.files import write_text
from segpl.records import csv_text, read_table

HEADER = ("case", "class", "metric", "value", "unit", "empty")


@dataclass(frozen=True, slots=True)
class Score:
    """The fields are the columns of `scores.csv`."""

    case: str
    class_name: str
    metric: str
    value: float
    unit: str = ""  # 'mm', 'ml', ...; the tolerance of surface Dice, 'at 1 mm'
    empty: str = ""  # masks without the class: 'no', 'both', 'prediction', 'label'; '': unknown


def with_percentages(scores: Iterable[Score]) -> list[Score]:
    """The scores with volume errors in percent, for tables; `scores.csv` has fractions."""
    return [
        replace(one, value=100 * one.value, unit="%") if one.metric == "volume_error" else one
        for one in scores
    ]


def empty_note(scores: Sequence[Score]) -> str:
    """Footnote of a table: the score of empty masks, and how often it was needed."""
    policy = empty_policy(score.metric for score in scores)
    policy = in_areas(policy, (score.unit for score in scores))
    pairs = {(score.case, score.class_name): score.empty for score in scores}
    counts = Counter(pairs.values())
    if not policy or counts[""]:
        return policy
    if counts["no"] == len(pairs):
        return "No prediction or label is empty."
    of = f"of {count_noun(len(pairs), 'pair')} of case and class"
    named = {"both": "both", "prediction": "only the prediction", "label": "only the label"}
    details = ", ".join(f"{words} {counts[key]}" for key, words in named.items())
    return f"{policy} This applies to {len(pairs) - counts['no']} {of} ({details})."


def write_scores(path: Path, scores: list[Score]) -> None:
    write_text(path, csv_text([HEADER, *map(astuple, scores)]))


def read_scores(path: Path) -> list[Score]:
    if not path.is_file():
        raise MissingFileError(
            f"{path} does not exist. Write it with `segpl evaluate PREDICTIONS LABELS --out "
            f"{path}`."
        )
    return read_table(path, Score, HEADER, "Write the file again with `segpl evaluate`.")
