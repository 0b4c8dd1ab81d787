"""The shape of `pico-small` and its construction as a transformers model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

NAME = "pico-small"
CONTEXT_TOKENS = 2048
SHAPE: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 5,
    "intermediate_size": 384,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def build_model(vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised fp32 model; the same seed gives the same weights."""
    import torch
    from transformers import Qwen3ForCausalLM
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **SHAPE,
    )
    return Qwen3ForCausalLM(config)
