"""Parts of layers as most families write them in config.json. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from backend.config import (
    Activation,
    AttentionSpec,
    DenseSpec,
    HybridSpec,
    LayerInputSpec,
    LayerSpec,
    MoEConfig,
    RopeConfig,
)
from backend.models.config_reader import ConfigReader
from backend.models.rope_config import FULL, LAYER_TYPES, LINEAR, SLIDING, read_rope

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
}

_MOST_LAYERS = 10_000
"""Far more than any model has: lists of layers are built before the files tell how many there are."""


def num_layers(reader: ConfigReader) -> int:
    """How many layers there are. Raises CheckpointError, as all functions here do."""
    count = reader.positive("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise reader.error("num_hidden_layers", count, f"at most {_MOST_LAYERS}")
    return count


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
    for key, factors in (("short_factor", rope.factors), ("long_factor", rope.long_factors)):
        if factors and 2 * len(factors) != turned:
            raise reader.error(key, list(factors), f"{int(turned) // 2} numbers, one for each rotated pair")
    return AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope)


def with_biases(attention: AttentionSpec, has_bias: bool) -> AttentionSpec:
    """All four projections have a bias, or none of them."""
    return replace(attention, qkv_bias=has_bias, o_bias=has_bias)


def read_dense(reader: ConfigReader, *, has_bias: bool = False) -> DenseSpec:
    """A gated feed-forward block."""
    size = reader.positive("intermediate_size")
    return DenseSpec(intermediate_size=size, has_bias=has_bias, activation=read_activation(reader))


def read_plain(reader: ConfigReader, activation: Activation, *, has_bias: bool = False) -> DenseSpec:
    """A feed-forward block without gate, whose activation must be this one."""
    size = reader.positive("intermediate_size")
    key = "gelu_tanh" if activation == "plain_gelu_tanh" else activation
    read_activation(reader, only=(key,))
    return DenseSpec(intermediate_size=size, has_bias=has_bias, activation=activation)


def read_activation(reader: ConfigReader, only: Collection[str] = ("silu", "gelu_tanh")) -> Activation:
    """The gate's activation, one of those in `only`."""
    key = "hidden_activation" if reader.raw.get("hidden_activation") is not None else "hidden_act"
    name = reader.raw.get(key, "silu")
    found = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None or found not in only:
        supported = " and ".join(repr(name) for name, own in _ACTIVATIONS.items() if own in only)
        raise reader.unsupported(key, name, supported)
    return found


def read_layer_types(reader: ConfigReader, known: Sequence[str] = LAYER_TYPES) -> list[str] | None:
    """`layer_types`, one of those `known` for each layer; None where config.json does not list them."""
    found = reader.raw.get("layer_types")
    if found is None:
        return None
    count = num_layers(reader)
    if not isinstance(found, list) or len(found) != count:
        raise reader.error("layer_types", found, f"a list of {count} names")
    if unknown := {str(name) for name in found} - set(known):
        raise reader.error("layer_types", sorted(unknown), " or ".join(map(repr, sorted(known))))
    return found


_LETTERS = {LINEAR: "M", "mamba": "M", FULL: "*", "attention": "*", "mlp": "-", "moe": "E"}


def read_blocks(reader: ConfigReader, kinds: Mapping[str, Callable[[], LayerSpec]]) -> tuple[LayerSpec, ...]:
    """Layers by the letters of `hybrid_override_pattern`, or by names in `layers_block_type`.

    `kinds`: by letter. Raises CheckpointError.
    """
    key, pattern = "hybrid_override_pattern", reader.raw.get("hybrid_override_pattern")
    named = reader.raw.get("layers_block_type")
    default = pattern if isinstance(pattern, str) else "ME*-"
    letters = list(default) if named is None else named
    if isinstance(named, list):
        key, letters = "layers_block_type", [_LETTERS.get(str(name), "?") for name in named]
    if not isinstance(letters, list) or not letters or not set(letters) <= set(kinds):
        expected = f"some of {sorted(kinds if key != 'layers_block_type' else _LETTERS)}"
        raise reader.error(key, named if key == "layers_block_type" else pattern, expected)
    if pattern is not None and (not isinstance(pattern, str) or letters != list(pattern)):
        raise reader.error("hybrid_override_pattern", pattern, "what 'layers_block_type' says")
    if reader.raw.get("num_hidden_layers") not in (None, len(letters)):
        raise reader.error(
            "num_hidden_layers", reader.raw["num_hidden_layers"], f"{len(letters)} as in {key!r}"
        )
    if "*" not in letters:
        raise reader.unsupported(key, "".join(letters), "models with attention in some layer")
    built = {letter: kinds[letter]() for letter in sorted(set(letters))}
    return tuple(built[letter] for letter in letters)


