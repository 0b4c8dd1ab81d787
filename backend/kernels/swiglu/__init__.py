"""SwiGLU: silu(gate) * up (arXiv:2002.05202), sigmoid(gate) * up, and other families' gates.

gate_up [T, 2 I], gate in the left half → [T, I], same dtype. Bound: memory, reads 2 T I, writes T I elements.
torch's own functions round a tensor's last elements otherwise, so on a CPU company would matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.compiled import float_bits, num_threads
from backend.kernels.device import uses_triton
from backend.kernels.swiglu import loop, reference

__all__ = ["clamped_swiglu", "gelu", "sigmoid_gate", "swiglu"]


def swiglu(gate_up: Tensor) -> Tensor:
    """Gate the right half by the left half; a new tensor."""
    if uses_triton(gate_up) and gate_up.is_contiguous():
        from backend.kernels.swiglu.kernel import swiglu as on_gpu

        return on_gpu(gate_up)
    if gate_up.dtype is not torch.float32 or not gate_up.is_contiguous():
        return reference.swiglu(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, size)
    loop.gate((0, gate_up.data_ptr(), y.data_ptr(), rows, size), num_threads(gate_up.numel()))
    return y


def sigmoid_gate(gate_up: Tensor) -> Tensor:
    """Multiply the right half by the left half's sigmoid; a new tensor. In torch on a GPU."""
    if uses_triton(gate_up) or gate_up.dtype is not torch.float32 or not gate_up.is_contiguous():
        return reference.sigmoid_gate(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, size)
    loop.sigmoid_gate((0, gate_up.data_ptr(), y.data_ptr(), rows, size), num_threads(gate_up.numel()))
    return y


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha gate) * (up + 1), of gate up to `limit` and up within ± it. In torch on a GPU."""
    if uses_triton(gate_up) or gate_up.dtype is not torch.float32 or not gate_up.is_contiguous():
        return reference.clamped_swiglu(gate_up, alpha, limit)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, size)
    job = (0, gate_up.data_ptr(), y.data_ptr(), rows, size, float_bits(alpha), float_bits(limit))
    loop.clamped(job, num_threads(gate_up.numel()))
    return y


def gelu(x: Tensor) -> Tensor:
    """gelu by tanh (arXiv:1606.08415) of x [T, I], or of the left part of wider rows. In torch on a GPU."""
    if uses_triton(x) or x.dtype is not torch.float32 or x.stride(1) != 1:
        return reference.gelu(x)
    rows, size = x.shape
    y = torch.empty(rows, size)
    loop.gelu((0, x.data_ptr(), y.data_ptr(), rows, size, x.stride(0)), num_threads(x.numel()))
    return y
