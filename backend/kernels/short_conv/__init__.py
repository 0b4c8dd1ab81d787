"""Short causal convolution of each channel over a sequence's last tokens, which are its state.

y[t, c] = bias[c] + Σ_i w[c, i] · x[t - taps + 1 + i, c]. inputs [T, C] float32 → [T, C] float32.
Bound: memory, reads the window and the log of each sequence and writes the new rows.
reference.py runs on either device: sums go tap by tap, so that a token's result is the same bits however its
sequence was cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.recurrent import Chunks, State
from backend.kernels.short_conv import reference

__all__ = ["short_conv"]


def short_conv(inputs: Tensor, weight: Tensor, bias: Tensor, state: State, chunks: Chunks) -> Tensor:
    """Convolve the step's tokens behind what is left of those before them; weight [C, taps], bias [C]."""
    assert inputs.dtype is torch.float32 and inputs.shape[1] == state.rows.shape[2]
    return reference.short_conv(inputs, weight, bias, state, chunks)
