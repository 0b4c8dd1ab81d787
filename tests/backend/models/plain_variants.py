"""Variants of the families without nested parts, states or routing of their own."""

from __future__ import annotations

from tests.backend.models.variant import (
    FULL_TYPES,
    GEMMA,
    GEMMA_ROPES,
    GRANITE,
    LINEAR,
    LLAMA3,
    MHA,
    MIXED_MOE,
    MOE,
    OLMO_TYPES,
    PARTIAL,
    QWEN_MOE,
    QWEN_WINDOW,
    UNTIED,
    YARN,
    Variant,
)

TIED = {"tie_word_embeddings": True}
BIASES = {"attention_bias": True}
ALL_BIASES = {**BIASES, "mlp_bias": True}
SHORT = {"sliding_window": 5}
OLMO = {"sliding_window": 21, "layer_types": OLMO_TYPES}
OLMO_ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e6}, "full_attention": YARN}
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
NO_WINDOW = {"sliding_window": None, "layer_types": ["full_attention"] * 3}
MOST_ROTATED = {**PARTIAL, "partial_rotary_factor": 0.75}

PLAIN_VARIANTS = [
    Variant("llama", "llama"),
    Variant("llama-mha-tied", "llama", {**MHA, **TIED}),
    Variant("llama-biases", "llama", ALL_BIASES),
    Variant("llama-llama3-rope", "llama", {"rope_parameters": LLAMA3, "head_dim": 32}),
    Variant("llama-linear-rope", "llama", {"rope_parameters": LINEAR}),
    Variant("mistral-window", "mistral", {"sliding_window": 37, "head_dim": 24}),
    Variant("mistral-no-window", "mistral", {"sliding_window": None}),
    Variant("mistral-tied", "mistral", {**SHORT, **MHA, **TIED, "rope_parameters": YARN}),
    Variant("qwen2", "qwen2", TIED),
    Variant("qwen2-window", "qwen2", QWEN_WINDOW),
    Variant("qwen2-yarn", "qwen2", {"rope_parameters": YARN}),
    Variant("qwen3", "qwen3", {"head_dim": 32, **TIED}),
    Variant("qwen3-biases", "qwen3", {"head_dim": 16, **BIASES}),
    Variant("qwen3-yarn-factor", "qwen3", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    Variant("qwen3-window", "qwen3", {"head_dim": 24, **QWEN_WINDOW, **SHORT, "rope_parameters": LINEAR}),
    Variant("mixtral", "mixtral", MOE),
    Variant("mixtral-window", "mixtral", {**MOE, "sliding_window": 19}),
    Variant("mixtral-tied", "mixtral", {**MOE, **MHA, **TIED, "num_experts_per_tok": 1, "head_dim": 24}),
    Variant(
        "mixtral-all-experts",
        "mixtral",
        {**MOE, "num_experts_per_tok": 5, "head_dim": 16, "rope_parameters": YARN},
    ),
    Variant("qwen3-moe", "qwen3_moe", QWEN_MOE),
    Variant("qwen3-moe-mixed", "qwen3_moe", MIXED_MOE),
    Variant("qwen3-moe-window", "qwen3_moe", {**QWEN_MOE, **QWEN_WINDOW, "num_experts_per_tok": 1}),
    Variant("qwen3-moe-biases", "qwen3_moe", {**QWEN_MOE, **BIASES, **TIED, "rope_parameters": YARN}),
    Variant("gemma", "gemma", {"head_dim": 16}),
    Variant("gemma-biases", "gemma", {"head_dim": 24, **BIASES, **UNTIED}),
    Variant("gemma-linear", "gemma", {"head_dim": 32, **MHA, "rope_parameters": LINEAR}),
    Variant("gemma-yarn", "gemma", {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": YARN}),
    Variant("gemma2", "gemma2", GEMMA),
    Variant("gemma2-capped", "gemma2", {**GEMMA, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 24}),
    Variant("gemma2-types", "gemma2", {**GEMMA, **NO_CAPS, **UNTIED, "layer_types": FULL_TYPES}),
    Variant("gemma2-biases", "gemma2", {**GEMMA, **BIASES, **SHORT, "final_logit_softcapping": 3.0}),
    Variant("gemma3", "gemma3_text", GEMMA),
    Variant("gemma3-linear", "gemma3_text", {**GEMMA, "rope_parameters": GEMMA_ROPES}),
    Variant("gemma3-biases", "gemma3_text", {**GEMMA, **BIASES, **SHORT, **UNTIED, **MHA}),
    Variant("gemma3-pattern", "gemma3_text", {**GEMMA, "sliding_window_pattern": 2, "head_dim": 24}),
    Variant("seed-oss", "seed_oss", {"head_dim": 16}),
    Variant("seed-oss-biases", "seed_oss", {"head_dim": 24, "attention_out_bias": True, "mlp_bias": True}),
    Variant("seed-oss-tied", "seed_oss", {"head_dim": 16, "attention_bias": False, **TIED, **MHA}),
    Variant("seed-oss-yarn", "seed_oss", {"head_dim": 32, "rope_parameters": YARN}),
    Variant("smollm3", "smollm3", {"no_rope_layer_interval": 2}),
    Variant("smollm3-biases", "smollm3", {"no_rope_layers": [0, 1, 1], **ALL_BIASES, **UNTIED}),
    Variant("smollm3-window", "smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, **SHORT}),
    Variant("smollm3-yarn", "smollm3", {"no_rope_layers": [1, 1, 0], "rope_parameters": YARN, **MHA}),
    Variant("olmo2", "olmo2"),
    Variant("olmo2-biases", "olmo2", BIASES),
    Variant("olmo2-tied", "olmo2", {**TIED, **MHA, "rope_parameters": LINEAR}),
    Variant("olmo2-yarn", "olmo2", {"rope_parameters": YARN}),
    Variant("olmo3", "olmo3", OLMO),
    Variant("olmo3-biases", "olmo3", {**SHORT, **BIASES, **MHA}),
    Variant("olmo3-tied", "olmo3", {**TIED, "sliding_window": 21, "layer_types": FULL_TYPES}),
    Variant("olmo3-yarn", "olmo3", {**OLMO, "rope_parameters": OLMO_ROPES}),
    Variant("exaone4", "exaone4", {"sliding_window": 21, "sliding_window_pattern": 2}),
    Variant("exaone4-short", "exaone4", {**SHORT, **MHA, "sliding_window_pattern": 3}),
    Variant("exaone4-full", "exaone4", {**TIED, **NO_WINDOW, "rope_parameters": LLAMA3}),
    Variant("exaone4-types", "exaone4", {"sliding_window": 21, "layer_types": FULL_TYPES, "head_dim": 24}),
    Variant("granite", "granite", GRANITE),
    Variant("granite-biases", "granite", {**GRANITE, **ALL_BIASES, "residual_multiplier": 1.0}),
    Variant("granite-tied", "granite", {**GRANITE, **TIED, **MHA, "logits_scaling": 0.7}),
    Variant("granite-yarn", "granite", {**GRANITE, "embedding_multiplier": 1.0, "rope_parameters": YARN}),
    Variant("phi3", "phi3"),
    Variant("phi3-partial", "phi3", {"rope_parameters": PARTIAL, "sliding_window": 21}),
    Variant("phi3-tied", "phi3", {**TIED, **MHA, **SHORT}),
    Variant("phi3-most-rotated", "phi3", {"rope_parameters": MOST_ROTATED, "num_key_value_heads": 1}),
]
