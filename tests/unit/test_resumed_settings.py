"""The settings of a resumed run compared with its saved config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import PICTURES

from segpl.engine.folder import RunFolder
from segpl.settings import Config, changed_settings, resolve

PLAN = replace(PICTURES, width=32, lr=0.004)


@pytest.fixture
def plan(tmp_path) -> Path:
    path = tmp_path / "shared.json"
    PLAN.write(path)
    return path


def config(plan: Path, rate: float, **train: object) -> Config:
    return resolve({"data": {"path": "d", "plan": str(plan)}, "train": {"lr": rate, **train}})


def saved(tmp_path: Path, settings: Config, *, is_planned: bool) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text(settings.as_toml())
    if is_planned:
        PLAN.write(folder.plan)
    return folder


@pytest.mark.parametrize("is_planned", [True, False])
def test_planned_rate_equals_the_saved_rate_of_that_plan(tmp_path, plan, is_planned):
    """Even if the run was killed before it wrote its own plan."""
    folder = saved(tmp_path, config(plan, 0.004), is_planned=is_planned)
    assert changed_settings(folder, config(plan, 0), ignore=()) == []


def test_own_plan_is_used_if_the_shared_one_is_gone(tmp_path, plan):
    folder = saved(tmp_path, config(plan, 0.004), is_planned=True)
    plan.unlink()
    assert changed_settings(folder, config(plan, 0), ignore=()) == []


def test_plan_derived_again_elsewhere_is_no_change(tmp_path, plan):
    """Its reasons name the memory that was free."""
    folder = saved(tmp_path, config(tmp_path / "elsewhere.json", 0.004), is_planned=True)
    replace(PLAN, reasons={"batch": "at most 4, with 3.1 GiB of memory"}).write(plan)
    assert changed_settings(folder, config(plan, 0.004), ignore=()) == []


def test_shared_plan_with_another_rate_is_a_change(tmp_path, plan):
    folder = saved(tmp_path, config(plan, 0.004), is_planned=True)
    replace(PLAN, lr=0.001).write(plan)
    assert changed_settings(folder, config(plan, 0), ignore=()) == ["train.lr (0.004 -> 0.001)"]


def test_only_ignored_settings_may_differ(tmp_path, plan):
    folder = saved(tmp_path, config(plan, 0.004), is_planned=True)
    wanted = config(plan, 0.004, steps=7, balance=True)
    changed = changed_settings(folder, wanted, ignore=("train.steps",))
    assert changed == ["train.balance (False -> True)"]


def test_other_planned_rate_is_a_change(tmp_path, plan):
    folder = saved(tmp_path, config(plan, 0.3), is_planned=True)
    assert changed_settings(folder, config(plan, 0), ignore=()) == ["train.lr (0.3 -> 0.004)"]
