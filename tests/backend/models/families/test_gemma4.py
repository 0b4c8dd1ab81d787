"""Gemma 4: heads by layer in both spellings, shared keys and values, layers' embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig, LayerInputSpec, RopeConfig
from backend.errors import CheckpointError
from backend.kernels.paged_attention import paged_attention
from backend.layers import attention_values, attention_variants
from backend.models.loaded import load_model
from backend.models.precision import Precision
from backend.types import PAGE_TOKENS
from tests.backend.models.checkpoints import Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.families.configs import read

NAME = "Gemma4ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
KEYS = {"head_dim": 16, "global_head_dim": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
SAVED = {"head_dim": 16, "attention_k_eq_v": True, "per_layer_config": {"3": {"head_dim": 32}}}
TYPES = [SLIDING, FULL, SLIDING, FULL]


def test_types(tmp_path: Path) -> None:
    assert read(tmp_path, NAME).windows == (512, 512, 512, None)
    assert read(tmp_path, NAME, layer_types=[FULL, SLIDING] * 2).windows == (None, 512, None, None)


def test_heads_of_full_layers(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **KEYS)
    first, last = config.layers[0].attention, config.layers[3].attention
    assert (first.head_dim, first.num_kv_heads, first.value_is_key) == (16, 4, False)
    assert (last.head_dim, last.num_kv_heads, last.value_is_key) == (32, 1, True)
    both = SAVED | {"per_layer_config": {"3": {"head_dim": 32, "num_key_value_heads": 1}}}
    assert read(tmp_path, NAME, **both).layers == config.layers
    assert read(tmp_path, NAME, **KEYS | {"attention_k_eq_v": False}).layers[3].attention.num_kv_heads == 4
    assert read(tmp_path, NAME).layers[3].attention.head_dim == 512


def test_shared_layers_read_the_last_of_their_type(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **KEYS, layer_types=TYPES, num_kv_shared_layers=2, use_double_wide_mlp=True)
    assert [layer.attention.kv_source for layer in config.layers] == [None, None, 0, 1]
    sizes = [layer.feed_forward.intermediate_size for layer in config.layers]
    assert sizes == [sizes[0]] * 2 + [2 * sizes[0]] * 2
    layout = Precision(torch.device("cpu"), torch.float32, "packed", torch.float32).kv_layout(config)
    assert layout.page_bytes == PAGE_TOKENS * 2 * (4 * 16 + 1 * 32) * 4


def test_rotation(tmp_path: Path) -> None:
    sliding, full = read(tmp_path, NAME).ropes
    assert sliding == RopeConfig(theta=1e4)
    assert full == RopeConfig("proportional", 1e6, rotated=0.25)


MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 40}


def test_experts_beside_a_dense_block(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **MOE)
    block = config.experts
    assert block is not None and block.has_own_norms and block.normalise_top_k and block.gate == "gelu_tanh"
    assert (block.num_experts, block.experts_per_token, block.intermediate_size) == (5, 2, 40)
    assert block.shared_size == 96 and all(layer.feed_forward == block for layer in config.layers)


def test_layer_inputs(tmp_path: Path) -> None:
    assert read(tmp_path, NAME).layers[0].inputs == LayerInputSpec(256, 262_144)
    assert read(tmp_path, NAME, hidden_size_per_layer_input=0).layers[0].inputs is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers"),  # the one full layer would have no source
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        ({"layer_types": [SLIDING, "chunked_attention", SLIDING, FULL]}, "chunked_attention"),
        ({"layer_types": TYPES[:3]}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"global_head_dim": 0}, "global_head_dim"),
        ({**KEYS, "num_global_key_value_heads": 3}, "num_key_value_heads"),
        ({**SAVED, "global_head_dim": 64}, "per_layer_config"),
        ({"per_layer_config": {"4": {"head_dim": 32}}}, "per_layer_config"),
        ({"per_layer_config": {"3": {"hidden_size": 32}}}, "per_layer_config"),
        (
            {"per_layer_config": {"3": {"head_dim": 32}}, "layer_types": TYPES, "num_kv_shared_layers": 2},
            "per_layer_config",
        ),
        ({"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({**MOE, "top_k_experts": 6}, "top_k_experts"),
        ({**MOE, "num_experts": None}, "num_experts"),
        ({"rope_parameters": {SLIDING: {"rope_type": "default"}}}, FULL),
    ],
    ids=str,
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **changes)


def test_heads_too_wide_for_a_gpus_kernel_attend_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"head_dim": 16, "global_head_dim": 512, "hidden_size_per_layer_input": 0}
    write_checkpoint(Variant("wide", "gemma4_text", {**changes, "initializer_range": 0.1}), tmp_path)
    model = load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", dtype="float32"))
    tokens = random_tokens(40, seed=1)
    (wanted,) = Driver(model).step([(Track(list(tokens)), 40)])
    seen = []
    monkeypatch.setattr(attention_values, "uses_triton", lambda _: True)
    monkeypatch.setattr(
        attention_variants,
        "paged_attention",
        lambda queries, *rest: seen.append(queries.shape[2]) or paged_attention(queries, *rest),
    )
    (found,) = Driver(model).step([(Track(list(tokens)), 40)])
    assert set(seen) == {16} and (found - wanted).abs().max() < 1e-4
