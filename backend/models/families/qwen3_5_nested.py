"""Qwen3.5, 3.6 and 3.8 with images, as they are published: the decoder alone, for text."""

from __future__ import annotations

from backend.models.families import qwen3_5
from backend.models.families.family import nested

FAMILY = nested(
    qwen3_5.FAMILY,
    architecture="Qwen3_5ForConditionalGeneration",
    model_type="qwen3_5",
    others=("model.visual.", "visual.", "mtp."),
)
