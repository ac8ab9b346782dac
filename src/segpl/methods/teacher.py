"""A teacher: a second network whose weights are the moving average of the student's."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from segpl.errors import unknown
from segpl.methods.base import Method
from segpl.methods.settings import MethodSettings
from segpl.networks.network import Network

DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
TEACHER_OR_STUDENT = ("teacher", "student")


@dataclass(frozen=True)
class TeacherSettings(MethodSettings):
    predict_by: str = "teacher"  # network that predicts: `teacher` or `student`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predict_by not in TEACHER_OR_STUDENT:
            raise unknown("method.predict_by", self.predict_by, TEACHER_OR_STUDENT)


class TeacherMethod(Method):
    """A method with a teacher: the moving average of `network`, the student that learns."""

    settings: TeacherSettings

    def __init__(self, build: Callable[[], Network], settings: TeacherSettings) -> None:
        super().__init__(build, settings)
        self.teacher = make_teacher(self.network)

    @abstractmethod
    def decay(self, steps: int) -> float:
        """Fraction of its weights that the teacher keeps at optimizer step number `steps`."""

    def after_update(self, steps: int) -> None:
        update_teacher(self.teacher, self.network, self.decay(steps), steps)

    def predictors(self) -> list[Network]:
        return [self.teacher if self.settings.predict_by == "teacher" else self.network]


def make_teacher(network: Network) -> Network:
    """A frozen copy that starts with the weights of `network`."""
    return copy.deepcopy(network).freeze()


@torch.no_grad()
def update_teacher(teacher: Network, student: Network, decay: float, steps: int) -> None:
    r"""Move the teacher toward the student by an exponential moving average (EMA).

    $$\theta' \leftarrow a\,\theta' + (1 - a)\,\theta, \quad a = \min(1 - 1/(n + 1), \alpha)$$

    with $\alpha$ `decay` and $n$ `steps`, the number of optimizer steps so far. In the first
    steps the teacher is the plain mean of all students, initial weights included
    [TarvainenValpola2017].

    Differs from the source: statistics of batch normalization are averaged too, because our
    teachers never collect their own. Integers such as batch counters are copied.
    """
    decay = min(1 - 1 / (steps + 1), decay)
    pairs = list(
        zip(
            chain(teacher.parameters(), teacher.buffers()),
            chain(student.parameters(), student.buffers()),
            strict=True,
        )
    )
    averaged = [pair for pair in pairs if pair[0].is_floating_point()]
    # one kernel launch for all weights: hundreds of small ones would keep a GPU waiting
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # untyped in torch
    average([own for own, _ in averaged], [new for _, new in averaged], 0)
    for own, new in pairs:
        if not own.is_floating_point():
            own.copy_(new)


def growing_decay(horizon: float, steps: int) -> float:
    """Decay of an EMA over the last `horizon`, a fraction, of the `steps` taken so far."""
    return 1 - 1 / (horizon * steps + 1)


@contextmanager
def with_dropout(network: Network) -> Iterator[None]:
    """Enable dropout in a network in evaluation mode, and nothing else."""
    inactive = [m for m in network.modules() if isinstance(m, DROPOUTS) and not m.training]
    for layer in inactive:
        layer.train()
    try:
        yield
    finally:
        for layer in inactive:
            layer.eval()
