"""Qwen3-VL with experts: its decoder alone, for text; that is Qwen3-MoE with the experts in two tensors."""

from __future__ import annotations

from backend.models.families import qwen3_moe, qwen3_vl
from backend.models.families.family import Family, nested
from backend.models.names import StackedNames, WeightNames

TEXT = Family(
    architecture="Qwen3VLMoeTextModel",
    model_type="qwen3_vl_moe_text",
    defaults={
        **qwen3_moe.DEFAULTS,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 128_000,
        "rope_theta": 500_000.0,
        "sliding_window": None,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": True,
    },
    names=WeightNames(
        experts=StackedNames(
            "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", has_gates_first=True
        )
    ),
    read_layers=qwen3_moe.read_layers,
)

FAMILY = nested(
    TEXT,
    architecture="Qwen3VLMoeForConditionalGeneration",
    model_type="qwen3_vl_moe",
    others=qwen3_vl.OTHERS,
)