def same_layers(
    reader: ConfigReader, attention: AttentionSpec | HybridSpec, block: DenseSpec | MoEConfig
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


def check_rotated(reader: ConfigReader, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The layers, some of which must rotate positions."""
    if all(layer.attention.rope is None for layer in layers):
        found = reader.raw.get("layer_types")
        raise reader.unsupported("layer_types", found, "models with rotation in some layer")
    return layers


_BY_LAYER = {"head_dim", "num_key_value_heads"}


def read_sections(reader: ConfigReader, published: list[dict[str, int]]) -> list[ConfigReader]:
    """config.json as each layer reads it: with `per_layer_config` of transformers 5, or else `published`.

    `published` is what other keys say of each layer; where it is not empty, those of global heads.
    """
    found = reader.raw.get("per_layer_config")
    if found is None:
        return [ConfigReader(reader.path, {**reader.raw, **own}) for own in published]
    numbers = [str(layer) for layer in range(len(published))]
    if not isinstance(found, dict) or not all(
        key in numbers and isinstance(own, dict) and own.keys() <= _BY_LAYER for key, own in found.items()
    ):
        raise reader.error("per_layer_config", found, f"{sorted(_BY_LAYER)} by numbers of layers")
    own = [found.get(number, {}) for number in numbers]
    if reader.raw.get("global_head_dim") is not None and own != published:
        raise reader.error("per_layer_config", found, "what global_head_dim and the keys beside it say")
    return [ConfigReader(reader.path, {**reader.raw, **each}) for each in own]


def read_inputs(reader: ConfigReader) -> LayerInputSpec | None:
    """`hidden_size_per_layer_input`; 0: none."""
    size = reader.count("hidden_size_per_layer_input")
    if not size:
        return None
    rows, least = reader.positive("vocab_size_per_layer_input"), reader.positive("vocab_size")
    if rows < least:
        raise reader.error("vocab_size_per_layer_input", rows, f"at least vocab_size={least}")
    return LayerInputSpec(size, rows)


def with_kv_sources(
    reader: ConfigReader, attentions: list[AttentionSpec], types: list[str]
) -> list[AttentionSpec]:
    """The last `num_kv_shared_layers` read keys and values of the last layer of their type before them."""
    key, count = "num_kv_shared_layers", len(types)
    shared = reader.count(key)
    if shared >= count:
        raise reader.error(key, shared, f"fewer than num_hidden_layers={count}")
    sources = {name: layer for layer, name in enumerate(types[: count - shared])}
    found = attentions[: count - shared]
    for own, name in list(zip(attentions, types, strict=True))[count - shared :]:
        if name not in sources:
            raise reader.error(key, shared, f"so few that some layer before them is {name!r}")
        source = attentions[sources[name]]
        if (source.num_kv_heads, source.head_dim) != (own.num_kv_heads, own.head_dim):
            found_heads = reader.raw.get("per_layer_config")
            raise reader.error("per_layer_config", found_heads, "equal in layers of a type that share keys")
        found.append(replace(own, kv_source=sources[name]))
    return found


def windowed(reader: ConfigReader, attention: AttentionSpec) -> AttentionSpec:
    """With the window of `sliding_window`."""
    return replace(attention, window=reader.optional_positive("sliding_window"))
