"""The shapes of the family's models and their construction with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

    Model: TypeAlias = Qwen3ForCausalLM | Qwen3MoeForCausalLM

CONTEXT_TOKENS = 2048
EXPERTS, CHOSEN_EXPERTS = 8, 2
_WIDE: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "pico-small": {**_WIDE, "intermediate_size": 384},
    # Not shipped: trained on everything, with reasoning, at half the cost of pico-large, which is upcycled
    # from it.
    "pico-base": {**_WIDE, "intermediate_size": 384},
    "pico-large": {
        **_WIDE,
        "moe_intermediate_size": 256,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN_EXPERTS,
        "norm_topk_prob": True,
    },
    "pico-draft": {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
    },
}


def build_model(name: str, vocab_size: int, seed: int, shapes: Mapping[str, Any] = SHAPES) -> Model:
    """Return a model with random fp32 weights, deterministic in the seed."""
    import torch
    from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **shapes[name],
    }
    if "num_experts" in options:
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**options))
    return Qwen3ForCausalLM(Qwen3Config(**options))
