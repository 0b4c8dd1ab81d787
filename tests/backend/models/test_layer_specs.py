"""What most families write alike; wrong values: test_errors.py."""

from __future__ import annotations

from pathlib import Path

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from tests.backend.models.families.configs import SHAPE

READER = ConfigReader(Path("config.json"), {**SHAPE, "rope_theta": 1e4})


def test_heads_and_their_size() -> None:
    found = read_attention(READER)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 4, 16)
    own = ConfigReader(READER.path, {**READER.raw, "num_key_value_heads": 2, "head_dim": 24})
    assert (read_attention(own).num_kv_heads, read_attention(own).head_dim) == (2, 24)


def test_biases_are_all_or_none() -> None:
    found = with_biases(read_attention(READER), has_bias=True)
    assert found.qkv_bias and found.o_bias
    assert with_biases(found, has_bias=False) == read_attention(READER)


def test_layers_that_are_alike() -> None:
    attention, dense = read_attention(READER), read_dense(READER)
    assert same_layers(READER, attention, dense) == (LayerSpec(attention, dense),) * 4
