"""The decoder families that the engine can load, by the architecture name in config.json. No torch.

One module per family says where its tensors are and how its config.json is read; nothing else in the engine
compares architecture names. Adding a family: its module, a line here, a variant in the parity tests.
"""

from __future__ import annotations

from backend.models.families import llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
from backend.models.families.family import Family

__all__ = ["BY_MODEL_TYPE", "FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        llama.FAMILY,
        mistral.FAMILY,
        mixtral.FAMILY,
        qwen2.FAMILY,
        qwen3.FAMILY,
        qwen3_moe.FAMILY,
    )
}

BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}
