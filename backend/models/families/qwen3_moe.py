"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some of the layers (arXiv:2505.09388)."""

from __future__ import annotations

from backend.config import MoEConfig
from backend.models.config_reader import ConfigReader
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
            "num_experts" if "num_experts" in reader.raw else "num_local_experts", 128
        ),
        experts_per_token=reader.positive("num_experts_per_tok", 8),
        intermediate_size=reader.positive("moe_intermediate_size", 768),
        normalise_top_k=reader.flag("norm_topk_prob"),
    )
    step = reader.positive("decoder_sparse_step", 1)
    dense = set(reader.raw.get("mlp_only_layers") or ())
    layers = frozenset(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0)
    return SparseLayers(moe, layers)


FAMILY = Family(
    architecture="Qwen3MoeForCausalLM",
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
