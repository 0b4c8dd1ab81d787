"""A tiny random target, and a view of one batch."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from backend.pico.batches import make_batch
from backend.pico.drafters.target import Target, View
from backend.pico.experts import replace_blocks
from backend.pico.export import WEIGHTS
from backend.pico.model import SHAPES, build_model

TINY_SHAPES = {
    "pico-large": {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "pico-draft": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    },
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in TINY_SHAPES.items():
        monkeypatch.setitem(SHAPES, name, shape)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "pico-small" / "tokenizer.json"))


@pytest.fixture
def target(tokenizer: Tokenizer) -> Target:
    model = build_model("pico-large", tokenizer.get_vocab_size(), 3)
    replace_blocks(model)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(8)  # peaked distributions, so that there is something to learn
    return Target(model)


@pytest.fixture
def view(target: Target) -> View:
    """Two rows: the model generates tokens 6 to 15 of the first and 4 to 9 of the shorter second."""
    ids = torch.randint(3, 1500, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [(ids, [place >= 6 for place in range(16)]), (ids[3:13], [place >= 4 for place in range(10)])]
    return target.observe(make_batch(rows, [0, 1]))
