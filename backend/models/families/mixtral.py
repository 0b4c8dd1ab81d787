"""Mixtral: Mistral with a mixture of experts in every layer (arXiv:2401.04088)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.families import mistral
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, same_layers
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Experts as wide as the dense block that they replace; router weights are normalised over the top k."""
    moe = MoEConfig(
        num_experts=reader.positive("num_local_experts"),
        experts_per_token=reader.positive("num_experts_per_tok"),
        intermediate_size=reader.positive("intermediate_size"),
        normalise_top_k=True,
    )
    attention = replace(read_attention(reader), window=reader.optional_positive("sliding_window"))
    return same_layers(reader, attention, moe)


DEFAULTS = {
    **mistral.DEFAULTS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}

EXPERTS = ExpertNames(
    router="block_sparse_moe.gate.weight",
    gate="block_sparse_moe.experts.{expert}.w1.weight",
    up="block_sparse_moe.experts.{expert}.w3.weight",
    down="block_sparse_moe.experts.{expert}.w2.weight",
)

FAMILY = Family(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    defaults=DEFAULTS,
    names=WeightNames(experts=EXPERTS),
    read_layers=read_layers,
    splits_heads=True,
    splits_experts=True,
)
