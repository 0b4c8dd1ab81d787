"""Granite 4: both spellings of layers' types, its blocks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import AttentionSpec, DenseSpec, MambaSpec, MoEConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "GraniteMoeHybridForCausalLM"
TYPES = ["mamba", "mamba", "attention", "mamba"]
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12}


def test_which_layers_attend(tmp_path: Path) -> None:
    new = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    for types in (TYPES, new):
        config = read(tmp_path, NAME, layer_types=types, attention_multiplier=0.25, **MAMBA)
        attends = [isinstance(layer.mixer, AttentionSpec) for layer in config.layers]
        assert attends == [False, False, True, False]
        assert config.attention.rope is None and config.attention.scale == 0.25 and config.ropes == ()
        spec = MambaSpec(num_heads=8, num_groups=1, head_dim=16, state_size=12, conv_tokens=4)
        assert set(config.states) == {spec} and spec.num_channels == 128 + 24


def test_blocks(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, layer_types=TYPES, shared_intermediate_size=48, **MAMBA)
    assert config.experts == MoEConfig(8, 2, 96, True, shared_size=48)
    dense = read(tmp_path, NAME, layer_types=TYPES, num_local_experts=0, **MAMBA)
    assert dense.layers[0].feed_forward == DenseSpec(intermediate_size=1024)


def test_rotation(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, layer_types=TYPES, position_embedding_type="rope", **MAMBA)
    assert config.attention.rope is not None


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("layer_types", {"layer_types": ["mamba"] * 4}),
        ("layer_types", {"layer_types": None}),
        ("layer_types", {"layer_types": [*TYPES[:3], "conv"]}),
        ("mamba_d_head", {"mamba_d_head": 15}),
        ("mamba_d_head", {"mamba_n_heads": 7}),
        ("mamba_n_groups", {"mamba_n_groups": 3}),
        ("num_experts_per_tok", {"num_local_experts": 1}),
        ("hidden_act", {"hidden_act": "relu2"}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **{"layer_types": TYPES, **MAMBA, **changes})
