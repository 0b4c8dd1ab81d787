"""Qwen2 and 2.5: Llama with biases on q, k and v (ModelConfig.qkv_bias) and windows in the upper layers."""

from __future__ import annotations

from backend.models.names import WeightNames

NAMES = WeightNames()
