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
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
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
SERVED = {
    **MODELS,
    "Llama-3.1-70B": LLAMA_70B,
    "Mixtral-8x7B": MIXTRAL_8X7B,
    "tiny-wide": {**TINY_FAMILIES["llama"], "hidden_size": 128, "intermediate_size": 128},
    "tiny-experts": {**TINY_FAMILIES["mixtral"], "hidden_size": 128, "intermediate_size": 128},
}
"""Models that are served end to end: those above, and two whose steps no target names."""

_ROUNDED_INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": (
        "float-quantized",
        {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": _ROUNDED_INPUTS,
        },
    ),
    "int4": (
        "pack-quantized",
        {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}},
    ),
}


def stored_as(shape: dict[str, Any], stored: str) -> dict[str, Any]:
    """The config.json of a model whose projections are stored as "bf16", "fp8" or "int4"."""
    if stored == "bf16":
        return shape
    kind, group = _STORED[stored]
    method = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"all": group}}
    return {**shape, "quantization_config": method}


def model_config(shape: dict[str, Any], folder: Path) -> ModelConfig:
    """What the engine reads of a checkpoint in `folder` with this config.json, which is written there."""
    (folder / "config.json").write_text(json.dumps(shape))
    return read_model_config(folder)


def config_of(shape: dict[str, Any]) -> ModelConfig:
    """The same, without a folder that stays."""
    with tempfile.TemporaryDirectory() as folder:
        return model_config(shape, Path(folder))
