"""The load counts the routers' selections, and its measures are right in known cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import backend.pico
from backend.pico.expert_load import ExpertLoad, held_out_sequences, measure_load
from backend.pico.hyper_moe import load_sparse
from backend.pico.model import build_model


def test_measures_of_known_loads() -> None:
    load = ExpertLoad(torch.tensor([[5, 5, 5, 5], [10, 10, 0, 0], [8, 4, 4, 4]]), tokens=10)
    assert load.shares[1].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert load.evenness.tolist()[:2] == pytest.approx([1.0, 0.5])
    rows = load.table().splitlines()
    assert rows[2] == "| 1 | 50.0 | 50.0 | 50.0 | 50.0 | 1.000 | 1.00 |"
    assert rows[3].endswith("| 0.0 | 0.500 | ∞ |")
    assert rows[4].endswith("| 0.961 | 2.00 |")


def test_counts_the_routers_selections(tmp_path: Path) -> None:
    model = build_model("pico-large", vocab_size=60, seed=1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()  # all equal: top-k takes any two, the same for every token
    model.save_pretrained(tmp_path)
    load = measure_load(load_sparse(tmp_path), [[1, 2, 3], [4, 5, 6, 7]])
    assert load.tokens == 7
    assert load.counts.shape == (5, 8)
    for row in load.counts.tolist():
        assert sorted(row) == [0] * 6 + [7, 7]


def test_held_out_sequences_depend_on_the_seed_only() -> None:
    path = Path(backend.pico.__file__).with_name("weights") / "pico-small" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    first, again, other = (held_out_sequences(tokenizer, 8, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 8 and all(len(sequence) > 5 for sequence in first)
