"""SwiGLU against its formula."""

from __future__ import annotations

import torch

from backend.kernels.swiglu import swiglu


def test_swiglu() -> None:
    gate_up = torch.randn(3, 10, dtype=torch.float64)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    torch.testing.assert_close(swiglu(gate_up), gate / (1 + (-gate).exp()) * up)
