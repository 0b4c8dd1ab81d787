"""Self-attention over paged KV memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from backend.kernels.kv_write import kv_write
from backend.kernels.lora import AdapterRows
from backend.kernels.paged_attention import AttentionPlan, paged_attention
from backend.kernels.recurrent import Chunks
from backend.kernels.rotary import Angles
from backend.kv.storage import KVStorage
from backend.layers.linear import Linear
from backend.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What all layers' attention shares in one step."""

    plan: AttentionPlan
    angles: Angles  # of the first of Decoder.ropes
    slots: Mapping[int | None, Tensor]  # by window, [T]: where the keys and values of each token go
    kv: KVStorage
    adapters: AdapterRows | None = None  # None: no row uses one
    by_rope: Sequence[Angles] = ()  # the angles of each of Decoder.ropes
    layer_inputs: Sequence[Tensor] = ()  # by layer [T, size], where layers have them
    chunks: Chunks | None = None  # of recurrent states; None: the model has none


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer's heads and window."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


class Attention:
    """Projects to q, k and v in one matmul, rotates q and k, stores k and v, attends, projects back."""

    __slots__ = ("out", "qk_norm", "qkv", "shape")

    def __init__(self, shape: AttentionShape, qkv: Linear, out: Linear, qk_norm: Norm | None) -> None:
        self.shape = shape
        self.qkv = qkv
        self.out = out
        self.qk_norm = qk_norm  # weight [num_heads + num_kv_heads, head_dim]

    def store(
        self, x: Tensor, angles: Angles, slots: Tensor, kv: KVStorage, adapters: AdapterRows | None = None
    ) -> Tensor:
        """Store the keys and values of x [T, D] at `slots` [T]; the queries [T, num_heads, head_dim]."""
        shape = self.shape
        heads = self.qkv(x, adapters).view(
            x.shape[0], shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim
        )
        norm = () if self.qk_norm is None else (self.qk_norm.weight, self.qk_norm.eps)
        kv_write(heads, angles, slots, kv.slots[shape.layer], *norm)
        return heads[:, : shape.num_heads]

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Writes the keys and values of the step's tokens in this layer."""
        layer, window, kv = self.shape.layer, self.shape.window, context.kv
        queries = self.store(x, context.angles, context.slots[window], kv, context.adapters)
        attended = paged_attention(queries, kv.layers[layer], context.plan.by_window[window])
        return self.out(attended, context.adapters)
