"""Writes reach the right slots, and `page_bytes` is the real size of a page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import CheckpointError
from backend.kernels.quantised_kv import dequantise
from backend.kv.storage import KVLayout, KVShape, KVStorage

LAYOUT = KVLayout((KVShape(num_kv_heads=3, head_dim=4),) * 2, torch.bfloat16, torch.device("cpu"))
EIGHT_BITS = [replace(LAYOUT, dtype=dtype) for dtype in (torch.int8, torch.float8_e4m3fn)]
WIDE, NARROW = KVShape(1, 8), KVShape(2, 4)
MIXED = replace(LAYOUT, layers=(NARROW, WIDE, NARROW, replace(NARROW, source=2), replace(WIDE, source=1)))
KEYS = replace(LAYOUT, layers=(NARROW, replace(NARROW, sides=1), WIDE))


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
    assert len(copy.layout.layers) == 1 and copy.num_pages == 6
    (layer,) = copy.layers
    for page, source in enumerate([4, 1, None, 0, 0, None]):
        want = torch.zeros_like(layer[0]) if source is None else storage.layers[1][source]
        assert torch.equal(layer[page], want)
    copy.layers[0].fill_(7.0)
    assert not (storage.layers[1] == 7.0).all()


def test_layers_with_windows_have_pages_of_their_own() -> None:
    layout = replace(LAYOUT, layers=(WIDE, replace(WIDE, is_windowed=True), WIDE), dtype=torch.float32)
    one, split = KVStorage(layout, 6), KVStorage(layout, 6, num_window_pages=2)
    assert [len(layer) for layer in one.layers] == [6] * 3 and one.num_pages == split.num_pages == 6
    assert [len(layer) for layer in split.layers] == [6, 2, 6]
    num_bytes = sum(memory.nbytes for memory in split.memory)
    assert num_bytes == 6 * (layout.page_bytes - layout.window_page_bytes) + 2 * layout.window_page_bytes
    assert layout.window_page_bytes * 3 == layout.page_bytes and not LAYOUT.window_page_bytes
    for layer in split.layers:
        layer.view(-1, 16).copy_(torch.arange(layer.numel() // 16, dtype=torch.float32)[:, None])
    before = [slots.clone() for slots in split.slots]
    split.move(torch.tensor([90]), torch.tensor([7]))
    split.move(torch.tensor([30]), torch.tensor([8]), is_windowed=True)
    split.zero(9, 10)
    for slots, old, (source, target, zeroed) in zip(
        split.slots, before, [(90, 7, 9), (30, 8, 10), (90, 7, 9)], strict=True
    ):
        old[target], old[zeroed] = old[source].clone(), 0
        assert torch.equal(slots, old)


@pytest.mark.parametrize("layout", [LAYOUT, *EIGHT_BITS, MIXED, replace(MIXED, dtype=torch.int8), KEYS])
def test_page_bytes_is_the_size_of_a_page(layout: KVLayout) -> None:
    storage = KVStorage(layout, 5)
    assert storage.num_pages == 5
    assert sum(memory.nbytes for memory in storage.memory) == 5 * layout.page_bytes


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_8_bits_hold_nearly_twice_the_pages_of_16(dtype: torch.dtype) -> None:
    wide = replace(LAYOUT, layers=(KVShape(3, 128),))
    assert 1.9 < wide.page_bytes / replace(wide, dtype=dtype).page_bytes < 2


@pytest.mark.parametrize("layout", EIGHT_BITS)
def test_scales_go_with_their_numbers(layout: KVLayout) -> None:
    storage = KVStorage(layout, 3)
    assert not dequantise(storage.memory[0], 4, torch.float32).any()
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


def test_layers_of_equal_shape_share_a_tensor() -> None:
    (memory,) = KVStorage(LAYOUT, 3).memory
    assert memory.shape == (2, 3, 16, 2, 3, 4)
    assert [len(each) for each in KVStorage(MIXED, 3).memory] == [2, 1]


shapes = st.builds(KVShape, st.integers(1, 3), st.sampled_from([4, 8]), sides=st.sampled_from([1, 2]))


@st.composite
def layouts(draw: st.DrawFn) -> KVLayout:
    """Layers of any shapes, each with its own keys and values or those of an earlier layer."""
    layers: list[KVShape] = []
    for number in range(draw(st.integers(1, 5))):
        own = [i for i in range(number) if layers[i].source is None]
        source = draw(st.none() | st.sampled_from(own)) if own else None
        layers.append(draw(shapes) if source is None else replace(layers[source], source=source))
    return KVLayout(tuple(layers), torch.float32, torch.device("cpu"))


SLOTS = st.lists(st.integers(29, 35), min_size=3, max_size=3, unique=True)
ACTIONS = st.lists(st.tuples(st.sampled_from(["write", "move", "copy"]), SLOTS, SLOTS), max_size=8)


@given(layout=layouts(), actions=ACTIONS)
def test_each_layer_has_what_its_source_was_given(
    layout: KVLayout, actions: list[tuple[str, list[int], list[int]]]
) -> None:
    """Against one array for each layer with keys and values of its own."""
    storage = KVStorage(layout, 3)
    wanted = {number: torch.zeros_like(storage.slots[number]) for number in layout.own}
    for step, (action, sources, targets) in enumerate(actions):
        for number, each in wanted.items():
            if action == "write":
                each[targets] = step + number + torch.arange(3.0)[:, None, None]
                storage.write(number, torch.tensor(targets), each[targets])
            elif action == "move":
                each[targets] = each[sources]
            else:
                wanted[number] = each.unflatten(0, (3, 16))[[2, 0, 1]].flatten(0, 1)
        if action == "move":
            storage.move(torch.tensor(sources), torch.tensor(targets))
        if action == "copy":
            storage = storage.copy_pages(torch.tensor([[2, 0, 1]]), 0)
    for number, shape in enumerate(layout.layers):
        own = wanted[number if shape.source is None else shape.source]
        assert torch.equal(storage.slots[number], own)
        assert torch.equal(storage.layers[number].flatten(0, 1).flatten(1, 2), own)


@pytest.mark.parametrize("num_pages", [10**15, 10**18, 10**30])
def test_more_memory_than_there_is(num_pages: int) -> None:
    with pytest.raises(
        CheckpointError, match="KV memory of .* bytes cannot .*'cpu'; lower kv_cache_bytes .* of model 'm'"
    ) as caught:
        KVStorage(LAYOUT, num_pages, model="m")
    assert "\n" not in str(caught.value)
