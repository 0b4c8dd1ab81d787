"""Multi-head latent attention as config.json has it. No torch."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LatentSpec
from backend.models.config_reader import ConfigReader
from backend.models.rope_config import read_rope, score_factor

_EPS = 1e-6
"""What the norms of latents add to the mean of squares; `rms_norm_eps` is that of the other norms."""


def read_latent(reader: ConfigReader, *, is_interleaved: bool) -> AttentionSpec:
    """Attention of all layers; `is_interleaved`: neighbours are rotated together.

    Raises CheckpointError.
    """
    num_heads = reader.positive("num_attention_heads")
    num_kv_heads = reader.positive("num_key_value_heads", num_heads)
    if num_kv_heads != num_heads:
        raise reader.error("num_key_value_heads", num_kv_heads, f"num_attention_heads={num_heads}")
    latent = LatentSpec(
        rank=reader.positive("kv_lora_rank"),
        query_rank=reader.optional_positive("q_lora_rank"),
        plain_dim=reader.positive("qk_nope_head_dim"),
        rotated_dim=reader.positive("qk_rope_head_dim"),
        value_dim=reader.positive("v_head_dim"),
        eps=_EPS,
    )
    if latent.rotated_dim % 2:
        raise reader.error("qk_rope_head_dim", latent.rotated_dim, "an even number")
    size = latent.plain_dim + latent.rotated_dim
    if reader.positive("qk_head_dim", size) != size:
        expected = f"qk_nope_head_dim + qk_rope_head_dim = {size}"
        raise reader.error("qk_head_dim", reader.raw["qk_head_dim"], expected)
    rope = read_rope(reader)
    has_bias = reader.flag("attention_bias")
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=1,
        head_dim=latent.rank + latent.rotated_dim,
        rope=replace(rope, is_interleaved=is_interleaved),
        qkv_bias=has_bias,
        o_bias=has_bias,
        scale=size**-0.5 * score_factor(reader, rope),
        latent=latent,
    )
