"""Writes reach the right slots, and `page_bytes` is the real size of a page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.kernels.quantised_kv import dequantise
from backend.kv.storage import KVLayout, KVStorage

LAYOUT = KVLayout(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))
EIGHT_BITS = [replace(LAYOUT, dtype=dtype) for dtype in (torch.int8, torch.float8_e4m3fn)]


def test_write_reaches_its_slots_only() -> None:
    storage = KVStorage(LAYOUT, 5)
    new = torch.randn(2, 6, 4)
    storage.write(1, torch.tensor([3 * 16 + 7, 16]), new)
    layer = storage.layers[1]
    assert torch.equal(layer[3, 7], new[0].view(2, 3, 4).bfloat16())
    assert torch.equal(layer[1, 0], new[1].view(2, 3, 4).bfloat16())
    assert layer.count_nonzero() == new.numel() and not storage.layers[0].any()


def test_slots_move_in_every_layer_even_if_they_overlap() -> None:
    storage = KVStorage(LAYOUT, 2)
    for number in range(2):
        storage.write(number, torch.arange(32), torch.randn(32, 6, 4))
    before = [layer.flatten(0, 1).clone() for layer in storage.layers]
    storage.move(torch.tensor([5, 17, 31]), torch.tensor([4, 5, 16]))
    for old, layer in zip(before, storage.layers, strict=True):
        old[[4, 5, 16]] = old[[5, 17, 31]].clone()
        assert torch.equal(layer.flatten(0, 1), old)


def test_a_copy_has_the_pages_of_each_sequence_and_empty_ones_after_them() -> None:
    storage = KVStorage(LAYOUT, 5)
    for number in range(2):
        storage.write(number, torch.arange(80), torch.randn(80, 6, 4))
    copy = storage.copy_pages(torch.tensor([[4, 1], [0, 0]]), 1, first_layer=1)
    assert copy.layout.num_layers == 1 and copy.num_pages == 6
    (layer,) = copy.layers
    for page, source in enumerate([4, 1, None, 0, 0, None]):
        want = torch.zeros_like(layer[0]) if source is None else storage.layers[1][source]
        assert torch.equal(layer[page], want)
    copy.layers[0].fill_(7.0)
    assert not (storage.layers[1] == 7.0).all()


@pytest.mark.parametrize("layout", [LAYOUT, *EIGHT_BITS])
def test_page_bytes_is_the_size_of_a_page(layout: KVLayout) -> None:
    storage = KVStorage(layout, 5)
    assert storage.num_pages == 5
    assert sum(layer.nbytes for layer in storage.layers) == 5 * layout.page_bytes


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_8_bits_hold_nearly_twice_the_pages_of_16(dtype: torch.dtype) -> None:
    wide = replace(LAYOUT, head_dim=128)
    assert 1.9 < wide.page_bytes / replace(wide, dtype=dtype).page_bytes < 2


@pytest.mark.parametrize("layout", EIGHT_BITS)
def test_scales_go_with_their_numbers(layout: KVLayout) -> None:
    storage = KVStorage(layout, 3)
    assert not dequantise(storage.memory, 4, torch.float32).any()
    new = torch.randn(2, 2, 6, 4) * torch.tensor([1e-6, 1e6])[:, None, None]
    for number in range(2):
        storage.write(number, torch.tensor([5, 33]), new[number])
    storage.move(torch.tensor([33, 5]), torch.tensor([6, 4]))
    copy = storage.copy_pages(torch.tensor([[2, 0]]), 1, first_layer=1)
    found = dequantise(copy.layers[0], 4, torch.float32).view(3 * 16, 6, 4)
    written, want = [1, 16 + 4, 16 + 5, 16 + 6], new[1, [1, 0, 0, 1]]
    assert ((found[written] - want).abs() <= want.abs().amax(-1, keepdim=True) * 0.04).all()
    found[written] = 0
    assert not found.any()


@pytest.mark.parametrize("layout", EIGHT_BITS)
def test_zeroing_a_slot_mends_what_was_not_finite(layout: KVLayout) -> None:
    storage = KVStorage(layout, 1)
    storage.write(0, torch.tensor([2, 3]), torch.stack([torch.full((6, 4), torch.nan), torch.ones(6, 4)]))
    storage.layers[0][0, 2] = 0  # as the runner does
    found = dequantise(storage.layers[0], 4, torch.float32)
    assert found.isfinite().all() and found[0, 3].allclose(torch.ones(()), rtol=0.01) and found.sum() > 23
