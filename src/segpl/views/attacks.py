"""Changes of an image that hurt a model most, bounded voxel by voxel.

Both attacks know the weights and the true label. Images are normalized and have no natural range,
so nothing is clipped but the change itself: `epsilon` is in deviations of the image.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from segpl.errors import InputError


class Objective(Protocol):
    """What is to be made larger: the loss of an image (C, *S)."""

    def loss(self, image: Tensor) -> float: ...
    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]: ...


def fgsm(image: Tensor, gradient: Tensor, epsilon: float) -> Tensor:
    r"""One step along the sign of the gradient [Goodfellow2015].

    $$\hat x = x + \epsilon\, \mathrm{sign}(\nabla_x L(x, y))$$
    """
    return image + epsilon * gradient.sign()


def pgd(
    image: Tensor,
    objective: Objective,
    epsilon: float,
    *,
    steps: int,
    start: tuple[float, Tensor] | None = None,
) -> Tensor:
    r"""Several smaller steps, each put back into the box around the image [Madry2018].

    $$x_{t+1} = \Pi_{\|\cdot - x\|_\infty \le \epsilon}
      \big(x_t + \tfrac{2.5\, \epsilon}{n}\, \mathrm{sign}(\nabla L(x_t, y))\big),
      \quad t = 0, \dots, n - 1$$

    Differs from the source: it begins at the image and not at a random place in the box, and gives
    the place of highest loss on its way, so that it never helps the model.

    Args:
        image: (C, *S).
        objective: asked once for each place, in the end for a loss alone.
        epsilon: how far a voxel may move.
        steps: $n$.
        start: loss and gradient of the image itself, which several `epsilon` share; none: asked.
    """
    if steps < 1:
        raise InputError(f"PGD of {steps} steps: it needs one at least, such as 10.")
    size = 2.5 * epsilon / steps
    change = image.new_zeros(image.shape)
    worst_loss, gradient = start or objective.loss_and_gradient(image)
    worst = image
    for _ in range(steps - 1):
        change = (change + size * gradient.sign()).clamp(-epsilon, epsilon)
        place = image + change
        loss, gradient = objective.loss_and_gradient(place)
        if loss > worst_loss:
            worst, worst_loss = place, loss
    last = image + (change + size * gradient.sign()).clamp(-epsilon, epsilon)
    return last if objective.loss(last) > worst_loss else worst
