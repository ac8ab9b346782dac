"""One table of several comparisons: dataset, budget, method, Dice over seeds, seconds.

    python benchmarks/table/table.py table/*

Folders are named DATASET-BUDGET or DATASET-BUDGET-PART, such as hippocampus-8, hippocampus-8-others
and hippocampus-all; the rows of parts are put together. Below the table: the share of the gap
between few and all labels that each method closes, and means over the datasets.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

ALL = "all"
MAIN = {"hippocampus": "8", "promise12": "5", "drive": "3"}  # budgets of docs/recipe.md
BASELINE = "supervised"


class Key(NamedTuple):
    dataset: str
    budget: str
    method: str


class Result(NamedTuple):
    dice: float
    seconds: float


Results = dict[Key, dict[int, Result]]  # of each seed


def read(folders: list[Path]) -> Results:
    """The folder named first counts where a training was repeated, as the baseline is."""
    found: Results = {}
    for folder in folders:
        if "-" not in folder.name:
            sys.exit(f"{folder}: name it DATASET-BUDGET, such as {folder.name}-8.")
        dataset, budget, *_ = folder.name.split("-")
        with (folder / "comparison.csv").open(newline="", encoding="utf-8") as handle:
            for row in csv.DictReader(handle):
                key, seed = Key(dataset, budget, row["method"]), int(row["seed"])
                if row["error"]:
                    sys.exit(f"{folder}: {key.method} of seed {seed} failed: {row['error']}")
                result = Result(float(row["dice"]), float(row["seconds"]))
                found.setdefault(key, {}).setdefault(seed, result)
    return found


def order(key: Key) -> tuple[str, float, bool, str]:
    budget = float("inf") if key.budget == ALL else float(key.budget)
    return key.dataset, budget, key.method != BASELINE, key.method


def mean(results: dict[int, Result]) -> float:
    return statistics.mean(result.dice for result in results.values())


def lines(found: Results) -> list[str]:
    text = ["| dataset | labels | method | Dice | seeds | seconds |", "| --- " * 6 + "|"]
    for key in sorted(found, key=order):
        scores = [result.dice for result in found[key].values()]
        spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
        seconds = statistics.mean(result.seconds for result in found[key].values())
        text.append(
            f"| {key.dataset} | {key.budget} | {key.method} | {mean(found[key]):.3f}{spread} | "
            f"{len(scores)} | {seconds:.0f} |"
        )
    return text


def closed(found: Results) -> list[str]:
    """Sentences on the gap between few labels and all of them."""
    text = []
    for key in sorted(found, key=order):
        few, most = Key(*key[:2], BASELINE), Key(key.dataset, ALL, BASELINE)
        if key.method == BASELINE or key.budget == ALL or few not in found or most not in found:
            continue
        low, high = mean(found[few]), mean(found[most])
        if low >= high:
            continue
        share = (mean(found[key]) - low) / (high - low)
        text.append(
            f"- {key.dataset}, {key.budget} labels: {key.method} closes {share:.0%} of the gap "
            f"from {low:.3f} to {high:.3f}."
        )
    return text


def overall(found: Results) -> list[str]:
    """The methods that all datasets have at their main budget, the best mean first."""
    means: dict[str, float] = {}
    for method in {key.method for key in found}:
        keys = [Key(*budget, method) for budget in MAIN.items()]
        if all(key in found for key in keys):
            means[method] = statistics.mean(mean(found[key]) for key in keys)
    rows = sorted(means, key=lambda method: -means[method])
    text = ["", "| method | mean Dice over the datasets |", "| --- " * 2 + "|"]
    return [*text, *(f"| {method} | {means[method]:.3f} |" for method in rows)] if rows else []


if __name__ == "__main__":
    results = read([Path(name) for name in sys.argv[1:]])
    print("\n".join([*lines(results), "", *closed(results), *overall(results)]))
