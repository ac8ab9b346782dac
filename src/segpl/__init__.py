"""Semi-supervised medical image segmentation from a few labeled and many unlabeled scans.

>>> import segpl
>>> run = segpl.train("data", out="runs/a")  # doctest: +SKIP
>>> run.predict("new_scans", out="masks")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segpl.evaluate.folders import evaluate_folders
    from segpl.experiments.folds import cross_validate
    from segpl.run import Run, load_run, train

__version__ = "0.1.0"
__all__ = ["Run", "cross_validate", "evaluate_folders", "load_run", "train"]


def __getattr__(name: str) -> Any:
    # imported on first use: torch takes seconds, and `segpl --help` does not need it
    if name in ("Run", "load_run", "train"):
        from segpl import run

        return getattr(run, name)
    if name == "evaluate_folders":
        from segpl.evaluate.folders import evaluate_folders

        return evaluate_folders
    if name == "cross_validate":
        from segpl.experiments.folds import cross_validate

        return cross_validate
    raise AttributeError(f"module 'segpl' has no attribute '{name}'")
