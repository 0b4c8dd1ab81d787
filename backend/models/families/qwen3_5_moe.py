"""Qwen3.5 and 3.6 with experts: Qwen3.5's mixers, and Qwen3-Next's experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import qwen3_5
from backend.models.families.family import Family
from backend.models.names import ExpertNames, StackedNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Shares of the chosen experts sum to 1."""
    count = read_either(reader, ("num_experts", "num_local_experts"), 256)
    moe = read_experts(reader, count, normalise_top_k=True)
    size = reader.positive("shared_expert_intermediate_size")
    moe = replace(moe, shared_size=size, has_shared_gate=True)
    return tuple(LayerSpec(mixer, moe) for mixer in qwen3_5.read_mixers(reader))


DEFAULTS = {
    **qwen3_5.DEFAULTS,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

FAMILY = Family(
    architecture="Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    defaults=DEFAULTS,
    names=WeightNames(
        experts=ExpertNames(
            shared="mlp.shared_expert.",
            stacked=StackedNames(
                "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", has_gates_first=True
            ),
        )
    ),
    read_layers=read_layers,
    read_scalars=qwen3_5.FAMILY.read_scalars,
    others=("mtp.",),
)
