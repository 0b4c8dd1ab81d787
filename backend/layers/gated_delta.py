"""Gated DeltaNet: a linear-attention layer whose memory is a state of fixed size (arXiv:2412.06464)."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import DeltaSpec
from backend.kernels.gated_delta import DeltaWeights, gated_delta
from backend.kernels.swiglu import swiglu
from backend.layers.attention import AttentionContext
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm


class GatedDeltaNet:
    """Projects to q, k, v, z, a and b, updates each sequence's state, gates what is read of it by silu(z).

    `order` picks q, k, v, z and then a, b from the projections' outputs; None: they are in that order.
    """

    __slots__ = ("gates", "inputs", "norm", "order", "out", "spec", "state", "weights")

    def __init__(
        self,
        state: int,
        spec: DeltaSpec,
        linears: tuple[Linear, Linear, Linear],
        weights: DeltaWeights,
        norm: RMSNorm,
        order: Tensor | None = None,
    ) -> None:
        """`state`: which layer's of the states; `linears`: of q, k, v and z, of a and b, of the output."""
        self.state = state
        self.spec = spec
        self.inputs, self.gates, self.out = linears
        self.weights = weights
        self.norm = norm
        self.order = order

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Changes the states of the step's sequences in this layer."""
        states, chunks, spec = context.kv.states, context.chunks, self.spec
        assert states is not None and chunks is not None
        projected = torch.cat((self.inputs(x, context.adapters), self.gates(x, context.adapters)), dim=1)
        if self.order is not None:
            projected = projected.index_select(1, self.order)
        sizes = spec.num_channels, spec.num_value_heads * spec.value_head_dim, 2 * spec.num_value_heads
        mixed, z, gates = torch.split(projected, list(sizes), dim=1)
        read = gated_delta(
            torch.cat((mixed, gates), dim=1).float(), self.weights, states.layers[self.state], chunks, spec
        )
        # The norm's weight and silu(z) are of the activations' dtype, what is normalised of float32.
        normed = self.norm(read.to(x.dtype)).flatten(1)
        return self.out(swiglu(torch.cat((z, normed), dim=1)), context.adapters)


def grouped_order(spec: DeltaSpec) -> Tensor:
    """The `order` of projections grouped by key head: q, k, v, z of each, then b, a of each."""
    sharing = spec.num_value_heads // spec.num_key_heads
    sizes = (spec.key_head_dim,) * 2 + (sharing * spec.value_head_dim,) * 2
    first = torch.arange(spec.num_key_heads * sum(sizes)).view(spec.num_key_heads, -1)
    second = first.numel() + torch.arange(2 * spec.num_value_heads).view(spec.num_key_heads, -1)
    b, a = torch.split(second, sharing, dim=1)
    return torch.cat([each.flatten() for each in (*torch.split(first, list(sizes), dim=1), a, b)])
