"""Mistral Small 3 and Ministral 3 with images: their decoder alone, for text."""

from __future__ import annotations

from dataclasses import replace

from backend.models.families import gemma3_nested, ministral3, mistral
from backend.models.families.family import nested

FAMILY = nested(
    replace(mistral.FAMILY, defaults={**mistral.DEFAULTS, "tie_word_embeddings": True}),
    replace(ministral3.FAMILY, defaults={**ministral3.DEFAULTS, "tie_word_embeddings": True}),
    architecture="Mistral3ForConditionalGeneration",
    model_type="mistral3",
    others=gemma3_nested.FAMILY.others,
)
