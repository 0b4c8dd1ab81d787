"""LFM2 with experts: LFM2's mixers, and experts by sigmoids in all but the first layers."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, RoutingConfig
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import lfm2
from backend.models.layer_specs import num_layers, read_dense
from backend.models.names import ExpertNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """The first `num_dense_layers` are dense; `use_expert_bias` says whether a bias chooses experts."""
    count = read_either(reader, ("num_experts", "num_local_experts"), 32)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    routing = RoutingConfig(
        scores="sigmoid",
        has_bias=reader.flag("use_expert_bias"),
        share_factor=reader.positive_number("routed_scaling_factor"),
        sum_offset=1e-6,
    )
    dense, num_dense = read_dense(reader), reader.count("num_dense_layers")
    if num_dense > num_layers(reader):
        expected = f"at most num_hidden_layers={num_layers(reader)}"
        raise reader.error("num_dense_layers", num_dense, expected)
    moe = replace(moe, routing=routing)
    return tuple(
        LayerSpec(mixer, dense if layer < num_dense else moe)
        for layer, mixer in enumerate(lfm2.read_mixers(reader))
    )


NAMES = replace(
    lfm2.NAMES,
    experts=ExpertNames(
        router="feed_forward.gate.weight",
        gate="feed_forward.experts.{expert}.w1.weight",
        up="feed_forward.experts.{expert}.w3.weight",
        down="feed_forward.experts.{expert}.w2.weight",
        router_bias="feed_forward.expert_bias",
    ),
)
DEFAULTS = {
    **lfm2.DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts_per_tok": 4,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
FAMILY = replace(
    lfm2.FAMILY,
    architecture="Lfm2MoeForCausalLM",
    model_type="lfm2_moe",
    defaults=DEFAULTS,
    names=NAMES,
    read_layers=read_layers,
)
