"""Granite 3 with experts: Granite's multipliers, and a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import granite
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, same_layers, with_biases
from backend.models.names import StackedNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Scores times `attention_multiplier`; shares are a softmax of the chosen experts' logits."""
    count = read_either(reader, ("num_local_experts", "num_experts"), 8)
    moe = read_experts(reader, count, normalise_top_k=True, size_key="intermediate_size")
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, scale=reader.positive_number("attention_multiplier"))
    return same_layers(reader, attention, moe)


FAMILY = Family(
    architecture="GraniteMoeForCausalLM",
    model_type="granitemoe",
    defaults={**granite.DEFAULTS, "num_experts_per_tok": 2},
    names=WeightNames(
        experts=StackedNames(
            "block_sparse_moe.router.layer.weight",
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
            has_gates_first=True,
        )
    ),
    read_layers=read_layers,
    read_scalars=granite.read_scalars,
)
