"""Adapters, by torch's products and by the compiled loop, equal dense matrices."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.kernels import lora
from backend.kernels.lora import AdapterRows, DeviceSlots, SlotWeights, add_adapters, rows_of_one, warm_up
from backend.kernels.lora.looped import LoopWeights
from tests.backend.kernels.lora.whole import tokens
from tests.backend.kernels.waits import Waits

pytestmark = pytest.mark.timeout(400)  # Triton and Numba compile, on cores that others use as well

FEATURES = 24
NARROW, SINGLE = (10, 6, 7), (11,)
PATTERNS = {
    "one token each": [0, 1, 2, 3],
    "sorted and even": [-1, 1, 1, 2, 2, 3, 3],
    "sorted and even with a prompt": [0, 1, 2] + [3] * 16,
    "sorted and uneven": [-1, 1, 1, 2, 3, 3],
    "sorted, one missing": [0, 0, 2, 2],
    "several each": [2, 0, 2, 1, 0, 2, 1, 1],
    "some without": [-1, 0, -1, 3, 3, -1],
    "unequal": [0] * 7 + [1, 3] + [-1] + [0],
    "a prompt and decodes": [1, 3, -1, 2] + [2] * 20 + [-1] * 17 + [0] * 16,
    "far apart": [7, -1, 0],
}
CPU = torch.device("cpu")


def make_weights(columns: Sequence[int], num_slots: int = 8) -> tuple[SlotWeights, dict[int, Tensor]]:
    """Slots of mixed ranks, some parts empty, and each slot's whole matrix [N, K]."""
    generator = torch.Generator().manual_seed(len(columns))
    weights = SlotWeights(num_slots, FEATURES, columns, 5, torch.empty(0))
    dense: dict[int, Tensor] = {}
    for slot in range(num_slots):
        parts, matrices = {}, []
        for part, width in enumerate(columns):
            rank = 1 + (slot + part) % 5
            down = torch.randn(rank, FEATURES, generator=generator)
            up = torch.randn(rank, width, generator=generator)
            if (slot + part) % 4 == 3:
                matrices.append(torch.zeros(width, FEATURES))
                continue
            parts[part] = (down, up)
            matrices.append(up.T @ down)
        weights.put(slot, parts)
        dense[slot] = torch.cat(matrices)
    return weights, dense


def expected(y: Tensor, x: Tensor, dense: dict[int, Tensor], slots: list[int]) -> Tensor:
    nothing = torch.zeros_like(y[0])
    added = [nothing if slot < 0 else dense[slot] @ row for row, slot in zip(x, slots, strict=True)]
    return y + torch.stack(added)


