"""Adversarial attacks with a bound per voxel.

Both attacks know the weights and the true label. Normalized images have no natural range, so only
the perturbation is clipped. `epsilon` is in standard deviations of the image.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """The loss of an image (C, *S), which an attack maximizes."""

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
    r"""Projected gradient descent: several small steps inside the epsilon box [Madry2018].

    $$x_{t+1} = \Pi_{\|\cdot - x\|_\infty \le \epsilon}
      \big(x_t + \tfrac{2.5\, \epsilon}{n}\, \mathrm{sign}(\nabla L(x_t, y))\big),
      \quad t = 0, \dots, n - 1$$

    Differs from the source: it starts at the image, not at a random point of the box, and returns
    the point of highest loss on its path, so it never helps the model. `start` is the loss and
    gradient at the image, to share between several `epsilon`.
    """
    size = 2.5 * epsilon / steps
    change = image.new_zeros(image.shape)
    highest, gradient = start or objective.loss_and_gradient(image)
    worst = image
    for _ in range(steps - 1):
        change = (change + size * gradient.sign()).clamp(-epsilon, epsilon)
        point = image + change
        loss, gradient = objective.loss_and_gradient(point)
        if loss > highest:
            worst, highest = point, loss
    last = image + (change + size * gradient.sign()).clamp(-epsilon, epsilon)
    return last if objective.loss(last) > highest else worst
