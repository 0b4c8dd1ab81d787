"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some of the layers (arXiv:2505.09388)."""

from __future__ import annotations

from backend.config import MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.families import qwen2
from backend.models.families.family import Family, SparseLayers, Windows
from backend.models.names import ExpertNames, WeightNames


def read_windows(reader: ConfigReader, num_layers: int) -> Windows:
    """With `use_sliding_window` the same window in every layer."""
    window = reader.optional_positive("sliding_window")
    return (window if reader.flag("use_sliding_window") else None,) * num_layers


def read_experts(reader: ConfigReader, num_layers: int) -> SparseLayers:
    """Every `decoder_sparse_step`-th layer but `mlp_only_layers`."""
    moe = MoEConfig(
        # transformers 4 writes num_experts, transformers 5 num_local_experts
        num_experts=reader.positive(
            "num_local_experts" if "num_local_experts" in reader.raw else "num_experts"
        ),
        experts_per_token=reader.positive("num_experts_per_tok"),
        intermediate_size=reader.positive("moe_intermediate_size"),
        normalise_top_k=reader.flag("norm_topk_prob"),
    )
    step = reader.positive("decoder_sparse_step")
    dense = set(reader.raw.get("mlp_only_layers") or ())
    layers = frozenset(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0)
    return SparseLayers(moe, layers)


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
    names=WeightNames(
        experts=ExpertNames(
            router="mlp.gate.weight",
            gate="mlp.experts.{expert}.gate_proj.weight",
            up="mlp.experts.{expert}.up_proj.weight",
            down="mlp.experts.{expert}.down_proj.weight",
        )
    ),
    qk_norm=True,
    read_windows=read_windows,
    read_experts=read_experts,
)
