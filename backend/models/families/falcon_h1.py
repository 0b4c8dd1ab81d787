"""Falcon-H1: attention and Mamba-2 side by side in every layer, and multipliers (arXiv:2507.22448)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import HybridSpec, LayerSpec, MambaSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from backend.models.mamba_spec import read_mamba
from backend.models.names import WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Keys times `key_multiplier` are scores times that."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    scale = reader.positive_number("key_multiplier") * attention.head_dim**-0.5
    mixer = HybridSpec(
        attention=replace(attention, scale=scale),
        state=read_own_mamba(reader),
        in_factor=reader.positive_number("attention_in_multiplier"),
        out_factor=reader.positive_number("attention_out_multiplier"),
    )
    gate, down = reader.numbers("mlp_multipliers", [1.0, 1.0])
    dense = read_dense(reader, has_bias=reader.flag("mlp_bias"))
    return same_layers(reader, mixer, replace(dense, factors=None if gate == down == 1 else (gate, down)))


def read_own_mamba(reader: ConfigReader) -> MambaSpec:
    """`ssm_multipliers` are of z, x, B, C and time steps."""
    inner_size = reader.optional_positive("mamba_d_ssm")
    inner_size = inner_size or reader.positive("mamba_expand") * reader.positive("hidden_size")
    is_before = reader.flag("mamba_norm_before_gate")
    mamba = read_mamba(reader, inner_size, "before_gate" if is_before else "gated")
    z, x, b, c, steps = reader.numbers("ssm_multipliers", [1.0] * 5)
    return replace(
        mamba,
        norm=mamba.norm if reader.flag("mamba_rms_norm") else None,
        out_bias=reader.flag("projectors_bias"),
        in_factor=reader.positive_number("ssm_in_multiplier"),
        factors=(z, x, b, c, steps),
        out_factor=reader.positive_number("ssm_out_multiplier"),
    )


def read_scalars(reader: ConfigReader) -> Scalars:
    """Embeddings and logits have one each."""
    return Scalars(
        embedding=reader.positive_number("embedding_multiplier"),
        logits=reader.positive_number("lm_head_multiplier"),
    )


MULTIPLIERS = ("key", "attention_in", "attention_out", "ssm_in", "ssm_out", "embedding", "lm_head")
DEFAULTS = {
    **llama.DEFAULTS,
    **{f"{name}_multiplier": 1.0 for name in MULTIPLIERS},
    **{"vocab_size": 128_000, "intermediate_size": 14_336, "num_key_value_heads": 8},
    **{"max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
    **{"mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256},
    **{"mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_norm_before_gate": True},
}
FAMILY = Family(
    architecture="FalconH1ForCausalLM",
    model_type="falcon_h1",
    defaults=DEFAULTS,
    names=WeightNames(
        final_norm="model.final_layernorm.weight",
        mlp_norm="pre_ff_layernorm.weight",
        gate="feed_forward.gate_proj.weight",
        up="feed_forward.up_proj.weight",
        down="feed_forward.down_proj.weight",
    ),
    read_layers=read_layers,
    read_scalars=read_scalars,
)
