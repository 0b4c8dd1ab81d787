"""LoRA in Triton: slots in any order, parts of any width; NaN in all memory that no row has a right to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from backend.kernels.lora import AdapterRows, DeviceSlots, SlotWeights, kernel
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value
from tests.backend.kernels.lora.test_lora import PATTERNS
from tests.backend.kernels.waits import Waits

PARTS = (50, 3, 70)


@dataclass(frozen=True)
class Batch:
    """Rows of one layer."""

    slots: Sequence[int]
    rank: int = 8
    columns: Sequence[int] = PARTS
    features: int = 40
    num_slots: int = 8
    alone: Sequence[int] = ()  # rows that are also computed without the others
    num_more: int = 0  # active slots of no row, as a graph's buffers have


def filled(batch: Batch, dtype: torch.dtype) -> tuple[SlotWeights, dict[int, Tensor]]:
    """The adapters that rows use, of different ranks, and their matrices [K, N]; NaN in all other slots."""
    weights = SlotWeights(
        batch.num_slots, batch.features, batch.columns, batch.rank, torch.empty(0, dtype=dtype)
    )
    weights.down.fill_(torch.nan)
    weights.up.fill_(torch.nan)
    dense = {}
    for slot in sorted(set(batch.slots) - {-1}):
        parts = {}
        for part, width in enumerate(batch.columns):
            rank = max(1, batch.rank - (slot + part) % 4)
            down, up = torch.randn(rank, batch.features), torch.randn(rank, width)
            parts[part] = (down * batch.features**-0.5).to(dtype), (up * rank**-0.5).to(dtype)
        weights.put(slot, parts)
        dense[slot] = torch.cat([down.double().T @ up.double() for down, up in parts.values()], 1)
    return weights, dense


def on(device: str, weights: SlotWeights) -> SlotWeights:
    """The kernel reads no more than these two."""
    weights.down, weights.up = weights.down.to(device), weights.up.to(device)
    return weights


def value(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Rows of wider matrices, as the layer's neighbours leave them, and what float64 gives."""
    weights, dense = filled(batch, dtype)
    rows = AdapterRows(np.array(batch.slots), torch.device(device))
    count, width = len(batch.slots), weights.out_features
    x = torch.randn(count, batch.features + 3).to(dtype)[:, : batch.features]
    y = torch.randn(count, width + 5).to(dtype).to(device)
    before, exact = y.clone(), y.double()
    for row, slot in enumerate(batch.slots):
        if slot >= 0:
            exact[row, :width] += x[row].double() @ dense[slot]
        else:
            x[row] = torch.nan  # not read
    x, weights = x.to(device), on(device, weights)
    own = rows.on_device
    active = torch.cat((own.active, own.active.new_full((batch.num_more,), -2)))
    kernel.add_adapters(y[:, :width], x, weights, DeviceSlots(own.slots, active))
    bare = [row for row, slot in enumerate(batch.slots) if slot < 0]
    assert torch.equal(y[bare], before[bare]), "rows without an adapter are not touched"
    for row in batch.alone:
        check_alone(row, y[:, :width], before[:, :width], x, weights, batch.slots)
    return y, exact


def check_alone(
    row: int, found: Tensor, before: Tensor, x: Tensor, weights: SlotWeights, slots: Sequence[int]
) -> None:
    """Without the other rows' adapters the row is the same, to the bit.

    It keeps its place in its block: the interpreter's products depend on that, unlike tensor cores.
    """
    block = slice(row // 64 * 64, row + 1)
    own = AdapterRows(np.where(np.arange(len(slots)) == row, slots, -1)[block], x.device)
    alone = before[block].clone()
    kernel.add_adapters(alone, x[block], weights, own.on_device)
    assert torch.equal(alone[-1], found[row]) and torch.equal(alone[:-1], before[block][:-1])


def in_splits(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """With splits of fewer features: all of them in one program, and one in each for rows alone."""
    with patch.object(kernel, "_SPLIT_FEATURES", 64), patch.object(kernel, "_MANY_ROWS", len(batch.slots)):
        return value(batch, dtype, device)


def launched(
    columns: Sequence[int], features: int, ranks: Sequence[int], counts: Sequence[int], dtype: torch.dtype
) -> None:
    """A layer of Qwen3-8B. How many adapters a step has needs no machine code of its own."""
    for rank in ranks:
        weights = SlotWeights(1, features, columns, rank, torch.empty(0, dtype=dtype))
        for count in counts:
            x, y = torch.zeros(count, features, dtype=dtype), torch.zeros(count, sum(columns), dtype=dtype)
            for num_adapters in (1, 8, 64):
                rows = AdapterRows(np.arange(count) % num_adapters, torch.device("cpu"))
                with Waits() as waits:
                    kernel.add_adapters(y, x, weights, rows.on_device)
                assert not waits.reads


SLOTS = np.random.default_rng(0).integers(0, 512, 30).tolist()
BATCHES = {
    **{name: Batch(slots) for name, slots in PATTERNS.items()},
    "rank 1": Batch([1, 0, 1], rank=1, columns=(130,)),
    "rank 16": Batch([1, -1, 0, 1], rank=16, columns=(64, 64), features=128),
    "rank 64 over splits": Batch([1, -1, 0, 1], rank=64, columns=(16, 130), features=530),
    "rank 100": Batch([1, 0], rank=100, columns=(20,)),
    "one slot, blocks of rows": Batch([5] * 130, columns=(33,)),
    "interleaved, blocks of rows": Batch([0, 4, 2, -1, 3, 1] * 23, columns=(33,)),
    "one without, blocks of rows": Batch([*[-1] * 64, 2, *[-1] * 64], columns=(33,)),
    "in a graph's buffers": Batch([0, 4, 2, -1, 3, *[-1] * 11], columns=(33,), num_more=4),
    "none": Batch([-1, -1], columns=(33,)),
    "all different": Batch(list(range(30)), 4, (20,), 40, 30),
    "of 512 slots": Batch(SLOTS, 4, (20,), 40, 512),
}
SPLIT = Batch([0, 1, 0, -1] * 33, columns=(20,), features=210, alone=(65, 130))
QKV, GATE_UP, DOWN = ((4096, 1024, 1024), 4096), ((12288, 12288), 4096), ((4096,), 12288)
RANKS, DECODE, PREFILL = (16, 64), (1, 32, 256), (2048,)
KERNELS = ["_shrink", "_expand"]
CASES = Cases(
    [
        *(Value(name, partial(value, batch)) for name, batch in BATCHES.items()),
        Value("four splits", partial(in_splits, SPLIT)),
    ],
    [
        Launch("q, k, v", partial(launched, *QKV, RANKS, DECODE + PREFILL), KERNELS, is_large=True),
        Launch("q, k, v, decode", partial(launched, *QKV, RANKS, DECODE), KERNELS, dtypes=COMPILED[:1]),
        Launch("gate, up", partial(launched, *GATE_UP, RANKS, DECODE + PREFILL), KERNELS, is_large=True),
        Launch("down", partial(launched, *DOWN, RANKS, DECODE + PREFILL), KERNELS, is_large=True),
    ],
)
