"""A gated short convolution, which keeps a sequence's last few inputs (arXiv:2511.23404)."""

from __future__ import annotations

from torch import Tensor

from backend.kernels.short_conv import short_conv
from backend.layers.attention import AttentionContext
from backend.layers.linear import Linear


class ShortConv:
    """Projects to b, c and x; out(c · conv(b · x))."""

    __slots__ = ("bias", "inputs", "out", "state", "weight")

    def __init__(self, state: int, inputs: Linear, out: Linear, weight: Tensor, bias: Tensor) -> None:
        """`state`: which layer's of the states; `weight` [D, taps] and `bias` [D] in float32."""
        self.state = state
        self.inputs, self.out = inputs, out
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Changes the states of the step's sequences in this layer."""
        states, chunks = context.kv.states, context.chunks
        assert states is not None and chunks is not None
        before, after, mixed = self.inputs(x, context.adapters).chunk(3, dim=-1)
        rows = (before * mixed).float()
        read = short_conv(rows, self.weight, self.bias, states.layers[self.state], chunks)
        return self.out(after * read.to(x.dtype), context.adapters)
