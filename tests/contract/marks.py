"""Decorators by which a test becomes a promise of everything that is registered."""

from __future__ import annotations

import pytest

from segpl.losses import LOSSES
from segpl.methods.base import METHODS

every_method = pytest.mark.parametrize("name", METHODS.names)
every_loss = pytest.mark.parametrize("loss", list(LOSSES))
both_dims = pytest.mark.parametrize("dims", [2, 3])
both_tasks = pytest.mark.parametrize("classes", [2, 3])  # binary, and one sigmoid for each class

USERS = [name for name, kind in METHODS.classes.items() if kind.needs_unlabeled]
every_one_vs_rest = pytest.mark.parametrize(
    "name", [name for name, kind in METHODS.classes.items() if kind.one_vs_rest]
)
every_user_of_unlabeled = pytest.mark.parametrize("name", USERS)
