"""Gates of what attention gives, from a projection of attention's input (arXiv:2505.06708)."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import OutputGateKind
from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import sigmoid_gate
from backend.layers.linear import Linear


class OutputGate:
    """g(gate(x)) * attended, where g is a sigmoid or softplus, for each feature or for each head."""

    __slots__ = ("kind", "linear")

    def __init__(self, linear: Linear, kind: OutputGateKind) -> None:
        """`linear` gives [T, features], or [T, heads] for "head_softplus"."""
        self.linear = linear
        self.kind = kind

    def __call__(self, x: Tensor, attended: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """x [T, D], attended [T, features] → [T, features]; `rows` says which rows use an adapter."""
        gates = self.linear(x, rows)
        if self.kind == "sigmoid":
            return sigmoid_gate(torch.cat((gates, attended), dim=1))
        factors = softplus(gates.float()).to(attended.dtype)
        heads = attended.view(*factors.shape, -1)  # of one feature each, where each has a gate of its own
        return (heads * factors[:, :, None]).view(attended.shape)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); torch's own rounds a tensor's last elements otherwise, so company would matter."""
    return x.clamp(min=0) + x.abs().neg_().exp_().log1p_()
