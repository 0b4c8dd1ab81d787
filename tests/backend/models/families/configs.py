"""A config.json for the tests of families: the keys that all of them share, and what a test changes."""

from __future__ import annotations

import json
from pathlib import Path

from backend.config import ModelConfig
from backend.models.checkpoint_config import read_model_config

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}


def read(directory: Path, architecture: str, **changes: object) -> ModelConfig:
    """Write config.json under `directory`, and read it as the engine does."""
    raw = {"architectures": [architecture], **SHAPE, **changes}
    (directory / "config.json").write_text(json.dumps(raw))
    return read_model_config(directory)
