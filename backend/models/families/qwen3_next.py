"""Qwen3-Next: Qwen3.5 with experts, and projections of gated delta nets that are grouped by key head."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import qwen3_5, qwen3_moe
from backend.models.families.family import Family
from backend.models.layer_specs import read_dense
from backend.models.names import DeltaNames, ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Qwen3.5's mixers, and Qwen3-MoE's choice of layers with experts."""
    count = read_either(reader, ("num_experts", "num_local_experts"), 512)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    size = reader.positive("shared_expert_intermediate_size")
    moe, dense = replace(moe, shared_size=size, has_shared_gate=True), read_dense(reader)
    blocks = (moe if is_sparse else dense for is_sparse in qwen3_moe.read_sparse(reader))
    return tuple(map(LayerSpec, qwen3_5.read_mixers(reader), blocks))


DEFAULTS = {
    **qwen3_5.DEFAULTS,
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}

FAMILY = Family(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    defaults=DEFAULTS,
    names=WeightNames(
        experts=ExpertNames(shared="mlp.shared_expert."),
        delta=DeltaNames(
            inputs=("linear_attn.in_proj_qkvz.weight",), gates=("linear_attn.in_proj_ba.weight",)
        ),
    ),
    read_layers=read_layers,
    read_scalars=qwen3_5.FAMILY.read_scalars,
    others=("mtp.",),
)
