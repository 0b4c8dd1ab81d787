"""Architecture name in config.json → family."""

from __future__ import annotations

from backend.models import llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
from backend.models.names import WeightNames

FAMILIES: dict[str, WeightNames] = {
    "LlamaForCausalLM": llama.NAMES,
    "MistralForCausalLM": mistral.NAMES,
    "MixtralForCausalLM": mixtral.NAMES,
    "Qwen2ForCausalLM": qwen2.NAMES,
    "Qwen3ForCausalLM": qwen3.NAMES,
    "Qwen3MoeForCausalLM": qwen3_moe.NAMES,
}
