"""A checkpoint to compare on, and parts of configurations that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.14,  # greedy choices are no near ties, and noise is small
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 5}
QWEN_MOE = {**MOE, "moe_intermediate_size": 40, "head_dim": 32, "norm_topk_prob": True}
MIXED_MOE = {**MOE, "moe_intermediate_size": 40, "mlp_only_layers": [0], "decoder_sparse_step": 2}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}
MHA = {"num_key_value_heads": 4}
GEMMA = {"head_dim": 16, "sliding_window": 21, "query_pre_attn_scalar": 16}
GEMMA_ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e3}, "full_attention": LINEAR}
OLMO_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
FULL_TYPES = ["full_attention", "full_attention", "sliding_attention"]
GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}


@dataclass(frozen=True)
class Variant:
    """One checkpoint to compare on."""

    name: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    # Of config.json alone, after saving: keys left to the class's defaults, and keys that the class ignores.
    omitted: tuple[str, ...] = ()
    ignored: dict[str, Any] = field(default_factory=dict)
