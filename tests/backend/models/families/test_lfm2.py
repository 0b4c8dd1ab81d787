"""LFM2: which layers attend, the size of its blocks, and published spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import AttentionSpec, ConvSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Lfm2ForCausalLM"
TYPES = ["conv", "conv", "full_attention", "conv"]


def test_which_layers_attend(tmp_path: Path) -> None:
    for spelling in ({"layer_types": TYPES}, {"full_attn_idxs": [2]}):
        config = read(tmp_path, NAME, conv_L_cache=5, **spelling)
        assert [isinstance(layer.mixer, AttentionSpec) for layer in config.layers] == [
            False,
            False,
            True,
            False,
        ]
        assert set(config.states) == {ConvSpec(num_channels=64, conv_tokens=5)}
        assert config.attention.qk_norm == "head" and config.tie_word_embeddings
    assert len(read(tmp_path, NAME).attentions) == 4


def test_the_size_of_blocks(tmp_path: Path) -> None:
    def size(**changes: object) -> int:
        block = read(tmp_path, NAME, **changes).layers[0].feed_forward
        assert block is not None
        return block.intermediate_size

    assert size(intermediate_size=1000) == 768
    assert size(intermediate_size=1000, block_multiple_of=100, block_ffn_dim_multiplier=1.5) == 1000
    assert size(block_auto_adjust_ff_dim=False) == 96


def test_published_spellings(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, block_ff_dim=96, tie_embedding=False)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("block_ff_dim", {"block_ff_dim": 97}),
        ("tie_embedding", {"tie_embedding": True, "tie_word_embeddings": False}),
        *(("full_attn_idxs", {"full_attn_idxs": wrong}) for wrong in ([4], [[1]], [True], True, [-1])),
        ("full_attn_idxs", {"full_attn_idxs": [1], "layer_types": TYPES}),
        ("layer_types", {"layer_types": ["conv"] * 4}),
        ("layer_types", {"layer_types": [*TYPES[:3], "linear_attention"]}),
        ("conv_L_cache", {"conv_L_cache": 0}),
        ("block_multiple_of", {"block_multiple_of": 0}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **changes)
