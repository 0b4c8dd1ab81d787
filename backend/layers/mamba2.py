"""Mamba-2: a layer whose memory is a state of fixed size (arXiv:2405.21060); and attention beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import MambaSpec
from backend.kernels.mamba2 import MambaWeights, mamba2
from backend.kernels.swiglu import swiglu
from backend.layers.attention import Attention, AttentionContext
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm


class Mamba2:
    """Projects to z, x, B, C and dt, updates each sequence's state, gates what is read of it by silu(z)."""

    __slots__ = ("factors", "inputs", "norm", "out", "spec", "state", "weights")

    def __init__(
        self,
        state: int,
        spec: MambaSpec,
        linears: tuple[Linear, Linear],
        weights: MambaWeights,
        norm: RMSNorm | None,
        factors: Tensor | None,
    ) -> None:
        """`state`: which layer's of the states; `norm` [groups, size]; `factors` of what is projected."""
        self.state = state
        self.spec = spec
        self.inputs, self.out = linears
        self.weights = weights
        self.norm = norm
        self.factors = factors

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Changes the states of the step's sequences in this layer."""
        states, chunks, spec = context.kv.states, context.chunks, self.spec
        assert states is not None and chunks is not None
        projected = self.inputs(x if spec.in_factor == 1 else x * spec.in_factor, context.adapters)
        if self.factors is not None:
            projected = projected * self.factors
        z, rows = torch.split(projected, [spec.inner_size, spec.row_width], dim=1)
        read = mamba2(rows.float(), self.weights, states.layers[self.state], chunks, spec)
        out = self.out(self._gate(z, read.to(x.dtype).flatten(1)), context.adapters)
        return out if spec.out_factor == 1 else out.mul_(spec.out_factor)

    def _gate(self, z: Tensor, read: Tensor) -> Tensor:
        if self.spec.norm == "before_gate":
            read = self._normed(read)
        gated = swiglu(torch.cat((z, read), dim=1))
        return self._normed(gated) if self.spec.norm == "gated" else gated

    def _normed(self, x: Tensor) -> Tensor:
        assert self.norm is not None
        return self.norm(x.view(len(x), *self.norm.weight.shape)).flatten(1)


class HybridMixer:
    """Attention and Mamba-2 of one input: out_factor · attention(in_factor · x) + mamba(x)."""

    __slots__ = ("attention", "in_factor", "mamba", "out_factor")

    def __init__(self, attention: Attention, mamba: Mamba2, in_factor: float, out_factor: float) -> None:
        self.attention, self.mamba = attention, mamba
        self.in_factor, self.out_factor = in_factor, out_factor

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]."""
        attended = self.attention(x if self.in_factor == 1 else x * self.in_factor, context)
        return attended.mul_(self.out_factor).add_(self.mamba(x, context))
