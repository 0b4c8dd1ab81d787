"""Mixtures of experts as most families write them, and every wrong way to write one."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import MoEConfig, RoutingConfig
from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    grouped,
    only,
    read_either,
    read_experts,
    sigmoid_routing,
    sparse_blocks,
    sparse_layers,
    with_shared,
)
from backend.models.layer_specs import read_attention
from tests.backend.models.families.configs import SHAPE

MOE = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 8}
ROUTING = RoutingConfig(scores="sigmoid", share_factor=2.0)


def reader(**changes: object) -> ConfigReader:
    return ConfigReader(Path("config.json"), {**SHAPE, "rope_theta": 1e4, **MOE, **changes})


def experts(**changes: object) -> MoEConfig:
    found = reader(**changes)
    count = read_either(found, ("num_experts", "num_local_experts"), 5)
    return read_experts(found, count, normalise_top_k=True)


def kinds(**changes: object) -> list[bool]:
    found, moe = reader(**changes), experts()
    layers = sparse_layers(found, read_attention(found), moe, 1)
    return [layer.feed_forward is moe for layer in layers]


def test_either_name_of_the_number() -> None:
    assert experts() == MoEConfig(12, 3, 8, True)
    assert experts(num_experts=None, num_local_experts=7).num_experts == 7
    assert experts(num_local_experts=12).num_experts == 12
    assert experts(num_experts=None).num_experts == 5


def test_what_has_one_form_only() -> None:
    only(reader(scores="sigmoid", every=None), scores="sigmoid", every=1, absent=False)
    with pytest.raises(CheckpointError, match="'every' 2 is not supported, only 1"):
        only(reader(every=2), every=1)


def test_sigmoids() -> None:
    assert sigmoid_routing(reader(), None) == RoutingConfig(scores="sigmoid", has_bias=True)
    assert sigmoid_routing(reader(scale=2.5), "scale").share_factor == 2.5
    with pytest.raises(CheckpointError, match="'scale' is 0, expected a positive number"):
        sigmoid_routing(reader(scale=0), "scale")


def test_groups_and_shared_experts() -> None:
    found = grouped(reader(n_group=4, topk_group=2), experts(), ROUTING).routing
    assert found == RoutingConfig(scores="sigmoid", share_factor=2.0, num_groups=4, kept_groups=2)
    assert grouped(reader(), experts(), ROUTING).routing == ROUTING
    assert with_shared(reader(n_shared_experts=3), experts(), "n_shared_experts").shared_size == 24
    assert with_shared(reader(n_shared_experts=0), experts(), "n_shared_experts").shared_size == 0


def test_which_layers_have_experts() -> None:
    assert kinds() == [False, True, True, True]
    assert kinds(first_k_dense_replace=0) == [True] * 4
    assert kinds(mlp_layer_types=["sparse", "dense", "dense", "sparse"]) == [True, False, False, True]
    both = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "first_k_dense_replace": 2}
    assert kinds(**both) == [False, False, True, True]


def test_another_key_of_the_dense_layers() -> None:
    blocks = sparse_blocks(reader(own=3, first_k_dense_replace=0), experts(), "own", 1)
    assert [block == experts() for block in blocks] == [False, False, False, True]
    with pytest.raises(CheckpointError, match="'own' is 5.0"):
        sparse_blocks(reader(own=5), experts(), "own", 1)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"num_experts_per_tok": 13}, "'num_experts_per_tok' is 13, expected at most 12 experts"),
        ({"num_local_experts": 8}, "'num_experts' is 12, expected the same as 'num_local_experts'"),
        ({"n_group": 5}, "'n_group' is 5, expected a divisor of 12 experts"),
        ({"n_group": 12}, "'n_group' is 12, expected a divisor of 12 experts that leaves at least 2"),
        ({"n_group": 0}, "'n_group' is 0, expected a positive whole number"),
        ({"n_group": 4, "topk_group": 5}, "'topk_group' is 5, expected at most n_group=4"),
        ({"n_group": 6, "topk_group": 1}, "'num_experts_per_tok' is 3, expected at most 2 experts"),
        ({"n_shared_experts": -1}, "'n_shared_experts' is -1"),
        ({"first_k_dense_replace": 5}, "'first_k_dense_replace' is 5.0, expected a whole number from 0 to 4"),
        ({"first_k_dense_replace": -1}, "'first_k_dense_replace' is -1"),
        ({"mlp_layer_types": ["dense"]}, "'mlp_layer_types' is .'dense'., expected a list of 4 names"),
        ({"mlp_layer_types": ["dense"] * 3 + ["hash"]}, "each 'dense' or 'sparse'"),
        ({"mlp_layer_types": ["dense"] * 4, "first_k_dense_replace": 1}, "what first_k_dense_replace=1 says"),
    ],
)
def test_wrong_values(changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        grouped(reader(**changes), experts(**changes), ROUTING)
        with_shared(reader(**changes), experts(), "n_shared_experts")
        kinds(**changes)
