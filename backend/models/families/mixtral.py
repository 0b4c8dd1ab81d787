"""Mixtral: Mistral with a mixture of experts in every layer (arXiv:2401.04088)."""

from __future__ import annotations

from backend.config import MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.families import mistral
from backend.models.families.family import Family, SparseLayers
from backend.models.names import ExpertNames, WeightNames


def read_experts(reader: ConfigReader, num_layers: int) -> SparseLayers:
    """Experts as wide as the dense block that they replace; router weights are normalised over the top k."""
    moe = MoEConfig(
        num_experts=reader.positive("num_local_experts", 8),
        experts_per_token=reader.positive("num_experts_per_tok", 2),
        intermediate_size=reader.positive("intermediate_size"),
        normalise_top_k=True,
    )
    return SparseLayers(moe, frozenset(range(num_layers)))


FAMILY = Family(
    architecture="MixtralForCausalLM",
    names=WeightNames(
        experts=ExpertNames(
            router="block_sparse_moe.gate.weight",
            gate="block_sparse_moe.experts.{expert}.w1.weight",
            up="block_sparse_moe.experts.{expert}.w3.weight",
            down="block_sparse_moe.experts.{expert}.w2.weight",
        )
    ),
    default_rope_theta=1_000_000.0,
    read_windows=mistral.read_windows,
    read_experts=read_experts,
)
