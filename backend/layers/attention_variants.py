"""Self-attention with parts that few families have: in torch, apart from the loop or kernel over pages."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import AttentionSpec
from backend.kernels.paged_attention import Group, WindowPlan, paged_attention, reference, sink_attention
from backend.kernels.rms_norm import rms_norm
from backend.kernels.rotary import rotate
from backend.kernels.swiglu import sigmoid_gate
from backend.layers.attention import Attention, AttentionContext, AttentionShape
from backend.layers.linear import Linear
from backend.layers.norm import Norm
from backend.layers.output_gate import OutputGate


class VariantAttention(Attention):
    """Attention that may have a scale or cap of scores, sinks, a gate, norms over all heads, or no rotation.

    Its angles are the context's `by_rope[rope]`, and may turn only the first dimensions of each head.
    """

    __slots__ = ("output_gate", "query_scale", "rope", "sinks", "spec")

    def __init__(
        self,
        shape: AttentionShape,
        spec: AttentionSpec,
        rope: int | None,
        linears: tuple[Linear, Linear],
        qk_norm: Norm | None,
        sinks: Tensor | None = None,
        output_gate: OutputGate | None = None,
    ) -> None:
        """`linears`: qkv and out; `qk_norm` has a weight for each feature of all heads where spec says so.

        `sinks` [num_heads] float32, see AttentionSpec.
        """
        super().__init__(shape, *linears, qk_norm)
        self.spec = spec
        self.rope = rope
        self.sinks = sinks
        self.output_gate = output_gate
        self.query_scale = 1.0 if spec.scale is None else spec.scale * spec.head_dim**0.5

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Writes the keys and values of the step's tokens in this layer."""
        shape = self.shape
        heads, gates = self.qkv(x, context.adapters).view(len(x), -1, shape.head_dim), None
        if self.spec.has_gate:
            queries, gates = heads[:, : 2 * shape.num_heads : 2], heads[:, 1 : 2 * shape.num_heads : 2]
            heads = torch.cat((queries, heads[:, 2 * shape.num_heads :]), dim=1)
        queries, keys_values = heads[:, : shape.num_heads], heads[:, shape.num_heads :]
        queries_keys = heads[:, : shape.num_heads + shape.num_kv_heads]
        if self.spec.qk_norm != "rotated_head":
            self._normalise(queries_keys)
        if self.rope is not None:
            angles = context.by_rope[self.rope]
            rotate(queries_keys[:, :, : angles.table.shape[-1]], angles)
        if self.spec.qk_norm == "rotated_head":
            self._normalise(queries_keys)
        if self.query_scale != 1:
            queries *= self.query_scale
        if (growth := self.spec.query_growth) is not None:
            periods = context.angles.positions // growth.period
            queries *= (1 + growth.beta * periods.float().log1p()).to(queries.dtype)[:, None, None]
        context.kv.write(shape.layer, context.slots[shape.window], keys_values)
        attended = self._attend(queries, context.kv.layers[shape.layer], context.plan.by_window[shape.window])
        if gates is not None:
            attended = sigmoid_gate(torch.cat((gates.flatten(1), attended), dim=1))
        if self.output_gate is not None:
            attended = self.output_gate(x, attended, context.adapters)
        return self.out(attended, context.adapters)

    def _normalise(self, queries_keys: Tensor) -> None:
        norm, num_heads = self.qk_norm, self.shape.num_heads
        if norm is None:
            return
        if self.spec.qk_norm in ("head", "rotated_head", "layer", "unit"):
            queries_keys.copy_(norm(queries_keys))
            return
        begin = 0
        for heads in (queries_keys[:, :num_heads], queries_keys[:, num_heads:]):
            flat = heads.flatten(1)
            weight = norm.weight[begin : begin + flat.shape[1]]
            heads.copy_(rms_norm(flat, weight, norm.eps).view(heads.shape))
            begin += flat.shape[1]

    def _attend(self, queries: Tensor, kv: Tensor, plan: WindowPlan | list[Group]) -> Tensor:
        softcap, sinks = self.spec.softcap, self.sinks
        if softcap is not None:
            groups = plan if isinstance(plan, list) else plan.groups
            result = queries.new_empty(len(queries), queries.shape[1] * queries.shape[2])
            return reference.plain_attention(result, queries, kv, groups, softcap, sinks)
        if sinks is not None:
            return sink_attention(queries, kv, plan, sinks)
        return paged_attention(queries, kv, plan)
