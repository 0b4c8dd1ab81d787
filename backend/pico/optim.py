"""Muon for the weight matrices of the layers, AdamW for all other parameters.

Muon steps along the orthogonalised momentum (K. Jordan et al., 2024) and needs fewer tokens than AdamW on
small models. Newton-Schulz runs in fp32, batched over all matrices of one shape.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from backend.pico.parallel import all_reduce, rank_and_workers

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NOT_MATRICES = ("embed", "gate.weight")


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Approximate U Vᵀ of the singular value decomposition U S Vᵀ of each matrix by Newton-Schulz."""
    a, b, c = _COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def orthogonalise_sharded(matrices: Tensor) -> Tensor:
    """Orthogonalise a stack of matrices (N, m, n), sharded over the processes."""
    rank, workers = rank_and_workers()
    updates = torch.zeros_like(matrices)
    updates[rank::workers] = orthogonalise(matrices[rank::workers])
    return all_reduce(updates)


class Muon(torch.optim.Optimizer):
    """SGD with momentum that is orthogonalised per matrix."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                self._step_shape(shape, parameters, group["lr"], group["momentum"])

    def _step_shape(
        self, shape: torch.Size, parameters: list[nn.Parameter], lr: float, momentum: float
    ) -> None:
        directions = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            buffer = state["momentum"].lerp_(parameter.grad, 1 - momentum)
            directions.append(parameter.grad.lerp(buffer, momentum))
        scale = max(1.0, shape[-2] / shape[-1]) ** 0.5
        stack = torch.stack(directions)
        updates = orthogonalise_sharded(stack.flatten(0, -3)).view_as(stack)
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.add_(update, alpha=-lr * scale)


def build_optimizers(model: nn.Module, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon over the layers' matrices, stacked or not, and AdamW over embeddings, routers and norms."""
    matrices = [
        p
        for name, p in model.named_parameters()
        if p.ndim >= 2 and not any(part in name for part in _NOT_MATRICES)
    ]
    chosen = {id(parameter) for parameter in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    adamw = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, lr=matrix_lr), adamw]
