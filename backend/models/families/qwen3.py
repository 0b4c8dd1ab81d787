"""Qwen3: Qwen2's windows without its biases, and RMSNorm on every query and key head (arXiv:2505.09388)."""

from __future__ import annotations

from backend.models.families import qwen2
from backend.models.families.family import Family

FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    qk_norm=True,
    default_head_dim=128,
    read_windows=qwen2.read_windows,
)
