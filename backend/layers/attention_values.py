"""Self-attention with norms of values, keys as values, or an earlier layer's keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import AttentionSpec
from backend.kernels.device import uses_triton
from backend.kernels.paged_attention import WIDEST_IN_TRITON, Group, WindowPlan, reference
from backend.kernels.rotary import rotate
from backend.layers.attention import AttentionContext, AttentionShape
from backend.layers.attention_variants import VariantAttention
from backend.layers.linear import Linear
from backend.layers.norm import Norm, RMSNorm


class ValueAttention(VariantAttention):
    """Attention with norms of each query, key and value head, those of values without weights.

    With `spec.value_is_key` nothing is projected to values. With `spec.kv_source` only queries are projected:
    KV memory has that layer's keys and values in the place of this one's.
    """

    __slots__ = ("value_norm",)

    def __init__(
        self,
        shape: AttentionShape,
        spec: AttentionSpec,
        rope: int | None,
        linears: tuple[Linear, Linear],
        qk_norm: Norm,
    ) -> None:
        super().__init__(shape, spec, rope, linears, qk_norm)
        self.value_norm = RMSNorm(torch.ones_like(qk_norm.weight[0]), qk_norm.eps)

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Writes the keys and values of the step's tokens, where the layer has its own."""
        shape = self.shape
        heads = self.qkv(x, context.adapters).view(len(x), -1, shape.head_dim)
        if self.spec.kv_source is None:
            turned = heads[:, : shape.num_heads + shape.num_kv_heads]
            values = self.value_norm(heads[:, -shape.num_kv_heads :])  # keys, where there are no others
            self._turn(turned, context)
            keys_values = torch.cat((turned[:, shape.num_heads :], values), dim=1)
            context.kv.write(shape.layer, context.slots[shape.window], keys_values)
        else:
            self._turn(heads, context)
        queries = heads[:, : shape.num_heads]
        if self.query_scale != 1:
            queries *= self.query_scale
        attended = self._attend(queries, context.kv.layers[shape.layer], context.plan.by_window[shape.window])
        return self.out(attended, context.adapters)

    def _attend(self, queries: Tensor, kv: Tensor, plan: WindowPlan | list[Group]) -> Tensor:
        if isinstance(plan, WindowPlan) and queries.shape[2] > WIDEST_IN_TRITON and uses_triton(queries):
            return reference.paged_attention(queries, kv, plan.groups)
        return super()._attend(queries, kv, plan)

    def _turn(self, heads: Tensor, context: AttentionContext) -> None:
        self._normalise(heads)
        if self.rope is not None:
            angles = context.by_rope[self.rope]
            rotate(heads[..., : angles.table.shape[-1]], angles)
