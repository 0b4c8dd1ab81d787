"""Builds multi-head latent attention: splits each head's up-projection, so that heads attend to latents."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import AttentionSpec, LatentSpec
from backend.kernels.linear import keeps_float32
from backend.layers.latent_attention import HeadProduct, LatentAttention, LatentWeights
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.rope import halves_order
from backend.models.state_mixers import Parts
from backend.models.weights import read_weight
from backend.quant.products import dense


def build_latent(
    parts: Parts, layer: int, prefix: str, spec: AttentionSpec, latent: LatentSpec
) -> LatentAttention:
    """One layer's attention. Raises CheckpointError.

    Adapters cannot change the up-projection of keys and values, which is never multiplied as a whole.
    """
    assert spec.rope is not None
    names, config = parts.names.latent, parts.config
    down, rotated = latent.rank + latent.rotated_dim, _rotated_last(spec, latent, latent.rank, 1)
    weights = LatentWeights(
        queries=_queries(parts, prefix, spec, latent),
        down=parts.linear(
            {prefix + names.down: down},
            config.hidden_size,
            bias=spec.qkv_bias,
            orders={prefix + names.down: rotated},
        ),
        norm=_norm(parts, prefix + names.norm, latent.rank, latent),
        **_products(parts, prefix + names.up, spec, latent),
        out=parts.linear(
            {prefix + names.out: config.hidden_size}, spec.num_heads * latent.value_dim, bias=spec.o_bias
        ),
    )
    rope = config.rotations.index((spec.rope, spec.rotary_dim))
    return LatentAttention(layer, spec, latent, rope, weights)


def _queries(
    parts: Parts, prefix: str, spec: AttentionSpec, latent: LatentSpec
) -> Linear | tuple[Linear, RMSNorm, Linear]:
    names, size = parts.names.latent, parts.config.hidden_size
    rows = spec.num_heads * (latent.plain_dim + latent.rotated_dim)
    order = _rotated_last(spec, latent, latent.plain_dim, spec.num_heads)
    rank = latent.query_rank
    if rank is None:
        name = prefix + names.query
        return parts.linear({name: rows}, size, orders={name: order})
    name = prefix + names.query_up
    return (
        parts.linear({prefix + names.query_down: rank}, size, bias=spec.qkv_bias),
        _norm(parts, prefix + names.query_norm, rank, latent),
        parts.linear({name: rows}, rank, orders={name: order}),
    )


def _rotated_last(spec: AttentionSpec, latent: LatentSpec, plain: int, count: int) -> Tensor | None:
    """The order of rows, `count` times `plain` ones and then rotated ones; None: as they are."""
    assert spec.rope is not None
    own = halves_order(spec.rope, latent.rotated_dim, 1)
    if own is None:
        return None
    own = torch.cat((torch.arange(plain), plain + own))
    return (torch.arange(count)[:, None] * len(own) + own).flatten()


def _norm(parts: Parts, name: str, size: int, latent: LatentSpec) -> RMSNorm:
    return RMSNorm(parts.norm(name, size).weight, latent.eps)


def _products(parts: Parts, name: str, spec: AttentionSpec, latent: LatentSpec) -> dict[str, HeadProduct]:
    """`keys` and `values` of all heads, from each head's rows of the up-projection."""
    sizes = [latent.plain_dim, latent.value_dim]
    shape = spec.num_heads * sum(sizes), latent.rank
    found = dense(read_weight(parts.reader, name, shape, parts.config))
    precision = parts.precision
    layout = keeps_float32(precision.weights) if found.dtype == torch.float32 else precision.weights
    heads = found.to(precision.device, precision.compute).view(spec.num_heads, -1, latent.rank)
    keys, values = torch.split(heads, sizes, dim=1)
    return {"keys": HeadProduct(keys.transpose(1, 2), layout), "values": HeadProduct(values, layout)}