@pytest.fixture(params=["loop", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a CPU multiplies; the test fails where it does so in the other way."""
    chosen: str = request.param

    def never(*_: object) -> None:
        raise AssertionError(f"not by the {chosen}")

    if chosen == "torch":
        monkeypatch.setattr(lora, "_is_flat", lambda *_: False)
        monkeypatch.setattr(LoopWeights, "add_rows", never)
    else:
        monkeypatch.setattr(lora.reference, "add_adapters", never)
    return chosen


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("columns", [NARROW, SINGLE])
@pytest.mark.parametrize("slots", PATTERNS.values(), ids=PATTERNS.keys())
def test_equals_dense_matrices(slots: list[int], columns: Sequence[int]) -> None:
    weights, dense = make_weights(columns)
    x, y = torch.randn(len(slots), FEATURES), torch.randn(len(slots), sum(columns))
    want = expected(y, x, dense, slots)
    got = y.clone()
    add_adapters(got, x, weights, AdapterRows(np.array(slots), CPU))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    bare = [i for i, slot in enumerate(slots) if slot < 0]
    assert torch.equal(got[bare], y[bare]), "rows without an adapter are not touched"


def test_what_the_loop_cannot_read_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, dense = make_weights(NARROW)
    taken: list[int] = []
    monkeypatch.setattr(LoopWeights, "add_rows", lambda self, y, x, rows: taken.append(len(rows.slots)))

    def loops(y: Tensor, x: Tensor, slots: list[int], weights: SlotWeights = weights) -> bool:
        before = len(taken)
        wanted = None if y.dtype is not torch.float32 else expected(y, x, dense, slots)
        add_adapters(y, x, weights, AdapterRows(np.array(slots), CPU))
        if len(taken) == before and wanted is not None:
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
        return len(taken) > before

    width = sum(NARROW)
    assert loops(torch.zeros(4, width), torch.randn(4, FEATURES), [0, 1, 2, 3])
    assert not loops(torch.zeros(2, width), torch.randn(FEATURES, 2).T, [0, 1]), "not contiguous"
    assert not loops(torch.zeros(width, 2).T, torch.randn(2, FEATURES), [0, 1]), "not contiguous"
    narrow, wide, double = torch.zeros(2, FEATURES - 1), torch.zeros(2, width + 1), torch.float64
    for x, y in (
        (narrow, torch.zeros(2, width)),
        (torch.zeros(2, FEATURES), wide),
        (torch.zeros(2, FEATURES, dtype=double), torch.zeros(2, width)),
        (torch.zeros(2, FEATURES), torch.zeros(2, width, dtype=double)),
    ):
        with pytest.raises(RuntimeError):  # torch's: the loop would read or write beyond
            add_adapters(y, x, weights, AdapterRows(np.array([0, 1]), CPU))
    assert len(taken) == 1
    half = SlotWeights(8, FEATURES, NARROW, 5, torch.empty(0, dtype=torch.bfloat16))
    inputs = torch.zeros(2, width, dtype=torch.bfloat16), torch.zeros(2, FEATURES, dtype=torch.bfloat16)
    assert not loops(*inputs, [0, 1], half)


def test_the_loop_is_compiled_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(LoopWeights, "add_rows", lambda self, y, x, rows: called.append(len(rows.slots)))
    warm_up(torch.bfloat16, CPU)
    assert not called
    warm_up(torch.float32, CPU)
    assert called == [1, 1], "weights of 16 bits, and of 32"


@pytest.mark.usefixtures("way")
def test_a_row_is_not_touched_by_what_its_neighbours_hold() -> None:
    weights, _ = make_weights(NARROW)
    x, y = torch.randn(4, FEATURES), torch.randn(4, sum(NARROW))
    x[1] = torch.nan
    add_adapters(y, x, weights, AdapterRows(np.array([0, 1, 0, -1]), CPU))
    assert y[[0, 2, 3]].isfinite().all() and y[1].isnan().any()


@pytest.mark.usefixtures("way")
def test_a_slot_is_replaced_cleared_and_grown() -> None:
    weights, dense = make_weights(NARROW)
    x = torch.randn(2, FEATURES)
    rows = AdapterRows(np.array([3, 5]), CPU)
    weights.put(3, {1: (torch.ones(1, FEATURES), torch.ones(1, NARROW[1]))})
    larger = weights.grown(9)
    assert larger.rank == 12 and larger.down.shape[1] == 12 * len(NARROW), "in fours"
    y = torch.zeros(2, sum(NARROW))
    add_adapters(y, x, larger, rows)
    first = torch.zeros(sum(NARROW))
    first[NARROW[0] : NARROW[0] + NARROW[1]] = x[0].sum()
    torch.testing.assert_close(y, torch.stack([first, dense[5] @ x[1]]), rtol=1e-4, atol=1e-4)
    larger.clear(5)
    y.zero_()
    add_adapters(y, x, larger, rows)
    assert not y[1].any()


def test_rows_can_be_selected() -> None:
    rows = AdapterRows(np.array([2, -1, 0, 2]), CPU)
    chosen = rows.select(np.array([3, 1]))
    assert chosen is not None and chosen.slots.tolist() == [2, -1]
    assert rows.select(np.array([1, 1])) is None
    assert rows_of_one(-1, 3, CPU) is None
    uniform = rows_of_one(4, 3, CPU)
    assert uniform is not None and uniform.slots.tolist() == [4, 4, 4]
    assert on_device(uniform) == ([4, 4, 4], [4])


def on_device(rows: AdapterRows) -> tuple[list[int], list[int]]:
    slots = rows.on_device
    assert slots.slots.dtype is slots.active.dtype is torch.int32
    return slots.slots.tolist(), slots.active.tolist()


def test_the_slots_of_rows_go_to_the_device_once() -> None:
    index = np.array([3, 1])
    rows = AdapterRows(np.array([2, -1, 0, 2]), CPU)
    assert on_device(rows) == ([2, -1, 0, 2], [0, 2]) and rows.on_device is rows.on_device
    with Waits() as waits:
        there, copied, uniform = (
            rows.select(index, torch.from_numpy(index)), rows.select(index), rows_of_one(4, 3, CPU)
        )  # fmt: skip
        assert there is not None and copied is not None and uniform is not None
        assert all(len(each.on_device.active) for each in (rows, there, copied, uniform))
    assert not waits.reads
    assert on_device(there) == ([2, -1], [0, 2]) and there.on_device.active is rows.on_device.active
    assert on_device(copied) == ([2, -1], [2])
    given = DeviceSlots.packed(torch.tensor([2, -1, 2], dtype=torch.int32), 2)
    assert AdapterRows(np.array([2, -1]), CPU, lambda: given).on_device is given


def test_a_whole_model_on_a_gpu_chooses_the_tokens_of_the_cpu(interpreter: Executor, tmp_path: Path) -> None:
    """The GPU's path, without a GPU."""
    interpreted, own = tmp_path / "interpreted", tmp_path / "own"
    for folder in (interpreted, own):
        folder.mkdir()
    expected = tokens(own)
    assert len({tuple(each) for each in expected.values()}) == len(expected), "each adapter changes them"
    assert interpreter.submit(tokens, interpreted).result() == expected
