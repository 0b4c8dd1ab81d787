from __future__ import annotations

import re
from dataclasses import replace

import pytest

from backend.config import (
    AttentionSpec,
    DenseSpec,
    EngineConfig,
    LayerSpec,
    ModelConfig,
    MoEConfig,
    ParallelConfig,
    QuantizationConfig,
)
from backend.errors import CheckpointError
from backend.parallel.shape import check_parallel, kv_parts, part_of, rank_config, share


def model(
    heads: int = 8, kv_heads: int = 2, width: int = 96, *, has_experts: bool = False, shares: bool = False
) -> ModelConfig:
    attention = AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=16, rope=None)
    block = MoEConfig(4, 2, width, True) if has_experts else DenseSpec(intermediate_size=width)
    return ModelConfig(
        architecture="Qwen3ForCausalLM",
        checkpoint="/m",
        vocab_size=199,
        hidden_size=128,
        layers=(
            LayerSpec(attention, block),
            LayerSpec(replace(attention, kv_source=0 if shares else None), block),
        ),
        max_position_tokens=64,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )


def experts() -> ModelConfig:
    return replace(model(has_experts=True), architecture="Qwen3MoeForCausalLM")


@pytest.mark.parametrize(
    ("parallel", "changed", "named"),
    [
        ({"tensor": 3}, model(), "does not divide num_attention_heads 8"),
        ({"tensor": 4}, model(heads=12, kv_heads=3), "does not divide num_key_value_heads 3"),
        ({"tensor": 2}, model(width=95), "does not divide intermediate_size 95"),
        ({"tensor": 2}, model(width=95, has_experts=True), "does not divide moe_intermediate_size 95"),
        (
            {"tensor": 2},
            replace(model(), architecture="GemmaForCausalLM"),
            "GemmaForCausalLM cannot be split",
        ),
        ({"tensor": 2}, replace(model(), quantization=QuantizationConfig("fp8", ())), "quantised weights"),
        ({"pipeline": 3}, model(), "pipeline is 3, but '/m' has 2 layers"),
        (
            {"pipeline": 2},
            replace(model(), quantization=QuantizationConfig("fp8", ())),
            "pipeline is 2, but quan",
        ),
        ({"pipeline": 2}, model(shares=True), "layers that share keys and values"),
        ({"expert": 2}, model(), "ranks cannot share experts of Qwen3ForCausalLM"),
        ({"expert": 5}, experts(), "expert is 5, but '/m' has 4 experts"),
        ({"expert": 2, "tensor": 2}, experts(), "expert is 2 and tensor 2; set one of them to 1"),
        ({"sequence": 2}, model(), "sequence is 2, but prompts are not split over ranks so far; set it to 1"),
    ],
)
def test_what_cannot_be_split_is_named(parallel: dict[str, int], changed: ModelConfig, named: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(named)):
        check_parallel(ParallelConfig(**parallel), changed, (), quantizes=False)


def test_drafters_that_need_whole_tables_and_rounding_are_named() -> None:
    two = ParallelConfig(tensor=2)
    with pytest.raises(CheckpointError, match="the drafter 'eagle' reads"):
        check_parallel(two, model(), ("draft_model", "eagle"), quantizes=False)
    with pytest.raises(CheckpointError, match="quantised weights"):
        check_parallel(two, model(), (), quantizes=True)
    check_parallel(two, model(), ("draft_model",), quantizes=False)
    check_parallel(ParallelConfig(), replace(model(), architecture="X"), ("eagle",), quantizes=True)


def test_a_part_has_its_share() -> None:
    part = part_of(model(), 2)
    assert (part.attention.num_heads, part.attention.num_kv_heads) == (4, 1)
    assert (part.layers[1].block.intermediate_size, part.vocab_size) == (48, 100)
    assert part.hidden_size == 128


def test_ranks_share_heads_of_keys_where_there_are_fewer() -> None:
    check_parallel(ParallelConfig(tensor=8), model(), (), quantizes=False)
    part = part_of(model(), 8)
    assert (part.attention.num_heads, part.attention.num_kv_heads) == (1, 1)
    assert (kv_parts(model(), 8), kv_parts(model(), 2)) == (2, 2)


def test_threads_and_memory_are_divided() -> None:
    config = EngineConfig(
        model="m", checkpoint="/m", num_threads=3, kv_cache_bytes=1000, parallel=ParallelConfig(tensor=2)
    )
    assert (rank_config(config).num_threads, rank_config(config).kv_cache_bytes) == (1, 500)
    assert rank_config(EngineConfig(model="m", checkpoint="/m")).num_threads is None


def test_stages_have_all_threads_and_each_layer_once() -> None:
    four = ParallelConfig(tensor=2, pipeline=2)
    config = EngineConfig(model="m", checkpoint="/m", num_threads=4, kv_cache_bytes=1000, parallel=four)
    assert (rank_config(config).num_threads, rank_config(config).kv_cache_bytes) == (2, 250)
    assert [share(5, stage, 3) for stage in range(3)] == [range(1), range(1, 3), range(3, 5)]
