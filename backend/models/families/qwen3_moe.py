"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some of the layers (arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.families import qwen2
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_dense, with_biases
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Experts in every `decoder_sparse_step`-th layer but `mlp_only_layers`; one window for all layers."""
    moe = MoEConfig(
        # transformers 4 writes num_experts, transformers 5 num_local_experts
        num_experts=reader.positive(
            "num_local_experts" if "num_local_experts" in reader.raw else "num_experts"
        ),
        experts_per_token=reader.positive("num_experts_per_tok"),
        intermediate_size=reader.positive("moe_intermediate_size"),
        normalise_top_k=reader.flag("norm_topk_prob"),
    )
    window = reader.optional_positive("sliding_window") if reader.flag("use_sliding_window") else None
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, window=window, qk_norm="head")
    block = read_dense(reader)
    return tuple(LayerSpec(attention, moe if sparse else block) for sparse in read_sparse(reader))


def read_sparse(reader: ConfigReader) -> list[bool]:
    """Whether each layer has experts."""
    step = reader.positive("decoder_sparse_step")
    dense = set(reader.indices("mlp_only_layers"))
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers(reader))]


DEFAULTS = {
    **qwen2.DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}

FAMILY = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames()),
    read_layers=read_layers,
    splits_heads=True,
    splits_experts=True,
)
