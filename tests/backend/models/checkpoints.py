"""Tiny random checkpoints of every family and rope variant, written by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from tests.backend.models.plain_variants import PLAIN_VARIANTS
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
    SHAPE,
    TIED,
    UNTIED,
    YARN,
    Variant,
)

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.6],
    "long_factor": [1.2, 1.9, 3.0, 5.0, 9.0, 14.0],
    "partial_rotary_factor": 0.75,
}
QWEN2_MOE = {
    **{"num_experts_per_tok": 2, "num_experts": 5, "moe_intermediate_size": 40},
    "shared_expert_intermediate_size": 56,
}
GLM_MOE = {"num_experts_per_tok": 2, "n_routed_experts": 6, "moe_intermediate_size": 40, "head_dim": 16}
GLM_GROUPS = {**GLM_MOE, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "use_qk_norm": True}
HY3 = {"num_experts_per_tok": 2, "num_experts": 6, "moe_intermediate_size": 40, "head_dim": 16}
AFMOE = {"num_experts_per_tok": 2, "num_experts": 5, "moe_intermediate_size": 40, "head_dim": 16}
AFMOE |= {"sliding_window": 21, "global_attn_every_n_layers": 2}
MUSE = {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 21}
MUSE_VISION = {
    "vision_config": {
        **{"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "num_attention_heads": 2},
        "patch_size": 14,
    },
    **{"out_hidden_size": 128, "projector_hidden_size": 32},
}
LAGUNA = {**AFMOE, "shared_expert_intermediate_size": 56, "num_attention_heads_per_layer": [4, 8, 2]}
MINIMAX = {**MOE, "head_dim": 16, "rope_parameters": PARTIAL}
ERNIE_MOE = {"moe_k": 2, "moe_num_experts": 6, "moe_intermediate_size": 40, "num_hidden_layers": 4}
QUARTER_SHARE = {"partial_rotary_factor": 0.25}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 20, "v_head_dim": 12},
    **{"qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "num_experts_per_tok": 2, "n_routed_experts": 6},
    **{"moe_intermediate_size": 40, "first_k_dense_replace": 1},
}
LATENT_GROUPS = {**LATENT, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
ONE_GROUP = {**LATENT, "n_group": 1, "topk_group": 1}
LATENT_YARN = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENT_V2 = {**LATENT, "norm_topk_prob": False}
GLM_LITE = {key: value for key, value in LATENT.items() if key != "first_k_dense_replace"}
QUARTER = {**PARTIAL, "partial_rotary_factor": 0.25}
SCALED = {"logit_scale": 0.25}
SMALL = {"initializer_range": 0.1}  # of squares noise grows faster
EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 131072}
BIASES = {"attention_bias": True, "mlp_bias": True}
SIGLIP = {
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
}
PIXTRAL = {"vision_config": {**SIGLIP["vision_config"], "model_type": "pixtral", "head_dim": 16}}
QWEN_VISION = {
    "vision_config": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
}
QWEN_TIED = {**QWEN_VISION, **TIED}
MROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 4, 4], "mrope_interleaved": True}
MINISTRAL = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
MINISTRAL["original_max_position_embeddings"] = 32
MINISTRAL_MSCALE = {**MINISTRAL, "mscale": 0.7, "llama_4_scaling_beta": 0.9}
GROWING = {"model_type": "ministral3", "head_dim": 16, "rope_parameters": MINISTRAL}
GEMMA_NESTED_ROPES = {"text_config": {**GEMMA, "sliding_window_pattern": 2, "rope_parameters": GEMMA_ROPES}}
GEMMA_UNTIED = {
    "text_config": {**GEMMA, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "tie_word_embeddings": False,
}
GEMMA_BIASES = {"text_config": {**GEMMA, "attention_bias": True, "sliding_window": 7}}
GPT_OSS = {**MOE, "head_dim": 16, "sliding_window": 21}
NO_YARN = {"rope_type": "default", "rope_theta": 1e4}
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 21,
    "hidden_size_per_layer_input": 0,
    "initializer_range": 0.04,  # scores are not scaled
}
GEMMA4_KEYS = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
LAYER_INPUTS = {**GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 199}
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 40}
TOP_3 = {"top_k_experts": 3, "num_experts": 8}
PAD = {"pad_token_id": 0}  # transformers puts it in the place of images
GEMMA4_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "position_embedding_size": 64,
}
GEMMA4_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA4_SHARED = {
    **LAYER_INPUTS,  # transformers shares no keys without them
    "num_hidden_layers": 4,
    "layer_types": GEMMA4_TYPES,
    "num_kv_shared_layers": 2,
}
DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "head_dim": 32,
    "initializer_range": 0.06,  # noise grows with the states
}
DELTA_MOE = {**DELTA, **QWEN2_MOE, "linear_value_head_dim": 16}
DELTA_VISION = {
    "vision_config": {
        **{"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48},
        **{"out_hidden_size": 64, "num_position_embeddings": 16},
    }
}
LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "initializer_range": 0.1,
}
LFM2_MOE = {
    **{"num_experts_per_tok": 2, "num_experts": 5, "moe_intermediate_size": 40, "num_dense_layers": 1},
    **LFM2,
}
CONV_LAST = ["full_attention", "full_attention", "conv", "conv"]
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "initializer_range": 0.1}
GRANITE_HYBRID = {
    **{**GRANITE, **MAMBA, **MOE, "num_hidden_layers": 4, "shared_intermediate_size": 56},
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
ROTATED = {"position_embedding_type": "rope", "mamba_n_groups": 2, "attention_bias": True}
FALCON_H1 = {
    **{**MAMBA, "mamba_d_ssm": 128, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.9},
    **{"ssm_multipliers": [0.7, 1.3, 0.8, 1.1, 0.6], "mlp_multipliers": [0.8, 1.4], "key_multiplier": 0.7},
    **{"attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9},
    **{"embedding_multiplier": 2.0, "lm_head_multiplier": 0.5},
}
FALCON_BIASES = {
    **{**BIASES, "projectors_bias": True, "mamba_proj_bias": True},
    **{"mamba_rms_norm": True, "mamba_norm_before_gate": False},
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 12, "n_groups": 2, "head_dim": 16},
    **{"n_routed_experts": 6, "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 48},
    "initializer_range": 0.1,
}
NEMOTRON_GROUPS = {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "conv_kernel": 2}
NEMOTRON_GROUPS |= {"moe_latent_size": 24}  # as in Nemotron 3 Super
NEMOTRON_BIASES = {
    "layers_block_type": ["full_attention", "linear_attention", "mlp", "mlp"],
    **{"mlp_bias": True, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
}
DELTA_FIRST = {"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]}
OMITTED = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
    "hidden_act",
    "tie_word_embeddings",
)


def _nested(name: str, model_type: str, text: dict[str, Any], outer: dict[str, Any]) -> Variant:
    return Variant(name, model_type, {"text_config": text, **outer})


VARIANTS = [
    *PLAIN_VARIANTS,
    Variant("qwen2-moe", "qwen2_moe", QWEN2_MOE),
    Variant("qwen2-moe-mixed", "qwen2_moe", {**QWEN2_MOE, "mlp_only_layers": [1], "norm_topk_prob": True}),
    Variant("qwen2-moe-window", "qwen2_moe", {**QWEN2_MOE, **QWEN_WINDOW, "max_window_layers": 2}),
    Variant("qwen2-moe-tied", "qwen2_moe", {**QWEN2_MOE, "qkv_bias": False, "tie_word_embeddings": True}),
    Variant("glm4-moe", "glm4_moe", GLM_MOE),
    Variant("glm4-moe-groups", "glm4_moe", GLM_GROUPS),
    Variant("glm4-moe-raw-shares", "glm4_moe", {**GLM_MOE, "norm_topk_prob": False, "n_shared_experts": 2}),
    Variant("glm4-moe-biases", "glm4_moe", {**GLM_MOE, "attention_bias": True, "first_k_dense_replace": 2}),
    Variant("deepseek-v3", "deepseek_v3", LATENT_GROUPS),
    Variant("deepseek-v3-yarn", "deepseek_v3", {**LATENT_GROUPS, "rope_parameters": LATENT_YARN}),
    Variant(
        "deepseek-v3-halves",
        "deepseek_v3",
        {**ONE_GROUP, "rope_interleave": False, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    Variant("deepseek-v3-biases", "deepseek_v3", {**ONE_GROUP, "attention_bias": True, "q_lora_rank": None}),
    Variant("deepseek-v2", "deepseek_v2", LATENT_V2),
    Variant(
        "deepseek-v2-groups",
        "deepseek_v2",
        {**LATENT_GROUPS, "topk_method": "group_limited_greedy", "norm_topk_prob": False},
    ),
    Variant(
        "deepseek-v2-lite",
        "deepseek_v2",
        {
            **LATENT_V2,
            "q_lora_rank": None,
            "rope_parameters": {**LATENT_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    Variant(
        "deepseek-v2-biases",
        "deepseek_v2",
        {**LATENT_V2, "attention_bias": True, "tie_word_embeddings": True, "routed_scaling_factor": 2.0},
    ),
    Variant("glm4-moe-lite", "glm4_moe_lite", GLM_LITE),
    Variant(
        "glm4-moe-lite-types", "glm4_moe_lite", {**GLM_LITE, "mlp_layer_types": ["sparse", "dense", "sparse"]}
    ),
    Variant(
        "glm4-moe-lite-groups",
        "glm4_moe_lite",
        {**GLM_LITE, "n_group": 3, "topk_group": 2, "rope_parameters": LATENT_YARN},
    ),
    Variant(
        "glm4-moe-lite-tied",
        "glm4_moe_lite",
        {**GLM_LITE, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True},
    ),
    Variant("hy3", "hy_v3", HY3),
    Variant("hy3-sparse", "hy_v3", {**HY3, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    Variant("hy3-biases", "hy_v3", {**HY3, "attention_bias": True, "num_shared_experts": 2}),
    Variant("hy3-tied", "hy_v3", {**HY3, "tie_word_embeddings": True, "router_scaling_factor": 1.5}),
    Variant("afmoe", "afmoe", {**AFMOE, "mup_enabled": True, "route_scale": 2.5}),
    Variant("afmoe-types", "afmoe", {**AFMOE, "layer_types": FULL_TYPES, "num_shared_experts": 1}),
    Variant("afmoe-biases", "afmoe", {**AFMOE, "attention_bias": True, "num_dense_layers": 2, **MHA}),
    Variant("afmoe-tied", "afmoe", {**AFMOE, "tie_word_embeddings": True, "num_dense_layers": 0}),
    Variant("laguna", "laguna", {**LAGUNA, "layer_types": OLMO_TYPES, "moe_routed_scaling_factor": 2.5}),
    Variant("laguna-elements", "laguna", {**LAGUNA, "gating": "per-element", "layer_types": FULL_TYPES}),
    Variant(
        "laguna-capped", "laguna", {**LAGUNA, "moe_router_logit_softcapping": 1.5, "attention_bias": True}
    ),
    Variant(
        "laguna-yarn",
        "laguna",
        {
            **{**LAGUNA, "layer_types": OLMO_TYPES, "mlp_layer_types": ["sparse", "dense", "sparse"]},
            "rope_parameters": {"full_attention": {**YARN, **QUARTER_SHARE}, "sliding_attention": PARTIAL},
        },
    ),
    _nested("muse-glimmer", "muse_glimmer", MUSE, MUSE_VISION),
    _nested("muse-capped", "muse_glimmer", {**MUSE, "final_logit_softcapping": 0.5}, MUSE_VISION),
    _nested("muse-biases", "muse_glimmer", {**MUSE, "attention_bias": True, **MHA}, MUSE_VISION),
    _nested(
        "muse-thetas",
        "muse_glimmer",
        {**MUSE, "num_hidden_layers": 3, "layer_types": OLMO_TYPES, "layer_rope_theta": [0, 1e4, 1e4]},
        MUSE_VISION,
    ),
    Variant("minimax-m2", "minimax_m2", MINIMAX),
    Variant("minimax-m2-full", "minimax_m2", {**MINIMAX, "rope_parameters": None, "head_dim": 24}),
    Variant("minimax-m2-tied", "minimax_m2", {**MINIMAX, "tie_word_embeddings": True, **MHA}),
    Variant("minimax-m2-three", "minimax_m2", {**MINIMAX, "num_experts_per_tok": 3, "rope_parameters": YARN}),
    Variant("ernie4.5", "ernie4_5", {"head_dim": 16}),
    Variant("ernie4.5-biases", "ernie4_5", {"use_bias": True, "head_dim": 24}),
    Variant("ernie4.5-untied", "ernie4_5", {"tie_word_embeddings": False, "head_dim": 32, **MHA}),
    Variant("ernie4.5-yarn", "ernie4_5", {"rope_parameters": YARN, "head_dim": 16}),
    Variant("ernie4.5-moe", "ernie4_5_moe", ERNIE_MOE),
    Variant("ernie4.5-moe-interval", "ernie4_5_moe", {**ERNIE_MOE, "moe_layer_interval": 2}),
    Variant("ernie4.5-moe-ends", "ernie4_5_moe", {**ERNIE_MOE, "moe_layer_end_index": 2, "moe_k": 3}),
    Variant("ernie4.5-moe-alone", "ernie4_5_moe", {**ERNIE_MOE, "moe_num_shared_experts": 0}),
    Variant("glm4", "glm4", {"head_dim": 16}),
    Variant("glm4-no-biases", "glm4", {"head_dim": 24, "attention_bias": False}),
    Variant("glm4-tied", "glm4", {"head_dim": 32, "tie_word_embeddings": True, **MHA}),
    Variant(
        "glm4-quarter",
        "glm4",
        {"head_dim": 16, "rope_parameters": QUARTER},
    ),
    Variant("hunyuan", "hunyuan_v1_dense", {"head_dim": 16}),
    Variant("hunyuan-dynamic", "hunyuan_v1_dense", {"head_dim": 16, "rope_parameters": DYNAMIC}),
    Variant("hunyuan-biases", "hunyuan_v1_dense", {"head_dim": 24, "attention_bias": True}),
    Variant("hunyuan-tied", "hunyuan_v1_dense", {"head_dim": 32, "tie_word_embeddings": True, **MHA}),
    Variant("arcee", "arcee"),
    Variant("arcee-biases", "arcee", {"attention_bias": True, "mlp_bias": True}),
    Variant("arcee-tied", "arcee", {"tie_word_embeddings": True, **MHA}),
    Variant("arcee-yarn", "arcee", {"rope_parameters": YARN, "head_dim": 32}),
    Variant("starcoder2", "starcoder2"),
    Variant("starcoder2-window", "starcoder2", {"sliding_window": 21}),
    Variant("starcoder2-no-biases", "starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    Variant("starcoder2-linear", "starcoder2", {"rope_parameters": LINEAR, **MHA}),
    Variant("cohere", "cohere", SCALED),
    Variant("cohere-norms", "cohere", {**SCALED, "use_qk_norm": True}),
    Variant("cohere-biases", "cohere", {**SCALED, "attention_bias": True, "tie_word_embeddings": False}),
    Variant("cohere-mha", "cohere", {**SCALED, **MHA, "logit_scale": 0.5}),
    Variant("cohere2", "cohere2", {**SCALED, "sliding_window": 21, "layer_types": OLMO_TYPES}),
    Variant("cohere2-pattern", "cohere2", {**SCALED, "sliding_window": 37}),
    Variant("cohere2-biases", "cohere2", {**SCALED, "attention_bias": True, "sliding_window": 5}),
    Variant("cohere2-untied", "cohere2", {**SCALED, "tie_word_embeddings": False, **MHA}),
    Variant("nemotron", "nemotron", SMALL),
    Variant("nemotron-biases", "nemotron", {**SMALL, "attention_bias": True, "mlp_bias": True}),
    Variant("nemotron-tied", "nemotron", {**SMALL, "tie_word_embeddings": True, "head_dim": 24}),
    Variant("nemotron-quarter", "nemotron", {**SMALL, "head_dim": 16, "rope_parameters": QUARTER}),
    Variant("apertus", "apertus"),
    Variant("apertus-biases", "apertus", {"attention_bias": True}),
    Variant("apertus-tied", "apertus", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    Variant("apertus-mha", "apertus", {**MHA, "rope_parameters": {**LLAMA3, "factor": 2.0}}),
    Variant("gemma4", "gemma4_text", {**GEMMA4_SHARED, "final_logit_softcapping": 5.0}),
    Variant("gemma4-dense", "gemma4_text", GEMMA4),
    Variant("gemma4-keys", "gemma4_text", {**GEMMA4_KEYS, "attention_bias": True}),
    Variant("gemma4-published", "gemma4_text", GEMMA4_KEYS, ("per_layer_config",), GEMMA4_KEYS),
    Variant(
        "gemma4-shared-keys", "gemma4_text", {**GEMMA4_KEYS, **GEMMA4_SHARED, "use_double_wide_mlp": True}
    ),
    Variant("gemma4-experts", "gemma4_text", {**GEMMA4, **GEMMA4_MOE}),
    Variant("gemma4-experts-keys", "gemma4_text", {**GEMMA4_KEYS, **GEMMA4_SHARED, **GEMMA4_MOE, **TOP_3}),
    Variant("gemma4-experts-one", "gemma4_text", {**LAYER_INPUTS, **GEMMA4_MOE, "top_k_experts": 1}),
    Variant("gemma4-experts-untied", "gemma4_text", {**GEMMA4, **GEMMA4_MOE, **UNTIED, **TOP_3, **MHA}),
    Variant("gemma4-nested", "gemma4", {"text_config": {**GEMMA4_SHARED, **PAD}}),
    Variant(
        "gemma4-nested-tower",
        "gemma4",
        {"text_config": {**GEMMA4_KEYS, **PAD}, "vision_config": GEMMA4_TOWER},
    ),
    Variant("gemma4-nested-experts", "gemma4", {"text_config": {**GEMMA4, **GEMMA4_MOE, **PAD}}),
    Variant(
        "gemma4-nested-untied",
        "gemma4",
        {"text_config": {**LAYER_INPUTS, **PAD}, "tie_word_embeddings": False},
    ),
    Variant("gemma4-inputs", "gemma4_text", {**LAYER_INPUTS, "tie_word_embeddings": False}),
    _nested("gemma3-nested", "gemma3", GEMMA, SIGLIP),
    Variant("gemma3-nested-ropes", "gemma3", GEMMA_NESTED_ROPES | SIGLIP),
    Variant("gemma3-nested-untied", "gemma3", GEMMA_UNTIED | SIGLIP),
    Variant("gemma3-nested-biases", "gemma3", GEMMA_BIASES | SIGLIP),
    _nested("qwen3-vl", "qwen3_vl", {"head_dim": 16}, QWEN_VISION),
    Variant(
        "qwen3-vl-mrope",
        "qwen3_vl",
        {"text_config": {"head_dim": 24, "rope_parameters": MROPE}, **QWEN_VISION},
    ),
    _nested("qwen3-vl-tied", "qwen3_vl", {"attention_bias": True}, QWEN_TIED),
    _nested("qwen3-vl-mha", "qwen3_vl", {**MHA, "head_dim": 32}, QWEN_VISION),
    _nested("qwen3-vl-moe", "qwen3_vl_moe", QWEN_MOE, QWEN_VISION),
    _nested("qwen3-vl-moe-mixed", "qwen3_vl_moe", MIXED_MOE, QWEN_VISION),
    Variant(
        "qwen3-vl-moe-tied",
        "qwen3_vl_moe",
        {"text_config": {**QWEN_MOE, "attention_bias": True}, **QWEN_TIED},
    ),
    Variant(
        "qwen3-vl-moe-mrope",
        "qwen3_vl_moe",
        {"text_config": {**QWEN_MOE, "rope_parameters": MROPE}, **QWEN_VISION},
    ),
    Variant("ministral3", "ministral3", {"head_dim": 16, "rope_parameters": MINISTRAL}),
    Variant(
        "ministral3-window",
        "ministral3",
        {"head_dim": 24, "sliding_window": 21, "rope_parameters": MINISTRAL},
    ),
    Variant(
        "ministral3-mscale",
        "ministral3",
        {"rope_parameters": MINISTRAL_MSCALE},
    ),
    Variant(
        "ministral3-tied", "ministral3", {**MHA, "tie_word_embeddings": True, "rope_parameters": MINISTRAL}
    ),
    Variant(
        "mistral3",
        "mistral3",
        {"text_config": {"model_type": "mistral", "head_dim": 16}, **PIXTRAL, **UNTIED},
    ),
    Variant(
        "mistral3-tied",
        "mistral3",
        {"text_config": {"model_type": "mistral", "sliding_window": None}, **PIXTRAL},
    ),
    Variant(
        "mistral3-window",
        "mistral3",
        {"text_config": {"model_type": "mistral", "sliding_window": 19}, **PIXTRAL},
    ),
    Variant(
        "mistral3-growing",
        "mistral3",
        {
            "text_config": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": MINISTRAL},
            **PIXTRAL,
            **UNTIED,
        },
    ),
    Variant("granite-moe", "granitemoe", {**GRANITE, **MOE}),
    Variant("granite-moe-three", "granitemoe", {**GRANITE, **MOE, "num_experts_per_tok": 3}),
    Variant("granite-moe-biases", "granitemoe", {**GRANITE, **MOE, "attention_bias": True, **MHA}),
    Variant("granite-moe-tied", "granitemoe", {**GRANITE, **MOE, "tie_word_embeddings": True}),
    Variant("phi3-short", "phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 512}),
    Variant(
        "phi3-long",
        "phi3",
        {
            "rope_parameters": {**LONGROPE, "attention_factor": 1.3},
            **{"original_max_position_embeddings": 2, "tie_word_embeddings": True},
        },
    ),
    Variant("gpt-oss", "gpt_oss", {**GPT_OSS, "num_hidden_layers": 4}),
    Variant("gpt-oss-clamped", "gpt_oss", {**GPT_OSS, "swiglu_limit": 0.7, "num_experts_per_tok": 1}),
    Variant("gpt-oss-tied", "gpt_oss", {**GPT_OSS, "tie_word_embeddings": True, "attention_bias": False}),
    Variant("gpt-oss-full", "gpt_oss", {**GPT_OSS, "layer_types": FULL_TYPES, "rope_parameters": NO_YARN}),
    Variant("qwen3.5", "qwen3_5_text", DELTA),
    Variant("qwen3.5-nested", "qwen3_5", {"text_config": DELTA, **DELTA_VISION}),
    _nested("qwen3.5-nested-types", "qwen3_5", {**DELTA, **DELTA_FIRST}, {**DELTA_VISION, **TIED}),
    _nested("qwen3.5-nested-biases", "qwen3_5", {**DELTA, "attention_bias": True, **MHA}, DELTA_VISION),
    _nested("qwen3.5-nested-one-head", "qwen3_5", {**DELTA, "linear_num_key_heads": 4}, DELTA_VISION),
    Variant("qwen3-next", "qwen3_next", DELTA_MOE),
    Variant("qwen3-next-mixed", "qwen3_next", {**DELTA_MOE, "mlp_only_layers": [1], "norm_topk_prob": False}),
    Variant("qwen3-next-one-head", "qwen3_next", {**DELTA_MOE, "linear_num_key_heads": 4}),
    Variant("qwen3-next-types", "qwen3_next", {**DELTA_MOE, **DELTA_FIRST, "tie_word_embeddings": True}),
    Variant("lfm2", "lfm2", LFM2),
    Variant("lfm2-biases", "lfm2", {**LFM2, "conv_bias": True, "conv_L_cache": 2, "block_multiple_of": 32}),
    Variant("lfm2-exact", "lfm2", {**LFM2, "block_auto_adjust_ff_dim": False, "layer_types": CONV_LAST}),
    Variant("lfm2-untied", "lfm2", {**LFM2, "tie_word_embeddings": False, "conv_L_cache": 5, **MHA}),
    Variant("lfm2-moe", "lfm2_moe", LFM2_MOE),
    Variant("lfm2-moe-no-bias", "lfm2_moe", {**LFM2_MOE, "use_expert_bias": False, "conv_bias": True}),
    Variant("lfm2-moe-raw", "lfm2_moe", {**LFM2_MOE, "norm_topk_prob": False, "routed_scaling_factor": 2.5}),
    Variant("lfm2-moe-sparse", "lfm2_moe", {**LFM2_MOE, "num_dense_layers": 0, **MHA}),
    Variant("granite-hybrid", "granitemoehybrid", GRANITE_HYBRID),
    Variant("granite-hybrid-dense", "granitemoehybrid", {**GRANITE_HYBRID, "num_local_experts": 0, **MHA}),
    Variant("granite-hybrid-rope", "granitemoehybrid", {**GRANITE_HYBRID, **ROTATED}),
    Variant("granite-hybrid-limits", "granitemoehybrid", {**GRANITE_HYBRID, "time_step_limit": [1.2, 1.4]}),
    Variant("falcon-h1", "falcon_h1", FALCON_H1),
    Variant("falcon-h1-norm", "falcon_h1", {**FALCON_H1, "mamba_rms_norm": True, "mamba_n_groups": 2}),
    Variant("falcon-h1-biases", "falcon_h1", {**FALCON_H1, **FALCON_BIASES}),
    Variant("falcon-h1-plain", "falcon_h1", {**MAMBA, "mamba_d_ssm": None, "tie_word_embeddings": True}),
    Variant("nemotron-h", "nemotron_h", NEMOTRON_H),
    Variant("nemotron-h-clamped", "nemotron_h", {**NEMOTRON_H, "time_step_min": 1.3}),
    Variant("nemotron-h-groups", "nemotron_h", {**NEMOTRON_H, **NEMOTRON_GROUPS}),
    Variant("nemotron-h-biases", "nemotron_h", {**NEMOTRON_H, **NEMOTRON_BIASES}),
    Variant("qwen3.5-moe", "qwen3_5_moe_text", DELTA_MOE),
    Variant("qwen3.5-moe-one", "qwen3_5_moe_text", {**DELTA_MOE, "num_experts_per_tok": 1, **DELTA_FIRST}),
    Variant("qwen3.5-moe-tied", "qwen3_5_moe_text", {**DELTA_MOE, "tie_word_embeddings": True, **MHA}),
    Variant("qwen3.5-moe-biases", "qwen3_5_moe_text", {**DELTA_MOE, "attention_bias": True}),
    _nested("qwen3.5-moe-nested", "qwen3_5_moe", DELTA_MOE, DELTA_VISION),
    _nested("qwen3.5-moe-nested-types", "qwen3_5_moe", {**DELTA_MOE, **DELTA_FIRST}, DELTA_VISION),
    _nested(
        "qwen3.5-moe-nested-heads", "qwen3_5_moe", {**DELTA_MOE, "linear_num_key_heads": 4}, DELTA_VISION
    ),
    Variant(
        "qwen3.5-moe-nested-tied",
        "qwen3_5_moe",
        {"text_config": {**DELTA_MOE, **MHA}, **DELTA_VISION, "tie_word_embeddings": True},
    ),
    Variant("qwen3.5-types", "qwen3_5_text", {**DELTA, **DELTA_FIRST, "tie_word_embeddings": True}),
    Variant("qwen3.5-biases", "qwen3_5_text", {**DELTA, "attention_bias": True, "linear_conv_kernel_dim": 2}),
    Variant(
        "qwen3.5-one-head", "qwen3_5_text", {**DELTA, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 5}
    ),
    Variant(
        "llama-omitted", "llama", MHA | {"max_position_embeddings": 2048}, OMITTED, {"hidden_act": "swish"}
    ),
    Variant("mistral-omitted", "mistral", EIGHT_HEADS, OMITTED, BIASES),
    Variant("mixtral-omitted", "mixtral", EIGHT_HEADS, (*OMITTED, *MOE, "num_experts"), BIASES),
    Variant(
        "qwen2-omitted", "qwen2", {"num_attention_heads": 32, "num_key_value_heads": 32}, OMITTED, BIASES
    ),
]


def make_config(variant: Variant) -> PreTrainedConfig:
    """The configuration in transformers; SHAPE is the decoder's, also where that is one of several parts."""
    changes = {**SHAPE, **variant.changes}
    if "text_config" in changes:
        changes = variant.changes | {"text_config": {**SHAPE, **changes["text_config"]}}
    return AutoConfig.for_model(variant.model_type, **changes)


def write_checkpoint(
    variant: Variant, directory: Path, dtype: torch.dtype = torch.float32, **save: object
) -> PreTrainedModel:
    """Save a random model of `variant` under `directory`; returns transformers' model, in float32."""
    torch.manual_seed(len(variant.name))
    is_nested = "text_config" in variant.changes
    loader = AutoModelForImageTextToText if is_nested else AutoModelForCausalLM
    model = loader.from_config(make_config(variant), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            # Otherwise zeros and ones: nothing would be compared.
            if (
                not parameter.any()
                or name.endswith(("bias", "sinks", ".scale", "expert_scale", "layer_scalar"))
                or "norm" in name
            ):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.to(dtype).save_pretrained(directory, **save)
    if not variant.omitted:
        return model.float()
    path = directory / "config.json"
    raw = {key: value for key, value in json.loads(path.read_text()).items() if key not in variant.omitted}
    path.write_text(json.dumps(raw | variant.ignored))
    return loader.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
