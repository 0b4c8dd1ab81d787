"""What one decoder family says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from backend.config import LayerSpec, NormKind, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.names import WeightNames

MTP_LAYER = ("model.layers.{num_layers}.",)
"""Behind the last layer, one that drafts (multi-token prediction, arXiv:2412.19437)."""


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
    spellings: Mapping[str, str] = field(default_factory=dict)  # of published files → the key read here
    names: WeightNames = WeightNames()
    norm: NormKind = "rms"
    eps_key: str = "rms_norm_eps"
    # Whether ranks may share it, shown to answer as one process does: their heads and blocks, their experts.
    splits_heads: bool = False
    splits_experts: bool = False
    overflows_float16: bool = False  # its activations are known to leave the range of that, up to 65504
    # Where the decoder is one part of several: what `text_config` may describe, the first if it has no model
    # type. `others`: how the names of tensors begin that are of other parts, which are not loaded.
    texts: tuple[Family, ...] = ()
    others: tuple[str, ...] = ()


def nested(*texts: Family, architecture: str, model_type: str, others: tuple[str, ...]) -> Family:
    """The family of checkpoints whose decoder is one of `texts`, which have equal tensor names."""
    return replace(
        texts[0],
        architecture=architecture,
        model_type=model_type,
        texts=texts,
        others=others,
        splits_heads=False,
        splits_experts=False,
    )
