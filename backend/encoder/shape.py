"""The dimensions of a BERT encoder, as its configuration states them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.encoder.checkpoint import Checkpoint
from backend.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Dimensions of a BERT encoder."""

    folder: Path
    num_layers: int
    num_heads: int
    hidden_size: int
    vocab_size: int
    layer_norm_eps: float


def shape_of(checkpoint: Checkpoint) -> EncoderShape:
    """Raises CheckpointError where config.json lacks one."""
    config, folder = checkpoint.config, checkpoint.modules.transformer
    try:
        return EncoderShape(
            folder=folder,
            num_layers=int(config["num_hidden_layers"]),
            num_heads=int(config["num_attention_heads"]),
            hidden_size=int(config["hidden_size"]),
            vocab_size=int(config["vocab_size"]),
            layer_norm_eps=float(config["layer_norm_eps"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        path = folder / "config.json"
        raise CheckpointError(f"{str(path)!r} lacks a usable {error}: fetch it again.") from error
