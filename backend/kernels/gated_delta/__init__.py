"""Gated delta rule behind a short causal convolution, over a state per sequence (arXiv:2412.06464).

q, k, v = silu(conv(x)), q and k of length 1; S ← e^g S; S ← S + k βᵀ(v - kᵀS); o = qᵀS / sqrt(Dk), where
g = rate · softplus(a + bias) and β = sigmoid(b). inputs [T, W]: q and k of all key heads, v of all value
heads, a and b of each → [T, Hv, Dv] float32; states [slots, Hv, Dk, Dv].
A value head has the key head number h // (Hv / Hk).
Bound: memory in decode, reads and writes S [Hv, Dk, Dv] of each sequence; compute in prefill.
On a CPU loop.py goes token by token, so that a token's result is the same bits however its sequence was cut.
reference.py, also for GPUs, takes blocks of up to 64 tokens that end at multiples of 64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.config import DeltaSpec
from backend.kernels.compiled import num_threads
from backend.kernels.device import uses_triton
from backend.kernels.gated_delta import loop, reference
from backend.kernels.recurrent import Chunks, State

__all__ = ["DeltaWeights", "gated_delta"]


class DeltaWeights(NamedTuple):
    """What one layer has beside its projections, in float32."""

    conv: Tensor  # [channels, taps]
    rate: Tensor  # [Hv], below 0
    bias: Tensor  # [Hv]


def gated_delta(
    inputs: Tensor, weights: DeltaWeights, state: State, chunks: Chunks, spec: DeltaSpec
) -> Tensor:
    """Replay what `chunks` say, then compute the step's tokens.

    A chunk that fits into the log is only kept there: its state is that before it. Others change the state.
    """
    assert inputs.dtype is torch.float32 and inputs.shape[1] == state.rows.shape[2]
    if uses_triton(inputs):
        return reference.gated_delta(inputs, weights, state, chunks, spec)
    inputs, chunks = inputs.contiguous(), np.ascontiguousarray(chunks)
    out = inputs.new_empty(len(inputs), spec.num_value_heads, spec.value_head_dim)
    tensors = inputs, *weights, *state, out
    assert all(tensor.is_contiguous() for tensor in tensors)
    places = [tensor.data_ptr() for tensor in tensors]
    sizes = len(inputs), len(state.rows), state.rows.shape[1], weights.conv.shape[1]
    heads = spec.num_key_heads, spec.num_value_heads, spec.key_head_dim, spec.value_head_dim
    job = 0, *places, chunks.ctypes.data, len(chunks), *sizes, *heads
    loop.scan(job, num_threads(len(inputs) * state.recurrent[0].numel()))
    return out
