"""Nemotron-H and 3: one block a layer, Mamba-2, attention, relu² or experts (arXiv:2504.03624)."""

from __future__ import annotations

import math
from dataclasses import replace

from backend.config import LayerSpec, MambaSpec, MoEConfig, RopeConfig, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import grouped, read_either, read_experts, sigmoid_routing
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_blocks, read_plain
from backend.models.mamba_spec import read_groups
from backend.models.names import in_one_block


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Attention has no rotation; what kinds of layers need is read where there are some."""
    for key, only in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
        if reader.raw.get(key, only) != only:
            raise reader.unsupported(key, reader.raw[key], repr(only))
    attention = read_attention(reader, RopeConfig())
    kinds = {
        "M": lambda: LayerSpec(read_own_mamba(reader), None),
        "*": lambda: LayerSpec(replace(attention, rope=None), None),
        "-": lambda: LayerSpec(None, read_plain(reader, "relu2", has_bias=reader.flag("mlp_bias"))),
        "E": lambda: LayerSpec(None, read_own_experts(reader)),
    }
    return read_blocks(reader, kinds)


def read_own_mamba(reader: ConfigReader) -> MambaSpec:
    """Time steps are at least `time_step_min`."""
    heads = reader.positive("mamba_num_heads")
    return MambaSpec(
        num_heads=heads,
        num_groups=read_groups(reader, "n_groups", heads),
        head_dim=reader.positive("mamba_head_dim"),
        state_size=reader.positive("ssm_state_size"),
        conv_tokens=reader.positive("conv_kernel"),
        conv_bias=reader.flag("use_conv_bias"),
        in_bias=reader.flag("use_bias"),
        out_bias=reader.flag("use_bias"),
        time_step_limits=(reader.number("time_step_min"), math.inf),
    )


def read_own_experts(reader: ConfigReader) -> MoEConfig:
    """By sigmoids and a bias, with a block that every token goes through."""
    if reader.flag("mlp_bias"):
        raise reader.unsupported("mlp_bias", True, "false where there are experts")
    count = read_either(reader, ("n_routed_experts", "num_local_experts"), 8)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    size = reader.positive("moe_shared_expert_intermediate_size")
    latent = reader.optional_positive("moe_latent_size")
    moe = replace(moe, gate="relu2", shared_size=size, latent_size=latent)
    return grouped(reader, moe, sigmoid_routing(reader, "routed_scaling_factor"))


DEFAULTS = {
    **{"vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 21_504, "hidden_act": "relu2"},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "layer_norm_epsilon": 1e-5},
    **{"max_position_embeddings": 4096, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8},
    **{"ssm_state_size": 128, "conv_kernel": 4, "use_conv_bias": True, "time_step_min": 0.001},
    **{"num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    **{"moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688},
}
FAMILY = Family(
    architecture="NemotronHForCausalLM",
    model_type="nemotron_h",
    defaults=DEFAULTS,
    spellings={"layer_types": "layers_block_type"},
    names=in_one_block("backbone.", "mixer."),
    eps_key="layer_norm_epsilon",
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(exact_norms=True),
    others=("mtp.",),
)
