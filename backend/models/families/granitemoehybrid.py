"""Granite 4: Mamba-2, and attention in some layers; a dense block, alone or beside experts."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, DenseSpec, LayerSpec, MambaSpec, MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import granite, granitemoe
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_layer_types, with_biases
from backend.models.mamba_spec import read_mamba
from backend.models.names import ExpertNames, StackedNames, WeightNames
from backend.models.rope_config import FULL, LINEAR


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`num_local_experts` 0: the dense block alone."""
    size = reader.positive("shared_intermediate_size")
    block: DenseSpec | MoEConfig = DenseSpec(intermediate_size=size)
    if reader.raw.get("num_local_experts") != 0:
        count = read_either(reader, ("num_local_experts", "num_experts"), 8)
        moe = read_experts(reader, count, normalise_top_k=True, size_key="intermediate_size")
        block = replace(moe, shared_size=size)
    return tuple(LayerSpec(mixer, block) for mixer in read_mixers(reader))


def read_mixers(reader: ConfigReader) -> list[AttentionSpec | MambaSpec]:
    """By `layer_types`; attention has a rotation where `position_embedding_type` is "rope"."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, scale=reader.positive_number("attention_multiplier"))
    if reader.raw.get("position_embedding_type") != "rope":
        attention = replace(attention, rope=None)
    inner_size = reader.positive("mamba_expand") * reader.positive("hidden_size")
    mamba = read_mamba(reader, inner_size, "gated")
    kinds: dict[str, AttentionSpec | MambaSpec] = {"mamba": mamba, LINEAR: mamba}
    kinds |= {"attention": attention, FULL: attention}
    found = [kinds[name] for name in read_layer_types(reader, tuple(kinds)) or ()]
    if attention not in found:
        raise reader.unsupported("layer_types", reader.raw.get("layer_types"), "models with some 'attention'")
    return found


DEFAULTS = {
    **granitemoe.FAMILY.defaults,
    "shared_intermediate_size": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}
MOE = granitemoe.FAMILY.names.experts
assert isinstance(MOE, StackedNames)
SHARED = WeightNames(gate_up="input_linear.weight", down="output_linear.weight")
FAMILY = Family(
    architecture="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    defaults=DEFAULTS,
    names=WeightNames(
        gate_up="shared_mlp.input_linear.weight",
        down="shared_mlp.output_linear.weight",
        experts=ExpertNames(stacked=MOE, shared="shared_mlp.", shared_names=SHARED),
    ),
    read_layers=read_layers,
    read_scalars=granite.read_scalars,
)
