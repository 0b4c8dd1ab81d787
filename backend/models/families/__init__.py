"""The decoder families that the engine can load, by the architecture name in config.json. No torch.

One module per family says where its tensors are and how its config.json is read; nothing else in the engine
compares architecture names. Adding a family: its module, a line here, a variant in the parity tests.
"""

from __future__ import annotations

from backend.models.families import (
    apertus,
    arcee,
    cohere,
    cohere2,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    gemma3_nested,
    gemma4,
    gemma4_nested,
    glm4,
    glm4_moe,
    gpt_oss,
    granite,
    granitemoe,
    hunyuan_v1_dense,
    hy_v3,
    llama,
    minimax_m2,
    ministral3,
    mistral,
    mistral3,
    mixtral,
    nemotron,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_5_moe_nested,
    qwen3_5_nested,
    qwen3_moe,
    qwen3_next,
    qwen3_vl,
    qwen3_vl_moe,
    seed_oss,
    smollm3,
    starcoder2,
)
from backend.models.families.family import Family

__all__ = ["BY_MODEL_TYPE", "FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        apertus.FAMILY,
        arcee.FAMILY,
        cohere.FAMILY,
        cohere2.FAMILY,
        ernie4_5.FAMILY,
        ernie4_5_moe.FAMILY,
        exaone4.FAMILY,
        gemma.FAMILY,
        gemma2.FAMILY,
        gemma3.FAMILY,
        gemma4.FAMILY,
        gemma4_nested.FAMILY,
        glm4.FAMILY,
        glm4_moe.FAMILY,
        gpt_oss.FAMILY,
        gemma3_nested.FAMILY,
        granite.FAMILY,
        granitemoe.FAMILY,
        hunyuan_v1_dense.FAMILY,
        hy_v3.FAMILY,
        llama.FAMILY,
        minimax_m2.FAMILY,
        ministral3.FAMILY,
        mistral.FAMILY,
        mistral3.FAMILY,
        mixtral.FAMILY,
        nemotron.FAMILY,
        olmo2.FAMILY,
        olmo3.FAMILY,
        phi3.FAMILY,
        qwen2.FAMILY,
        qwen2_moe.FAMILY,
        qwen3.FAMILY,
        qwen3_5.FAMILY,
        qwen3_5_moe.FAMILY,
        qwen3_5_moe_nested.FAMILY,
        qwen3_5_nested.FAMILY,
        qwen3_moe.FAMILY,
        qwen3_next.FAMILY,
        qwen3_vl.FAMILY,
        qwen3_vl_moe.FAMILY,
        seed_oss.FAMILY,
        starcoder2.FAMILY,
        smollm3.FAMILY,
    )
}

BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}
