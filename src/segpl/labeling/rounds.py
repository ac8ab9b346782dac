"""Training in the background: each round is a run that starts from the weights of the last one."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from segpl.data.split import Split
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError, UserError, count_noun
from segpl.evaluate.fold_scores import read_fold_scores
from segpl.evaluate.statistics import bland_altman, mean_by_key
from segpl.records import read_csv
from segpl.settings import read_config, resolve

MOST_FOLDS = 5
MOST_POINTS = 400  # of a curve in the browser
LAST_LINES = 12  # of the output before an error
WORTHWHILE = 0.01  # gain in Dice


@dataclass(frozen=True, slots=True)
class Round:
    """A trained run of the loop."""

    folder: str
    labels: int
    case_dice: Mapping[str, float]  # of its cross-validation; empty without one

    @property
    def dice(self) -> float | None:
        """Expected Dice: the mean of the cross-validation; None without one."""
        return statistics.fmean(self.case_dice.values()) if self.case_dice else None

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        values = [*self.case_dice.values()]
        return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


class Rounds:
    """The runs BASE, BASE-2, BASE-3 and so on, and the process that trains the next one."""

    def __init__(
        self, base: Path, data: Path, labels: Path | None, output: Path, options: Sequence[str] = ()
    ) -> None:
        self.base, self.data, self.labels = base.resolve(), data, labels
        self.output = output  # what the training process prints
        self.options = tuple(options)  # of the first round
        self.process: subprocess.Popen[bytes] | None = None
        self.current: Path | None = None  # run that the process trains
        self.lock = Lock()

    def folder(self, number: int) -> RunFolder:
        name = self.base.name if number == 1 else f"{self.base.name}-{number}"
        return RunFolder(self.base.with_name(name))

    @property
    def started(self) -> list[RunFolder]:
        found: list[RunFolder] = []
        while (folder := self.folder(len(found) + 1)).config.exists():
            found.append(folder)
        return found

    @property
    def trained(self) -> list[RunFolder]:
        """Runs with weights, except one that is being trained: its weights are not good yet."""
        found = [folder for folder in self.started if folder.last.exists()]
        return [one for one in found if not (self.is_training and one.path == self.current)]

    @property
    def is_training(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(
        self, labeled: Collection[str] = (), *, steps: int | None = None, folds: int | None = None
    ) -> None:
        """Train the next round, or resume the last one if it is incomplete."""
        with self.lock:
            if self.is_training:
                raise InputError("training is already in progress. Wait for it, or stop it.")
            arguments = self.command(labeled, steps=steps, folds=folds)
            self.current = Path(arguments[arguments.index("--out") + 1])
            command = [sys.executable, "-m", "segpl", *arguments]
            self.output.parent.mkdir(parents=True, exist_ok=True)
            with self.output.open("wb") as output:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C stops the server, which then stops this
                )

    def command(
        self, labeled: Collection[str] = (), *, steps: int | None = None, folds: int | None = None
    ) -> list[str]:
        """The arguments of `segpl` for the next round; `labeled` are the cases that have a label.

        An incomplete round is resumed, unless there are new labels, or folds that would start from
        weights that have seen their held-out cases.
        """
        started = self.started
        chosen = ["--folds", str(folds)] if folds else []
        if started and not is_complete(last := started[-1]) and not has_new(last, labeled):
            has_seen_cases = folds and train_settings(last).start
            if not has_seen_cases:
                return ["train", "--out", str(last.path), "--resume", *chosen]
        out = ["--out", str(self.folder(len(started) + 1).path)]
        chosen += ["--steps", str(steps)] if steps else []
        if self.labels:
            chosen += ["--set", f"data.labels={self.labels.resolve()}"]
        if not started:
            return ["train", str(self.data), *out, *self.options, *chosen]
        trained = [folder for folder in started if folder.last.exists()]
        weights = trained[-1].path if trained and not folds else ""
        return ["train", str(started[-1].config), *out, *chosen, "--set", f"train.start={weights}"]

    def stop(self) -> None:
        """Stop training; it saves its current step."""
        if self.process is not None and self.is_training:
            self.process.terminate()
            self.process.wait()

    @property
    def failure(self) -> str:
        """The error of the last training run if it failed, then the output before it."""
        if self.process is None or not self.process.poll() or self.process.returncode in (-15, 143):
            return ""
        lines = self.output.read_text(errors="replace").strip().split("\n")
        starts = [at for at, line in enumerate(lines) if line.startswith("error: ")]
        start = starts[-1] if starts else len(lines) - 1
        earlier = lines[max(0, start - LAST_LINES) : start]
        return "\n".join(
            [*lines[start:], *(["", "Output before the error:"] if earlier else []), *earlier]
        )

    def summary(self) -> list[Round]:
        """The trained rounds with their number of labels and their expected Dice."""
        found = []
        for folder in self.trained:
            with suppress(UserError):  # a run that is being written
                labels = len(Split.read(folder.split).labeled)
                found.append(Round(folder.path.name, labels, case_dice(folder)))
        return found

    @property
    def log(self) -> Path | None:
        """The log that was written last: of the latest run, or of one of its folds."""
        if not self.started:
            return None
        run = self.started[-1]
        logs = [path for path in (run.log, *run.path.glob("fold-*/log.csv")) if path.exists()]
        return max(logs, key=lambda path: path.stat().st_mtime_ns, default=None)

    @property
    def fold(self) -> int | None:
        """The fold in training, from 1; None in the final training."""
        name = self.log.parent.name if self.is_training and self.log else ""
        return int(name.removeprefix("fold-")) + 1 if name.startswith("fold-") else None

    def curve(self) -> list[tuple[int, float]]:
        """Step and labeled loss of the latest training."""
        with suppress(UserError, ValueError, IndexError):
            header, *rows = read_csv(self.log) if self.log else [[]]
            column = header.index("supervised")
            points = [(int(row[0]), float(row[column])) for row in rows if len(row) == len(header)]
            return points[:: -max(1, -(-len(points) // MOST_POINTS))][::-1]
        return []

    @property
    def steps(self) -> int:
        """Steps of the latest run; 0 if unknown."""
        with suppress(UserError, IndexError):
            return train_settings(self.started[-1]).steps
        return 0

    @property
    def stopped(self) -> str:
        """The latest run if it was stopped before its last step."""
        with suppress(UserError, IndexError):
            last = self.started[-1]
            return "" if self.is_training or is_complete(last) else last.path.name
        return ""


def has_new(folder: RunFolder, labeled: Collection[str]) -> bool:
    """Whether cases have got a label since a run was started."""
    if not folder.split.exists():
        return False
    split = Split.read(folder.split)
    return not {*split.labeled, *split.validation, *split.test, *split.hidden}.issuperset(labeled)


def is_complete(folder: RunFolder) -> bool:
    """Whether a run has taken all its steps."""
    if not folder.last.exists():
        return False
    rows = read_csv(folder.log) if folder.log.exists() else []
    steps = train_settings(folder).steps
    return bool(rows) and rows[-1][0].isdigit() and int(rows[-1][0]) >= steps


def train_settings(folder: RunFolder) -> TrainSettings:
    return resolve(read_config(folder.config), str(folder.config)).train


def case_dice(folder: RunFolder) -> dict[str, float]:
    """Dice of each case in a cross-validation; empty without one."""
    rows = read_fold_scores(folder.folds)
    return mean_by_key((row.case, row.dice) for row in rows)


def gain_advice(rounds: Sequence[Round]) -> str:
    """Whether the latest labels improved the Dice of the scans held out in both rounds."""
    known = [one for one in rounds if one.case_dice]
    if len(known) < 2 or known[-1].labels <= known[-2].labels:
        return ""
    before, after = known[-2:]
    change = bland_altman(after.case_dice, before.case_dice)
    count, more = len(change.differences), after.labels - before.labels
    if count < 2:
        return "Too few scans were cross-validated in both rounds to compare them."
    low, high = max(-1, change.bias - change.reach), min(1, change.bias + change.reach)
    if high < WORTHWHILE:
        verdict = f"More labels are unlikely to gain {WORTHWHILE} Dice."
    elif low > 0:
        verdict = "More labels are likely to help."
    else:
        verdict = "This is too uncertain to say whether more labels help."
    return (
        f"{count_noun(more, 'more label')} changed the expected Dice of the {count} scans in "
        f"both rounds by {change.bias:+.3f} (95 % confidence interval {low:+.3f} to "
        f"{high:+.3f}). " + verdict
    )
