"""Frequencies and attention factors equal transformers', in both spellings of config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from backend.config import RopeConfig
from backend.layers.rope import Rope, frequencies, halves_order
from backend.models.checkpoint_config import read_model_config

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 8192,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 3.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "beta_fast": 20.0},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
    },
]


def read(directory: Path, **changes: object) -> RopeConfig:
    (directory / "config.json").write_text(json.dumps({**BASE, **changes}))
    (rope,) = read_model_config(directory).ropes
    return rope


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_scaling_equals_transformers(tmp_path: Path, scaling: dict[str, Any]) -> None:
    theirs = LlamaConfig(**{**BASE, "rope_parameters": {**scaling, "rope_theta": 5e5}})
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))
    new = read(tmp_path, rope_parameters={**scaling, "rope_theta": 5e5})
    old_keys = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    old = read(tmp_path, rope_scaling=old_keys, rope_theta=5e5)
    assert new == old
    torch.testing.assert_close(frequencies(new, 128), expected, rtol=1e-6, atol=0)
    assert new.attention_factor == pytest.approx(factor)


SHORT, LONG = [1.0 + i / 50 for i in range(64)], [2.0 + i / 3 for i in range(64)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "rope_theta": 5e5}


@pytest.mark.parametrize("given", [{}, {"attention_factor": 1.4}, {"factor": 3.0}, {"factor": 0.5}], ids=str)
@pytest.mark.parametrize(("context", "length"), [(None, 1025), (1025, 1025), (1024, 1024), (1, 1)])
def test_longrope_by_the_context_that_is_served(
    tmp_path: Path, given: dict[str, float], context: int | None, length: int
) -> None:
    """transformers chooses by each sequence's length: below the original one, and above it."""
    section = {**LONGROPE, "original_max_position_embeddings": 1024, **given}
    theirs = LlamaConfig(**{**BASE, "rope_parameters": section})
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, torch.device("cpu"), length)
    old = {**section, "type": "su"}
    del old["rope_type"], old["rope_theta"]
    for changes in ({"rope_parameters": section}, {"rope_scaling": old, "rope_theta": 5e5}):
        (tmp_path / "config.json").write_text(json.dumps({**BASE, **changes}))
        (rope,) = read_model_config(tmp_path, context).ropes
        torch.testing.assert_close(frequencies(rope, 128), expected, rtol=1e-6, atol=0)
        assert rope.attention_factor == pytest.approx(factor)


def test_default_theta(tmp_path: Path) -> None:
    assert read(tmp_path).theta == 1e4
    assert read(tmp_path, rope_theta=7e5).theta == 7e5
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 3e5}).theta == 3e5


def test_table_grows_with_the_context(tmp_path: Path) -> None:
    rope = Rope(read(tmp_path), 128, torch.float32, torch.device("cpu"))
    positions = torch.tensor([5, 9000])
    cos, signed_sin = rope(positions, 9001).gather()
    angles = positions[:, None].float() * frequencies(read(tmp_path), 128)
    assert torch.equal(cos[:, 0, :64], angles.cos()) and torch.equal(cos[:, 0, 64:], angles.cos())
    assert torch.equal(signed_sin[:, 0, :64], -angles.sin())
    assert torch.equal(signed_sin[:, 0, 64:], angles.sin())


def test_a_gpu_has_its_whole_table_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = torch.tensor([5, 8999])
    config = read(tmp_path)
    grown, reserved = (Rope(config, 8, torch.float32, torch.device("cpu")) for _ in range(2))
    grown.reserve(9000)
    assert grown(positions[:1], 6).table.shape[1] < 9000, "a CPU's grows"
    monkeypatch.setattr("backend.layers.rope.uses_triton", lambda _: True)
    reserved.reserve(9000)
    table = reserved(positions[:1], 6).table
    assert table.shape[1] == 9000 and reserved(positions, 9000).table is table
    assert torch.equal(reserved(positions, 9000).gather()[1], grown(positions, 9000).gather()[1])


def test_reordered_neighbours_rotate_as_halves() -> None:
    config, heads, size = RopeConfig(rotated=0.5, is_interleaved=True), 3, 16
    order = halves_order(config, size, heads)
    assert order is not None and halves_order(RopeConfig(), size, heads) is None
    x, angles = torch.randn(heads, size), 5.0 * frequencies(config, 8)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[:, 0:8:2], x[:, 1:8:2]
    neighbours = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(1)
    expected = torch.cat((neighbours, x[:, 8:]), dim=1)
    ours = x.flatten()[order].view(heads, size)
    low, high = ours[:, :4], ours[:, 4:8]
    got = torch.cat((low * cos - high * sin, high * cos + low * sin, ours[:, 8:]), dim=1)
    torch.testing.assert_close(got.flatten(), expected.flatten()[order])
