"""ERNIE 4.5 with experts: by softmax, and a bias that chooses, in layers from one index to another."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, RoutingConfig
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts, with_shared
from backend.models.families import ernie4_5
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_dense
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Every `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index`."""
    if reader.flag("use_bias"):
        raise reader.unsupported("use_bias", True, "false")
    count = read_either(reader, ("moe_num_experts", "num_experts", "num_local_experts"), 64)
    chosen = read_either(reader, ("moe_k", "num_experts_per_tok"), 6)
    key = "num_experts_per_tok" if reader.raw.get("moe_k") is None else "moe_k"
    own = ConfigReader(reader.path, {**reader.raw, key: chosen})
    moe = read_experts(own, count, normalise_top_k=True, chosen_key=key)
    moe = replace(with_shared(reader, moe, "moe_num_shared_experts"), routing=RoutingConfig(has_bias=True))
    attention, dense, sparse = ernie4_5.read_turned(reader), read_dense(reader), _sparse(reader)
    return tuple(
        LayerSpec(attention, moe if layer in sparse else dense) for layer in range(num_layers(reader))
    )


def _sparse(reader: ConfigReader) -> set[int]:
    """The layers that have experts."""
    count, interval = num_layers(reader), reader.positive("moe_layer_interval")
    ends = [reader.number(f"moe_layer_{name}_index") for name in ("start", "end")]
    first, last = (int(end) % count if end == int(end) and -count <= end < count else -1 for end in ends)
    if first < 0 or last < 0:
        key, found = ("moe_layer_start_index", ends[0]) if first < 0 else ("moe_layer_end_index", ends[1])
        raise reader.error(key, found, f"the index of one of {count} layers")
    return {layer for layer in range(first, last + 1) if (layer + 1) % interval == 0}


DEFAULTS = {
    **ernie4_5.DEFAULTS,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 1536,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}

FAMILY = Family(
    architecture="Ernie4_5_MoeForCausalLM",
    model_type="ernie4_5_moe",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames(router_bias="mlp.moe_statics.e_score_correction_bias")),
    read_layers=read_layers,
    others=("model.mtp_",),
)
