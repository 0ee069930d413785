"""Muon: momentum with orthogonal updates; a tiny transformer learns to read several times faster than by AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPSILON = 1e-7


def orthogonalise(matrix: Tensor) -> Tensor:
    """Returns approximately U V^T of the singular value decomposition U S V^T of `matrix`, shape (m, n).

    Five Newton-Schulz iterations X <- a X + (b A + c A^2) X with A = X X^T; singular values end between 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + _EPSILON)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for the matrices inside a transformer, AdamW without weight decay for all else (embeddings, norms).

    m <- momentum m + (1 - momentum) g;  w <- w - lr sqrt(max(1, rows / columns)) orthogonalise(nesterov m)

    Args:
        model: its two-dimensional parameters outside of embeddings are trained by Muon.
        lr: learning rate of the matrices.
        adam_lr: learning rate of all else.
        momentum: momentum of the matrices.
        betas: betas of AdamW.

    References:
        Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = 0.005,
        adam_lr: float = 0.008,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
    ) -> None:
        embedded = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in embedded]
        inside = {id(weight) for weight in matrices}
        groups = [
            {"params": matrices, "lr": lr, "orthogonal": True},
            {"params": [weight for weight in trained if id(weight) not in inside], "lr": adam_lr, "orthogonal": False},
        ]
        super().__init__([group for group in groups if group["params"]], {"momentum": momentum, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Takes one step; parameters without a gradient stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            update = self._muon if group["orthogonal"] else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, parameter.grad, group)
        return loss

    def _muon(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(gradient.lerp(average, group["momentum"]))
        rows, columns = parameter.shape
        parameter.sub_(direction, alpha=group["lr"] * max(1.0, rows / columns) ** 0.5)

    def _adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = group["betas"]
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first ** state["step"])
        square = state["square"].lerp_(gradient.square(), 1 - second) / (1 - second ** state["step"])
        parameter.sub_(mean / (square.sqrt() + 1e-8), alpha=group["lr"])
