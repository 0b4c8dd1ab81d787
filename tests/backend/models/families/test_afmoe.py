"""AFMoE: which layers rotate, slide and have experts; gates and norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import MoEConfig, RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "AfmoeForCausalLM"


def test_layers(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_dense_layers=2, sliding_window=9, route_scale=2.5, num_experts=8)
    assert config.windows == (9, 9, 9, None)
    assert [spec.rope is None for spec in config.attentions] == [False, False, False, True]
    assert {(spec.output_gate, spec.qk_norm) for spec in config.attentions} == {("sigmoid", "head")}
    assert [isinstance(layer.feed_forward, MoEConfig) for layer in config.layers] == [
        False,
        False,
        True,
        True,
    ]
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.experts_per_token, moe.shared_size) == (8, 6, 2 * 1408)
    assert moe.routing == RoutingConfig(scores="sigmoid", has_bias=True, share_factor=2.5)


def test_embeddings_are_scaled_on_demand(tmp_path: Path) -> None:
    assert read(tmp_path, NAME).scalars.embedding == 1
    assert read(tmp_path, NAME, mup_enabled=True).scalars.embedding == 8


def test_keys_of_published_files(tmp_path: Path) -> None:
    """They say what is always so, and groups of which there is one."""
    said = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}
    assert read(tmp_path, NAME, **said) == read(tmp_path, NAME)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"score_func": "softmax"}, "'score_func' 'softmax' is not supported, only 'sigmoid'"),
        ({"route_norm": False}, "'route_norm' False is not supported, only True"),
        ({"num_dense_layers": 5}, "'num_dense_layers' is 5.0, expected a whole number from 0 to 4"),
        ({"layer_types": ["full_attention"] * 4}, "models with rotation in some layer"),
        ({"layer_types": ["full_attention"] * 3}, "'layer_types' is .*, expected a list of 4 names"),
        ({"global_attn_every_n_layers": 0}, "'global_attn_every_n_layers' is 0"),
        ({"sliding_window": 0}, "'sliding_window' is 0"),
        ({"n_group": 5}, "'n_group' is 5, expected a divisor of 64 experts"),
        ({"num_local_experts": 32, "num_experts": 16}, "'num_experts' is 16, expected the same as"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
