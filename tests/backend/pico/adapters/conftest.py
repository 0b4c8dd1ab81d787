"""A tiny model of the family as a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from backend.pico.adapters.weights import WEIGHTS
from backend.pico.model import SHAPES, build_model

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def write_base(folder: Path, name: str) -> Path:
    """Export a model of the family with few weights."""
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "pico-small" / "tokenizer.json"))
    folder.mkdir()
    experts = {"moe_intermediate_size": 16} if "num_experts" in SHAPES[name] else {}
    shapes = {name: {**SHAPES[name], **TINY, **experts}}
    build_model(name, tokenizer.get_vocab_size(), 3, shapes).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tiny_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "small", "pico-small")


@pytest.fixture(scope="session")
def tiny_large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "large", "pico-large")
