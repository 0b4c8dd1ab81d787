"""The models whose steps are planned and measured: their config.json, and the bytes of their parts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from backend.config import ModelConfig
from backend.models.checkpoint_config import read_model_config

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
TINY = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 32_768,
}
TINY_EXPERTS = {**TINY, "num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
TINY_FAMILIES = {
    "llama": {**TINY, "architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
    "mistral": {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 21},
    "qwen2": {**TINY, "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {**TINY, "architectures": ["Qwen3ForCausalLM"]},
    "mixtral": {**TINY_EXPERTS, "architectures": ["MixtralForCausalLM"]},
    "qwen3-moe": {**TINY_EXPERTS, "architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True},
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-8B": QWEN3_8B,
    "Llama-3.1-8B": LLAMA_8B,
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
    "tiny": TINY_FAMILIES["qwen3"],
}


def model_config(shape: dict[str, Any], folder: Path) -> ModelConfig:
    """What the engine reads of a checkpoint in `folder` with this config.json, which is written there."""
    (folder / "config.json").write_text(json.dumps(shape))
    return read_model_config(folder)


def config_of(shape: dict[str, Any]) -> ModelConfig:
    """The same, without a folder that stays."""
    with tempfile.TemporaryDirectory() as folder:
        return model_config(shape, Path(folder))
