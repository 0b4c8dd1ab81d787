"""What one decoder family says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.names import WeightNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tensor names, and how config.json becomes layers."""

    architecture: str  # as in config.json's "architectures"
    model_type: str  # as in config.json, for files without "architectures"
    read_layers: Callable[[ConfigReader], tuple[LayerSpec, ...]]  # raises CheckpointError
    read_scalars: Callable[[ConfigReader], Scalars] = lambda reader: Scalars()
    # Keys that config.json may leave out, with the values of the configuration class in transformers. Others
    # are false or derived: num_key_value_heads is num_attention_heads, head_dim is hidden_size / that.
    defaults: Mapping[str, object] = field(default_factory=dict)
    names: WeightNames = WeightNames()
