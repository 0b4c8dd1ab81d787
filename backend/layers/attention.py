"""Self-attention over paged KV memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.kernels.paged_attention import AttentionPlan, paged_attention
from backend.kernels.rotary import rotate
from backend.kv.storage import KVStorage
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What all layers' attention shares in one step."""

    plan: AttentionPlan
    cos: Tensor  # [T, 1, head_dim], see kernels.rotary
    signed_sin: Tensor
    slots: Tensor  # [T], where the keys and values of each token go
    kv: KVStorage
    adapters: AdapterRows | None = None  # None: no row uses one


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

    def __init__(self, shape: AttentionShape, qkv: Linear, out: Linear, qk_norm: RMSNorm | None) -> None:
        self.shape = shape
        self.qkv = qkv
        self.out = out
        self.qk_norm = qk_norm  # weight [num_heads + num_kv_heads, head_dim]

    def project(
        self, x: Tensor, cos: Tensor, signed_sin: Tensor, adapters: AdapterRows | None = None
    ) -> Tensor:
        """x [T, D] → queries, keys and values, [T, num_heads + 2 * num_kv_heads, head_dim], rotated."""
        shape = self.shape
        heads = self.qkv(x, adapters).view(
            x.shape[0], shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim
        )
        queries_keys = heads[:, : shape.num_heads + shape.num_kv_heads]
        norm = self.qk_norm
        if norm is None:
            rotate(queries_keys, cos, signed_sin)
        else:
            rotate(queries_keys, cos, signed_sin, norm.weight, norm.eps)
        return heads

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Writes the keys and values of the step's tokens in this layer."""
        shape = self.shape
        heads = self.project(x, context.cos, context.signed_sin, context.adapters)
        context.kv.write(shape.layer, context.slots, heads[:, shape.num_heads :])
        plan = context.plan.by_window[shape.window]
        attended = paged_attention(heads[:, : shape.num_heads], context.kv.layers[shape.layer], plan)
        return self.out(attended, context.adapters)
