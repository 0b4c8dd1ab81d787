"""Which part of a model each rank has, and what cannot be split. No torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from backend.config import (
    AttentionSpec,
    DenseSpec,
    EngineConfig,
    LayerSpec,
    ModelConfig,
    MoEConfig,
    ParallelConfig,
)
from backend.errors import CheckpointError
from backend.models.families import FAMILIES

WHOLE_TABLES = ("eagle", "medusa", "mixture_of_attentions")
"""Drafters that read the target's whole embedding, head, layers or keys and values: a rank has a part."""


def check_parallel(
    parallel: ParallelConfig, model: ModelConfig, drafters: Collection[str], *, quantizes: bool
) -> None:
    """Raise CheckpointError for a model that cannot be split so, or not with these drafters."""
    if parallel.sequence != 1:
        raise CheckpointError(
            f"sequence is {parallel.sequence}, but prompts are not split over ranks so far; set it to 1, and "
            "raise tensor, pipeline or expert"
        )
    for name, size in (
        ("tensor", parallel.tensor),
        ("pipeline", parallel.pipeline),
        ("expert", parallel.expert),
    ):
        if size == 1:
            continue
        if quantizes or model.quantization is not None:
            raise CheckpointError(
                f"{name} is {size}, but quantised weights cannot be split; set it to 1, or serve the weights "
                "in floats, without quantize"
            )
        for drafter in sorted({*drafters} & {*WHOLE_TABLES}):
            raise CheckpointError(
                f"{name} is {size}, but the drafter {drafter!r} reads what no rank has as a whole; set it to "
                "1, or choose draft_model, ngram, suffix or prediction"
            )
    _check_stages(parallel.pipeline, model)
    if parallel.tensor > 1:
        _check_parts(parallel.tensor, model)
    if parallel.expert > 1:
        _check_experts(parallel, model)


def _check_stages(size: int, model: ModelConfig) -> None:
    if size > model.num_layers:
        raise CheckpointError(
            f"pipeline is {size}, but {model.checkpoint!r} has {model.num_layers} layers; set it to that or "
            "less"
        )
    shares = any(each.kv_source is not None for each in model.attentions)
    if size > 1 and (model.states or shares or model.layers[0].inputs is not None):
        raise CheckpointError(
            f"pipeline is {size}, but {model.architecture} has recurrent states, layers that share keys and "
            "values, or embeddings of single layers, which no stages can have; set it to 1"
        )


def _check_experts(parallel: ParallelConfig, model: ModelConfig) -> None:
    size, moe = parallel.expert, model.experts
    if not FAMILIES[model.architecture].splits_experts or moe is None:
        raise CheckpointError(
            f"expert is {size}, but ranks cannot share experts of {model.architecture}; set it to 1, or "
            f"choose a checkpoint of {' or '.join(_families('splits_experts'))}"
        )
    if parallel.tensor > 1:
        raise CheckpointError(
            f"expert is {size} and tensor {parallel.tensor}; set one of them to 1: tensor splits every expert"
        )
    if size > moe.num_experts:
        raise CheckpointError(
            f"expert is {size}, but {model.checkpoint!r} has {moe.num_experts} experts; set it to that or "
            "less"
        )


def _check_parts(size: int, model: ModelConfig) -> None:
    if not FAMILIES[model.architecture].splits_heads:
        raise CheckpointError(
            f"tensor is {size}, but {model.architecture} cannot be split; set it to 1, or choose a "
            f"checkpoint of one of {', '.join(_families('splits_heads'))}"
        )
    for layer in set(model.layers):
        for name, count in _counts(layer):
            if count % size and not (name == "num_key_value_heads" and size % count == 0):
                raise CheckpointError(
                    f"tensor is {size}, which does not divide {name} {count} of {model.checkpoint!r}; choose "
                    "a divisor"
                )


def _families(flag: str) -> list[str]:
    """The architectures with this field."""
    return [name for name, family in FAMILIES.items() if getattr(family, flag)]


def _counts(layer: LayerSpec) -> list[tuple[str, int]]:
    block = layer.block
    names = "moe_intermediate_size" if isinstance(block, MoEConfig) else "intermediate_size"
    own = layer.attention
    heads = [("num_attention_heads", own.num_heads), ("num_key_value_heads", own.num_kv_heads)]
    return [*heads, (names, block.intermediate_size)]


def rank_config(config: EngineConfig) -> EngineConfig:
    """The configuration of each rank: KV memory is the engine's, divided.

    So are threads, but among the ranks of a stage: stages compute one after the other.
    """
    size, width = config.parallel.size, config.parallel.width
    threads, memory = config.num_threads, config.kv_cache_bytes
    return msgspec.structs.replace(
        config,
        num_threads=None if threads is None else max(1, threads // width),
        kv_cache_bytes=None if memory is None else memory // size,
    )


def share(count: int, part: int, num_parts: int) -> range:
    """Which of `count` layers or experts a stage or rank has; later ones may have one more than the first,
    which has the head too.
    """
    return range(part * count // num_parts, (part + 1) * count // num_parts)


def part_of(model: ModelConfig, size: int) -> ModelConfig:
    """The shape of one rank's part of `size`: fewer heads, narrower blocks, fewer rows of the vocabulary."""
    if size == 1:
        return model
    layers = tuple(
        replace(layer, mixer=_heads(layer.attention, size), feed_forward=_narrow(layer.block, size))
        for layer in model.layers
    )
    return replace(model, layers=layers, vocab_size=-(-model.vocab_size // size))


def kv_parts(model: ModelConfig, size: int) -> int:
    """Into how many parts keys and values are split: ranks share heads where there are more ranks."""
    return min(size, model.attention.num_kv_heads)


def _heads(spec: AttentionSpec, size: int) -> AttentionSpec:
    kv_heads = max(1, spec.num_kv_heads // size)
    return replace(spec, num_heads=spec.num_heads // size, num_kv_heads=kv_heads)


def _narrow(block: DenseSpec | MoEConfig, size: int) -> DenseSpec | MoEConfig:
    return replace(block, intermediate_size=block.intermediate_size // size)
