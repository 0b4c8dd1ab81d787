"""Mixtures of experts as most families write them in config.json. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from backend.config import AttentionSpec, DenseSpec, LayerSpec, MoEConfig, RoutingConfig
from backend.models.config_reader import ConfigReader
from backend.models.layer_specs import num_layers, read_dense


def read_experts(
    reader: ConfigReader,
    num_experts: int,
    *,
    normalise_top_k: bool,
    size_key: str = "moe_intermediate_size",
    chosen_key: str = "num_experts_per_tok",
) -> MoEConfig:
    """How many experts a token has, and their size. Raises CheckpointError, as all functions here do."""
    chosen = reader.positive(chosen_key)
    if chosen > num_experts:
        raise reader.error(chosen_key, chosen, f"at most {num_experts} experts")
    return MoEConfig(num_experts, chosen, reader.positive(size_key), normalise_top_k)


def only(reader: ConfigReader, **supported: object) -> None:
    """Refuse other values of these keys than the one that is supported; any may be absent or null."""
    for key, value in supported.items():
        if (found := reader.raw.get(key)) not in (None, value):
            raise reader.unsupported(key, found, repr(value))


def read_either(reader: ConfigReader, keys: tuple[str, ...], default: int) -> int:
    """A whole number above 0 that has several names; those that are there must be equal."""
    found = {key: reader.positive(key) for key in keys if reader.raw.get(key) is not None}
    if len(set(found.values())) > 1:
        (first, value), (second, other) = list(found.items())[:2]
        raise reader.error(first, value, f"the same as {second!r}, which is {other}")
    return next(iter(found.values()), default)


def sigmoid_routing(reader: ConfigReader, factor_key: str | None) -> RoutingConfig:
    """Scores by sigmoids, a bias that chooses, and the factor of shares under `factor_key`."""
    factor = 1.0 if factor_key is None else reader.positive_number(factor_key)
    return RoutingConfig(scores="sigmoid", has_bias=True, share_factor=factor)


def grouped(reader: ConfigReader, moe: MoEConfig, routing: RoutingConfig) -> MoEConfig:
    """With this routing, and the groups of experts that `n_group` and `topk_group` say."""
    count, kept = reader.positive("n_group", 1), reader.positive("topk_group", 1)
    size, rest = divmod(moe.num_experts, count)
    smallest = 2 if count > 1 and routing.group_score == "top2" else 1
    if rest or size < smallest:
        expected = f"a divisor of {moe.num_experts} experts that leaves at least {smallest} in a group"
        raise reader.error("n_group", count, expected)
    if kept > count:
        raise reader.error("topk_group", kept, f"at most n_group={count}")
    if moe.experts_per_token > kept * size:
        expected = f"at most {kept * size} experts, as many as {kept} groups have"
        raise reader.error("num_experts_per_tok", moe.experts_per_token, expected)
    return replace(moe, routing=replace(routing, num_groups=count, kept_groups=kept))


def with_shared(reader: ConfigReader, moe: MoEConfig, count_key: str) -> MoEConfig:
    """With shared experts, which are one dense block; `count_key` 0 or null: none."""
    count = 0 if reader.raw.get(count_key) in (None, 0) else reader.positive(count_key)
    return replace(moe, shared_size=count * moe.intermediate_size)


def beside_experts(reader: ConfigReader, dense: DenseSpec) -> MoEConfig:
    """Experts beside this block, both with norms of their own."""
    count = reader.positive("num_experts")
    moe = read_experts(reader, count, normalise_top_k=True, chosen_key="top_k_experts")
    return replace(moe, shared_size=dense.intermediate_size, gate="gelu_tanh", has_own_norms=True)


def sparse_layers(
    reader: ConfigReader, attention: AttentionSpec, moe: MoEConfig, default_dense: int
) -> tuple[LayerSpec, ...]:
    """All with this attention, and blocks of `sparse_blocks`."""
    blocks = sparse_blocks(reader, moe, "first_k_dense_replace", default_dense)
    return tuple(LayerSpec(attention, block) for block in blocks)


def sparse_blocks(
    reader: ConfigReader, moe: MoEConfig, dense_key: str, default_dense: int
) -> list[DenseSpec | MoEConfig]:
    """Experts by `mlp_layer_types`, or in all layers but as many of the first as `dense_key` says."""
    blocks: Mapping[str, DenseSpec | MoEConfig] = {"dense": read_dense(reader), "sparse": moe}
    count, found = num_layers(reader), reader.raw.get("mlp_layer_types")
    first = reader.number(dense_key, default_dense)
    if not 0 <= first <= count or first != int(first):
        raise reader.error(dense_key, first, f"a whole number from 0 to {count}")
    by_first = ["dense"] * int(first) + ["sparse"] * (count - int(first))
    names = by_first if found is None else found
    if not isinstance(names, list) or len(names) != count or not set(map(str, names)) <= set(blocks):
        raise reader.error("mlp_layer_types", found, f"a list of {count} names, each 'dense' or 'sparse'")
    if reader.raw.get(dense_key) is not None and names != by_first:
        raise reader.error("mlp_layer_types", found, f"what {dense_key}={int(first)} says")
    return [blocks[name] for name in names]
