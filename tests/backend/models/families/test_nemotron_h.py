"""Nemotron-H: one block a layer, both spellings of the pattern, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend.config import AttentionSpec, DenseSpec, MambaSpec, MoEConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "NemotronHForCausalLM"
TYPES = ["mamba", "attention", "mlp", "moe"]
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 12, "n_groups": 2}


@pytest.mark.parametrize(
    "pattern",
    [
        {"hybrid_override_pattern": "M*-E"},
        {"layers_block_type": TYPES},
        {"layer_types": ["linear_attention", "full_attention", "mlp", "moe"]},
        {"layers_block_type": TYPES, "hybrid_override_pattern": "M*-E"},
    ],
)
def test_one_block_a_layer(tmp_path: Path, pattern: dict[str, object]) -> None:
    config = read(tmp_path, NAME, **MAMBA, **pattern, time_step_min=0.5)
    mixers, blocks = zip(*[(layer.mixer, layer.feed_forward) for layer in config.layers], strict=True)
    assert [type(each) for each in mixers] == [MambaSpec, AttentionSpec, type(None), type(None)]
    assert [type(each) for each in blocks] == [type(None), type(None), DenseSpec, MoEConfig]
    assert blocks[2] == DenseSpec(intermediate_size=96, activation="relu2")
    assert config.experts is not None and config.experts.gate == "relu2" and config.ropes == ()
    assert getattr(config.states[0], "time_step_limits", None) == (0.5, math.inf)


def test_experts_may_be_narrower_than_the_stream(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **MAMBA, hybrid_override_pattern="M*-E", moe_latent_size=32)
    assert config.experts is not None and config.experts.latent_size == 32


def test_layers_are_counted(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **MAMBA, hybrid_override_pattern="M*MMM-", num_hidden_layers=6)
    assert config.num_layers == 6 and len(config.states) == 4 and len(config.attentions) == 1


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("hybrid_override_pattern", {"hybrid_override_pattern": "M*?E"}),
        ("hybrid_override_pattern", {"hybrid_override_pattern": "MM*E", "layers_block_type": TYPES}),
        ("hybrid_override_pattern", {"hybrid_override_pattern": 4, "layers_block_type": TYPES}),
        ("hybrid_override_pattern", {"hybrid_override_pattern": "MMMM"}),
        ("num_hidden_layers", {"hybrid_override_pattern": "M*", "num_hidden_layers": 4}),
        ("layers_block_type", {"layers_block_type": [*TYPES[:3], "conv"]}),
        ("layers_block_type", {"layers_block_type": TYPES, "layer_types": TYPES[::-1]}),
        ("n_groups", {"n_groups": 3}),
        ("mlp_hidden_act", {"mlp_hidden_act": "silu"}),
        ("mamba_hidden_act", {"mamba_hidden_act": "gelu"}),
        ("mlp_bias", {"mlp_bias": True}),
        ("moe_latent_size", {"moe_latent_size": 0}),
        ("n_group", {"n_group": 3}),
        ("num_experts_per_tok", {"n_routed_experts": 1}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    pattern = {} if "layers_block_type" in changes else {"hybrid_override_pattern": "M*-E"}
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **MAMBA | pattern | changes)
