"""Qwen3: Llama with RMSNorm on every query and key head (ModelConfig.qk_norm) and its own head_dim."""

from __future__ import annotations

from backend.models.names import WeightNames

NAMES = WeightNames()
