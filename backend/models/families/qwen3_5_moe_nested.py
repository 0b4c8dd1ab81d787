"""Qwen3.5 and 3.6 with experts and images, as they are published: the decoder alone, for text."""

from __future__ import annotations

from backend.models.families import qwen3_5_moe, qwen3_5_nested
from backend.models.families.family import nested

FAMILY = nested(
    qwen3_5_moe.FAMILY,
    architecture="Qwen3_5MoeForConditionalGeneration",
    model_type="qwen3_5_moe",
    others=qwen3_5_nested.FAMILY.others,
)
