"""The tensor names of a family, as templates; the defaults are Llama's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """A mixture-of-experts block; `{expert}` is replaced by the expert's index."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class WeightNames:
    """A decoder; names within a layer follow the prefix `layer`. A bias ends in `.bias`, not `.weight`."""

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    layer: str = "model.layers.{layer}."
    attention_norm: str = "input_layernorm.weight"
    query: str = "self_attn.q_proj.weight"
    key: str = "self_attn.k_proj.weight"
    value: str = "self_attn.v_proj.weight"
    out: str = "self_attn.o_proj.weight"
    query_norm: str = "self_attn.q_norm.weight"
    key_norm: str = "self_attn.k_norm.weight"
    mlp_norm: str = "post_attention_layernorm.weight"
    gate: str = "mlp.gate_proj.weight"
    up: str = "mlp.up_proj.weight"
    down: str = "mlp.down_proj.weight"
    experts: ExpertNames | None = None
