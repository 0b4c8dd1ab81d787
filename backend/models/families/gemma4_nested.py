"""Gemma 4 with images and sound, as all of its checkpoints are published: the decoder alone, for text."""

from __future__ import annotations

from backend.models.families import gemma4
from backend.models.families.family import nested

FAMILY = nested(
    gemma4.FAMILY,
    architecture="Gemma4ForConditionalGeneration",
    model_type="gemma4",
    others=("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
)
