"""Multi-head latent attention in config.json, and every wrong way to write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import AttentionSpec
from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader
from backend.models.latent_specs import read_latent
from tests.backend.models.families.configs import SHAPE

LATENT = {
    **{"kv_lora_rank": 24, "q_lora_rank": None, "v_head_dim": 12},
    **{"qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "rope_theta": 1e4},
}
LINEAR = {"rope_type": "linear", "factor": 4.0}


def read(**changes: object) -> AttentionSpec:
    return read_latent(ConfigReader(Path("config.json"), {**SHAPE, **LATENT, **changes}), is_interleaved=True)


def test_a_token_has_one_head_in_memory() -> None:
    spec = read()
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rotary_dim) == (4, 1, 32, 8)
    assert (spec.qkv_bias, spec.o_bias, spec.scale) == (False, False, 18**-0.5)
    assert spec.rope is not None and spec.rope.is_interleaved
    biased = read(attention_bias=True, q_lora_rank=20)
    assert (biased.qkv_bias, biased.o_bias) == (True, True)
    assert biased.latent is not None and biased.latent.query_rank == 20


def test_scores_grow_with_the_context_where_config_says_so() -> None:
    assert read(rope_scaling=LINEAR).scale == 18**-0.5
    grown = read(rope_scaling={**LINEAR, "mscale_all_dim": 0.5}).scale
    assert grown == pytest.approx(18**-0.5 * 1.0693147**2)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"kv_lora_rank": 0}, "'kv_lora_rank' is 0, expected a positive whole number"),
        ({"q_lora_rank": 1.5}, "'q_lora_rank' is 1.5, expected a positive whole number"),
        ({"v_head_dim": "12"}, "'v_head_dim' is '12', expected a number"),
        ({"qk_nope_head_dim": None}, "'qk_nope_head_dim' is None, expected a number"),
        ({"qk_rope_head_dim": 7}, "'qk_rope_head_dim' is 7, expected an even number"),
        ({"qk_head_dim": 24}, "'qk_head_dim' is 24, expected qk_nope_head_dim . qk_rope_head_dim = 18"),
        ({"num_key_value_heads": 1}, "'num_key_value_heads' is 1, expected num_attention_heads=4"),
        ({"rope_scaling": {**LINEAR, "mscale_all_dim": "x"}}, "'mscale_all_dim' is 'x', expected a number"),
        ({"attention_bias": 1}, "'attention_bias' is 1, expected true or false"),
    ],
)
def test_wrong_values(changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(**changes)
