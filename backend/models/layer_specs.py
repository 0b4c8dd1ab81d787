"""Parts of layers as most families write them in config.json. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from backend.config import Activation, AttentionSpec, DenseSpec, LayerSpec, MoEConfig, RopeConfig
from backend.models.config_reader import ConfigReader
from backend.models.rope_config import FULL, LAYER_TYPES, SLIDING, read_rope

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def num_layers(reader: ConfigReader) -> int:
    """How many layers there are. Raises CheckpointError, as all functions here do."""
    return reader.positive("num_hidden_layers")


def read_attention(reader: ConfigReader, rope: RopeConfig | None = None) -> AttentionSpec:
    """Heads and, unless it is given, the rotary embedding; without windows, biases and norms."""
    num_heads = reader.positive("num_attention_heads")
    num_kv_heads = reader.positive("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise reader.error(
            "num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads={num_heads}"
        )
    head_dim = reader.positive("head_dim", reader.positive("hidden_size") // num_heads)
    rope = rope or read_rope(reader)
    turned = head_dim * rope.rotated
    if not 0 < turned <= head_dim or turned % 2:
        expected = f"a share that makes an even number of the {head_dim} dimensions of a head"
        raise reader.error("partial_rotary_factor", rope.rotated, expected)
    return AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope)


def with_biases(attention: AttentionSpec, has_bias: bool) -> AttentionSpec:
    """All four projections have a bias, or none of them."""
    return replace(attention, qkv_bias=has_bias, o_bias=has_bias)


def read_dense(reader: ConfigReader, *, has_bias: bool = False) -> DenseSpec:
    """A gated feed-forward block."""
    size = reader.positive("intermediate_size")
    return DenseSpec(intermediate_size=size, has_bias=has_bias, activation=read_activation(reader))


def read_activation(reader: ConfigReader, only: Collection[str] = ("silu", "gelu_tanh")) -> Activation:
    """The gate's activation, one of those in `only`."""
    key = "hidden_activation" if reader.raw.get("hidden_activation") is not None else "hidden_act"
    name = reader.raw.get(key, "silu")
    found = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None or found not in only:
        supported = " and ".join(repr(name) for name, own in _ACTIVATIONS.items() if own in only)
        raise reader.unsupported(key, name, supported)
    return found


def read_layer_types(reader: ConfigReader) -> list[str] | None:
    """`layer_types`, one of LAYER_TYPES for each layer; None where config.json does not list them."""
    found = reader.raw.get("layer_types")
    if found is None:
        return None
    count = num_layers(reader)
    if not isinstance(found, list) or len(found) != count:
        raise reader.error("layer_types", found, f"a list of {count} names")
    if unknown := {str(name) for name in found} - set(LAYER_TYPES):
        raise reader.error("layer_types", sorted(unknown), "'full_attention' or 'sliding_attention'")
    return found


def same_layers(
    reader: ConfigReader, attention: AttentionSpec, block: DenseSpec | MoEConfig
) -> tuple[LayerSpec, ...]:
    """All layers alike."""
    return (LayerSpec(attention, block),) * num_layers(reader)


def typed_layers(
    reader: ConfigReader,
    full: AttentionSpec,
    sliding: AttentionSpec,
    is_sliding: Callable[[int], bool],
    block: DenseSpec | MoEConfig | None = None,
) -> tuple[LayerSpec, ...]:
    """Layers of two kinds, by `layer_types`, or by their index where config.json does not list them.

    They are dense, unless `block` is given.
    """
    block = block or read_dense(reader)
    pattern = [SLIDING if is_sliding(layer) else FULL for layer in range(num_layers(reader))]
    kinds = {FULL: LayerSpec(full, block), SLIDING: LayerSpec(sliding, block)}
    return tuple(kinds[name] for name in read_layer_types(reader) or pattern)


def windowed(reader: ConfigReader, attention: AttentionSpec) -> AttentionSpec:
    """With the window of `sliding_window`."""
    return replace(attention, window=reader.optional_positive("sliding_window"))
