"""LFM2: gated short convolutions, and attention in some layers (arXiv:2511.23404)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, ConvSpec, DenseSpec, LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_layer_types
from backend.models.names import WeightNames
from backend.models.rope_config import FULL


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All dense; `block_auto_adjust_ff_dim` makes `intermediate_size` smaller than it says."""
    size = reader.positive("intermediate_size")
    if reader.flag("block_auto_adjust_ff_dim"):
        size = int(reader.positive_number("block_ffn_dim_multiplier") * (2 * size // 3))
        multiple = reader.positive("block_multiple_of")
        size = -(-size // multiple) * multiple
    return tuple(LayerSpec(mixer, DenseSpec(intermediate_size=size)) for mixer in read_mixers(reader))


def read_mixers(reader: ConfigReader) -> list[AttentionSpec | ConvSpec]:
    """Attention by `layer_types` or `full_attn_idxs`; in all layers where neither is there."""
    layers, listed = range(num_layers(reader)), reader.raw.get("full_attn_idxs")
    attending = set(layers if listed is None else reader.indices("full_attn_idxs"))
    if not attending <= set(layers):
        raise reader.error("full_attn_idxs", listed, f"a list of numbers below {len(layers)}")
    names = [FULL if layer in attending else "conv" for layer in layers]
    types = read_layer_types(reader, ("conv", FULL)) or names
    if listed is not None and types != names:
        raise reader.error("full_attn_idxs", listed, "what 'layer_types' says")
    if FULL not in types:
        raise reader.unsupported("layer_types", types, f"models with {FULL!r} in some layer")
    attention = replace(read_attention(reader), qk_norm="head")
    conv = ConvSpec(
        num_channels=reader.positive("hidden_size"),
        conv_tokens=reader.positive("conv_L_cache"),
        has_bias=reader.flag("conv_bias"),
    )
    return [attention if name == FULL else conv for name in types]


NAMES = WeightNames(
    final_norm="model.embedding_norm.weight",
    attention_norm="operator_norm.weight",
    out="self_attn.out_proj.weight",
    query_norm="self_attn.q_layernorm.weight",
    key_norm="self_attn.k_layernorm.weight",
    mlp_norm="ffn_norm.weight",
    gate="feed_forward.w1.weight",
    up="feed_forward.w3.weight",
    down="feed_forward.w2.weight",
)
DEFAULTS = {
    "vocab_size": 65_536,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
}
ADJUSTED = {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256}
FAMILY = Family(
    architecture="Lfm2ForCausalLM",
    model_type="lfm2",
    defaults=DEFAULTS | ADJUSTED,
    spellings={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    names=NAMES,
    eps_key="norm_eps",
    read_layers=read_layers,
)
