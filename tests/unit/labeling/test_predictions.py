"""Which network predicts the masks of the labeling page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from segpl.labeling.predictions import Predictions


@dataclass(frozen=True)
class Round:
    """A run, and how it predicts."""

    path: Path
    judge: str = "unused"

    @property
    def last(self) -> Path:
        return self.path

    @property
    def infer(self) -> Round:
        return self

    def prepare(self, options: object, **_: object) -> Round:
        return self


def test_the_network_of_a_new_round_replaces_the_former_one(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "segpl.labeling.predictions.load_run", lambda path, **_: read.append(path) or Round(path)
    )
    rounds = SimpleNamespace(trained=[])
    predictions = Predictions(rounds, tmp_path, None, "cpu")
    for name in ("first", "second"):
        path = tmp_path / name
        path.write_text(name)
        rounds.trained.append(Round(path))
        for _ in range(2):
            assert predictions.load() == (Round(path), Round(path, judge=None))
    assert read == [tmp_path / "first", tmp_path / "second"]  # each once
