"""Qwen3-MoE: Qwen3 with a mixture of experts in the layers of ModelConfig.moe_layers."""

from __future__ import annotations

from backend.models.names import ExpertNames, WeightNames

NAMES = WeightNames(
    experts=ExpertNames(
        router="mlp.gate.weight",
        gate="mlp.experts.{expert}.gate_proj.weight",
        up="mlp.experts.{expert}.up_proj.weight",
        down="mlp.experts.{expert}.down_proj.weight",
    )
)
