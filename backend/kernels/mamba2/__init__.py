"""Mamba-2 behind a short causal convolution, over a state per sequence (arXiv:2405.21060).

x, B, C = silu(conv(·)); S ← e^(Δ·rate) S + Δ B xᵀ; y = Sᵀ C + D x, with Δ = clamp(softplus(dt + bias)).
inputs [T, W]: x of all heads, B and C of all groups, dt of all heads → [T, H, P] float32; states
[slots, H, N, P]. A head has the group number h // (H / G).
Bound: memory in decode, reads and writes S [H, N, P] of each sequence; compute in prefill.
On a CPU loop.py goes token by token, so that a token's result is the same bits however its sequence was cut.
reference.py, also for GPUs, takes blocks of up to 64 tokens that end at multiples of 64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.config import MambaSpec
from backend.kernels.compiled import float_bits, num_threads
from backend.kernels.device import uses_triton
from backend.kernels.mamba2 import loop, reference
from backend.kernels.recurrent import Chunks, State

__all__ = ["MambaWeights", "mamba2"]


class MambaWeights(NamedTuple):
    """What one layer has beside its projections, in float32."""

    conv: Tensor  # [channels, taps]
    conv_bias: Tensor  # [channels]
    rate: Tensor  # [H], below 0
    bias: Tensor  # [H]
    skip: Tensor  # [H], D of the formula


def mamba2(inputs: Tensor, weights: MambaWeights, state: State, chunks: Chunks, spec: MambaSpec) -> Tensor:
    """Replay what `chunks` say, then compute the step's tokens.

    A chunk that fits into the log is only kept there: its state is that before it. Others change the state.
    """
    assert inputs.dtype is torch.float32 and inputs.shape[1] == state.rows.shape[2]
    if uses_triton(inputs):
        return reference.mamba2(inputs, weights, state, chunks, spec)
    inputs, chunks = inputs.contiguous(), np.ascontiguousarray(chunks)
    out = inputs.new_empty(len(inputs), spec.num_heads, spec.head_dim)
    tensors = inputs, *weights, *state, out
    assert all(tensor.is_contiguous() for tensor in tensors)
    places = [tensor.data_ptr() for tensor in tensors]
    sizes = len(inputs), len(state.rows), state.rows.shape[1], weights.conv.shape[1]
    heads = spec.num_groups, spec.num_heads, spec.state_size, spec.head_dim
    limits = map(float_bits, spec.time_step_limits)
    job = 0, *places, chunks.ctypes.data, len(chunks), *sizes, *heads, *limits
    loop.scan(job, num_threads(len(inputs) * state.recurrent[0].numel()))
    return out
