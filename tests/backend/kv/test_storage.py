"""Slots are written where the page table says, and memory is planned within its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.kv.storage import KVLayout, KVStorage, num_pages_for

LAYOUT = KVLayout(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))


@dataclass
class Model:
    kv_layout: KVLayout = LAYOUT


def test_write_reaches_its_slots_only() -> None:
    storage = KVStorage(LAYOUT, 5)
    new = torch.randn(2, 6, 4)
    storage.write(1, torch.tensor([3 * 16 + 7, 16]), new)
    layer = storage.layers[1]
    assert torch.equal(layer[3, 7], new[0].view(2, 3, 4).bfloat16())
    assert torch.equal(layer[1, 0], new[1].view(2, 3, 4).bfloat16())
    assert layer.count_nonzero() == new.numel() and not storage.layers[0].any()


def test_page_bytes_is_what_a_page_costs() -> None:
    storage = KVStorage(LAYOUT, 5)
    assert storage.num_pages == 5
    assert sum(layer.nbytes for layer in storage.layers) == 5 * LAYOUT.page_bytes


def test_number_of_pages() -> None:
    config = EngineConfig(model="m", checkpoint="/c", kv_cache_bytes=100 * LAYOUT.page_bytes + 1)
    assert num_pages_for(config, Model()) == 100
    assert num_pages_for(EngineConfig(model="m", checkpoint="/c", num_pages=7), Model()) == 7
    free = num_pages_for(EngineConfig(model="m", checkpoint="/c"), Model())
    assert 0 < free * LAYOUT.page_bytes <= 1 << 30


def test_too_little_memory_is_said() -> None:
    config = EngineConfig(model="m", checkpoint="/c", kv_cache_bytes=LAYOUT.page_bytes)
    with pytest.raises(CheckpointError, match="kv_cache_bytes"):
        num_pages_for(config, Model())
