"""What one decoder family says about itself; the defaults are Llama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backend.config import MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.names import WeightNames

Windows = tuple[int | None, ...]
"""Each layer's sliding window in tokens, the query's own included; None: full attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which projections have a bias."""

    qkv: bool
    out: bool
    mlp: bool = False


@dataclass(frozen=True, slots=True)
class SparseLayers:
    """The mixture-of-experts layers of a model."""

    moe: MoEConfig
    layers: frozenset[int]


def attention_biases(reader: ConfigReader) -> Biases:
    """All four attention projections, or none of them, as `attention_bias` says."""
    has_bias = reader.flag("attention_bias")
    return Biases(qkv=has_bias, out=has_bias)


def no_biases(reader: ConfigReader) -> Biases:
    """No projection has a bias, whatever config.json says."""
    return Biases(qkv=False, out=False)


def full_attention(reader: ConfigReader, num_layers: int) -> Windows:
    """No layer has a sliding window, whatever config.json says."""
    return (None,) * num_layers


def all_dense(reader: ConfigReader, num_layers: int) -> SparseLayers | None:
    """No layer has experts."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tensor names, and the rules by which config.json becomes a ModelConfig where families differ.

    The functions get the model's config.json and, where it matters, its number of layers; they raise
    CheckpointError.
    """

    architecture: str  # as in config.json's "architectures"
    model_type: str  # as in config.json, for files without "architectures"
    # Keys that config.json may leave out, with the values of the configuration class in transformers. Others
    # are false or derived: num_key_value_heads is num_attention_heads, head_dim is hidden_size / that.
    defaults: Mapping[str, object] = field(default_factory=dict)
    names: WeightNames = WeightNames()
    qk_norm: bool = False  # RMSNorm over each query head and each key head
    read_biases: Callable[[ConfigReader], Biases] = attention_biases
    read_windows: Callable[[ConfigReader, int], Windows] = full_attention
    read_experts: Callable[[ConfigReader, int], SparseLayers | None] = all_dense
