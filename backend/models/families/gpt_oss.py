"""gpt-oss: attention sinks, windows in every other layer, clamped experts with biases (arXiv:2508.10925)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import ClampedGate, LayerSpec, MoEConfig, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, typed_layers, windowed, with_biases
from backend.models.names import StackedNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Sliding windows by `layer_types`, else in every other layer from the first on."""
    top_k = reader.positive("num_experts_per_tok")
    if reader.positive("experts_per_token", top_k) != top_k:  # published files say it twice
        expected = f"{top_k}, as num_experts_per_tok is"
        raise reader.error("experts_per_token", reader.raw["experts_per_token"], expected)
    moe = MoEConfig(
        num_experts=reader.positive("num_local_experts"),
        experts_per_token=top_k,
        intermediate_size=reader.positive("intermediate_size"),
        normalise_top_k=True,  # as the softmax over the chosen experts' logits
        has_bias=True,
        gate=ClampedGate(reader.positive_number("swiglu_alpha"), reader.positive_number("swiglu_limit")),
    )
    attention = replace(read_attention(reader), has_sinks=True)
    full = with_biases(attention, reader.flag("attention_bias"))
    return typed_layers(reader, full, windowed(reader, full), lambda layer: layer % 2 == 0, moe)


DEFAULTS = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "rope_theta": 150_000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
}

FAMILY = Family(
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    defaults=DEFAULTS,
    names=WeightNames(
        experts=StackedNames(
            router="mlp.router.weight", gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"
        )
    ),
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(exact_norms=True),
)
