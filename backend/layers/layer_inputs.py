"""Embeddings for each layer alone, which Gemma 3n introduced: a table as wide as all layers' together."""

from __future__ import annotations

from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import gelu
from backend.layers.embedding import Embedding
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm


class LayerInputs:
    """(norm(projection(h) / sqrt(D)) + embedding) / sqrt(2) for each layer, of the shared embedding h."""

    __slots__ = ("embedding", "norm", "projection")

    def __init__(self, embedding: Embedding, projection: Linear, norm: RMSNorm) -> None:
        """The norm has one layer's size, the others that of all layers."""
        self.embedding = embedding
        self.projection = projection
        self.norm = norm

    def __call__(self, token_ids: Tensor, hidden: Tensor, rows: AdapterRows | None) -> tuple[Tensor, ...]:
        """[T] and [T, D] → [T, size] for each layer."""
        size = self.norm.weight.shape[0]
        projected = self.projection(hidden, rows).mul_(hidden.shape[1] ** -0.5).view(len(hidden), -1, size)
        own = self.embedding(token_ids).view(projected.shape)
        return self.norm(projected).add_(own).mul_(2**-0.5).unbind(1)


class LayerInputBlock:
    """norm(out(gelu(gate(h)) * input)), which a layer adds to its residual stream h."""

    __slots__ = ("gate", "norm", "out")

    def __init__(self, gate: Linear, out: Linear, norm: RMSNorm) -> None:
        self.gate = gate
        self.out = out
        self.norm = norm

    def __call__(self, hidden: Tensor, layer_input: Tensor, rows: AdapterRows | None) -> Tensor:
        """[T, D] and [T, size] → [T, D]."""
        gated = gelu(self.gate(hidden, rows)).mul_(layer_input)
        return self.norm(self.out(gated, rows))
