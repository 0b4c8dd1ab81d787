"""Mistral: Llama with a sliding window in every layer (ModelConfig.windows)."""

from __future__ import annotations

from backend.models.names import WeightNames

NAMES = WeightNames()
