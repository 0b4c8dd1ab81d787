"""Gemma 3 with images (4B and more): its decoder alone, for text."""

from __future__ import annotations

from backend.models.families import gemma3
from backend.models.families.family import nested

FAMILY = nested(
    gemma3.FAMILY,
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    others=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
