"""Qwen3: Qwen2's windows without its biases, and RMSNorm on every query and key head (arXiv:2505.09388)."""

from __future__ import annotations

from backend.models.families import qwen2
from backend.models.families.family import Family

FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**qwen2.DEFAULTS, "head_dim": 128},
    qk_norm=True,
    read_windows=qwen2.read_windows,
)
