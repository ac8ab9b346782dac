"""Semi-supervised medical image segmentation from a few labeled and many unlabeled scans.

>>> import segpl
>>> run = segpl.train("data")  # doctest: +SKIP
>>> run.predict("new_scans", out="masks")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import segpl.report as _report_package  # an empty module; see below

if TYPE_CHECKING:
    from segpl.api import check, compare, next_cases
    from segpl.evaluate.folders import evaluate_folders
    from segpl.experiments.folds import cross_validate
    from segpl.predict.inference import PredictedImage
    from segpl.run import Run, load_run
    from segpl.training import train

__version__ = "0.1.0"
__all__ = [
    "PredictedImage",
    "Run",
    "check",
    "compare",
    "cross_validate",
    "evaluate_folders",
    "load_run",
    "next_cases",
    "report",
    "train",
]
_HOMES = {
    "PredictedImage": "segpl.predict.inference",
    "check": "segpl.api",
    "compare": "segpl.api",
    "cross_validate": "segpl.experiments.folds",
    "evaluate_folders": "segpl.evaluate.folders",
    "Run": "segpl.run",
    "load_run": "segpl.run",
    "next_cases": "segpl.api",
    "train": "segpl.training",
}


class _CallableModule(ModuleType):
    """`segpl.report` is both a function and the package of its parts."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("segpl.api").report(*args, **options)


_report_package.__class__ = _CallableModule


def __getattr__(name: str) -> Any:
    # imported on first use: torch takes seconds, and `segpl --help` does not need it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'segpl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
