"""Simulate labeling: does choosing scans with `segpl next` beat random selection?

Every seed starts with the same few labels for all rules. In each round, every rule chooses scans
with the run trained so far, they get their label, and a new run is trained from scratch. Labels of
other scans are never opened. The same command resumes where it stopped; to use several GPUs, give
each of them other seeds and the same --out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from segpl.assembly import prepare_inputs
from segpl.data.cache import load_volumes
from segpl.data.case import Dataset
from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.engine.distributed import ALONE
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.statistics import compare_with, estimate
from segpl.evaluate.validation import dice_by_class
from segpl.files import write_text
from segpl.labeling.measures import ScanPool, find_candidates, measure_pool
from segpl.labeling.ranking import RANKING_RULES, rank_pool
from segpl.predict.samples import average_views
from segpl.predict.window import predict_windows
from segpl.records import csv_text, write_json
from segpl.report.figures import PANEL, draw_band, draw_line, legend_below, panel
from segpl.run import Run, load_run
from segpl.settings import Config, resolve, with_overrides
from segpl.training import train_config

START = "start"  # the run that all rules of a seed share
REFERENCE = "random"
SCORES = "score.json"  # of a finished run
COLUMNS = ("seed", "rule", "labels", "case", "dice")
Scores = Mapping[str, float]  # case -> Dice, the mean over classes


@dataclass(frozen=True)
class Row:
    seed: int
    rule: str
    labels: int
    case: str
    dice: float


@dataclass(frozen=True)
class Simulation:
    """One seed: the cases to choose from, and those to score on."""

    out: Path
    config: Config
    dataset: Dataset
    plan: Plan
    start: Split

    @property
    def seed(self) -> int:
        return self.config.train.seed

    def train(self, name: str, labeled: Sequence[str]) -> Run:
        folder = RunFolder(self.out / f"seed{self.seed}" / f"{name}-{len(labeled)}")
        pool = (*self.start.labeled, *self.start.unlabeled)
        unlabeled = tuple(sorted(set(pool) - set(labeled)))
        split = replace(
            self.start, labeled=tuple(sorted(labeled)), unlabeled=unlabeled, hidden=unlabeled
        )
        if not folder.config.exists():
            split.write(folder.split)
            self.plan.write(folder.plan)
        elif not Split.read(folder.split).has_same_cases(split):
            raise InputError(f"{folder.path} was trained on other cases. Choose another --out.")
        if not (folder.path / SCORES).exists():
            train_config(self.config, folder, budget=None, processes=ALONE, quiet=True)
        return load_run(folder.path, device=self.config.train.device, quiet=True)

    def score(self, run: Run) -> Scores:
        path = run.path / SCORES
        if not path.exists():
            write_json(path, dict(self.dice(run)))
        scores: Scores = json.loads(path.read_text(encoding="utf-8"))
        return scores

    def dice(self, run: Run) -> Iterator[tuple[str, float]]:
        cases = [self.dataset.case(name) for name in self.start.test]
        predict = average_views(run.method.predict, run.plan, mirrors=run.mirrors)
        for volume in load_volumes(cases, run.plan, labeled=self.start.test):
            image = torch.from_numpy(np.array(volume.image)).to(run.device)
            maps = predict_windows(image, predict, run.plan).cpu().numpy()
            values = dice_by_class(maps, np.asarray(volume.label), run.plan)
            yield volume.name, float(np.mean(list(values.values())))


def simulate(simulation: Simulation, rules: Sequence[str], add: int, rounds: int) -> None:
    """Train and score all runs of one seed; every run folder keeps its scores and choices."""
    first = simulation.train(START, simulation.start.labeled)
    tell(simulation, START, first, simulation.score(first))
    first_pool = pool_of(first)
    for rule in rules:
        pool, labeled = first_pool, list(simulation.start.labeled)
        for number in range(rounds):
            found = rank_pool(pool, rule=rule, count=add, round=number, seed=simulation.seed)
            labeled += [one.case for one in found]
            run = simulation.train(rule, labeled)
            write_json(run.path / "chosen.json", [asdict(one) for one in found])
            tell(simulation, rule, run, simulation.score(run))
            if number + 1 < rounds:
                pool = pool_of(run)


def pool_of(run: Run) -> ScanPool:
    return measure_pool(run, find_candidates(run), quiet=True)


def tell(simulation: Simulation, rule: str, run: Run, scores: Scores) -> None:
    mean, count = np.mean(list(scores.values())), len(run.split.labeled)
    print(f"seed {simulation.seed}, {rule}, {count} labels: Dice {mean:.4f}", flush=True)


def collect(out: Path, rules: Sequence[str]) -> list[Row]:
    """The scores of all finished runs in `out`; the shared start counts for every rule."""
    rows = []
    for path in sorted(out.glob(f"seed*/*/{SCORES}")):
        name, _, labels = path.parent.name.rpartition("-")
        seed = int(path.parents[1].name.removeprefix("seed"))
        scores: Scores = json.loads(path.read_text(encoding="utf-8"))
        for rule in rules if name == START else [name] if name in rules else []:
            rows += [Row(seed, rule, int(labels), case, dice) for case, dice in scores.items()]
    return rows


def by_seed(rows: Sequence[Row], rule: str, labels: Sequence[int]) -> dict[int, dict[str, float]]:
    """Mean Dice over numbers of labels: seed -> case -> Dice."""
    found: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        if row.rule == rule and row.labels in labels:
            found.setdefault(row.seed, {}).setdefault(row.case, []).append(row.dice)
    return {
        seed: {case: float(np.mean(values)) for case, values in cases.items()}
        for seed, cases in found.items()
    }


def table(rows: Sequence[Row], rules: Sequence[str]) -> str:
    """Markdown: Dice by number of labels, and the mean difference from random selection."""
    labels = sorted({row.labels for row in rows})
    later = labels[1:]
    others = [rule for rule in rules if rule != REFERENCE]
    differences = (
        compare_with(
            by_seed(rows, REFERENCE, later), {rule: by_seed(rows, rule, later) for rule in others}
        )
        if REFERENCE in rules
        else {}
    )
    head = ["rule", *(f"{count} labels" for count in labels), f"minus {REFERENCE}", "p"]
    lines = [head, ["---"] * len(head)]
    for rule in rules:
        means = [estimate(by_seed(rows, rule, [count])) for count in labels]
        cells = [f"{one.mean:.3f} ({one.low:.3f} to {one.high:.3f})" for one in means]
        if found := differences.get(rule):
            known = found.estimate
            cells += [f"{known.mean:+.4f} ({known.low:+.4f} to {known.high:+.4f})"]
            cells += [f"{found.corrected:.3f}"]
        else:
            cells += ["", ""]
        lines.append([rule, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: Sequence[Row], rules: Sequence[str], path: Path) -> None:
    """Mean Dice and its 95 % interval against the number of labels."""
    figure, axes = panel(x="labeled scans", y="Dice", height=PANEL[1] + 0.13 * len(rules))
    for index, rule in enumerate(rules):
        labels = sorted({row.labels for row in rows if row.rule == rule})
        points = [estimate(by_seed(rows, rule, [count])) for count in labels]
        lows, highs = [one.low for one in points], [one.high for one in points]
        draw_band(axes, labels, lows, highs, index)
        draw_line(axes, labels, [one.mean for one in points], index, rule, marker="o")
    axes.set_xticks(sorted({row.labels for row in rows}))
    legend_below(axes)
    figure.savefig(path, dpi=160)


def make_simulation(args: argparse.Namespace, seed: int) -> Simulation:
    content = {
        "data": {"path": str(args.data.resolve())},
        "split": {"labeled": args.start, "test": args.test, "draw": seed},
        "method": {"name": args.method},
        "train": {
            "steps": args.steps,
            "batch": args.batch,
            "lr": args.lr,
            "seed": seed,
            "device": args.device,
        },
        "network": {"width": args.width, "residual": True},
        "augment": {"affine": 0.5, "mirror": 0.5, "scanner": 0.3, "blur": 1.0},
    }
    config = resolve(with_overrides(content, args.set))
    inputs = prepare_inputs(config, None, quiet=True)
    split = inputs.split
    if not split.test:
        raise InputError(f"{args.data} has no test cases to score on. Hold some out with --test N.")
    needed = args.add * args.rounds
    if len(split.hidden) < needed:
        raise InputError(
            f"{args.data} has {len(split.hidden)} more labels for training, but the simulation "
            f"adds {needed}. Lower --rounds or --add."
        )
    # scans without any label cannot be chosen
    split = replace(split, unlabeled=split.hidden)
    return Simulation(args.out, config, inputs.dataset, inputs.plan, split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rules", nargs="+", choices=RANKING_RULES, default=list(RANKING_RULES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--start", type=int, default=2, help="labels at the start")
    parser.add_argument("--add", type=int, default=2, help="labels added in each round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--method", default="bpl-mix")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.0025)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    for seed in args.seeds:
        simulate(make_simulation(args, seed), args.rules, args.add, args.rounds)
    rows = collect(args.out, args.rules)
    write_text(args.out / "dice.csv", csv_text([COLUMNS, *map(astuple, rows)]))
    draw(rows, args.rules, args.out / "dice.png")
    print(table(rows, args.rules))


if __name__ == "__main__":
    main()
