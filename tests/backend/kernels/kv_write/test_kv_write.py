"""Queries are rotated, and keys and values reach their slots, as rotation and conversion alone make them."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.kv_write import kv_write
from backend.kernels.quantised_kv import quantise, stored_width
from backend.kernels.rotary import Angles, rotate

NUM_HEADS, NUM_KV_HEADS, SLOTS = 4, 2, 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("head_dim", [6, 16])
@pytest.mark.parametrize("has_norm", [False, True])
def test_kv_write(dtype: torch.dtype, head_dim: int, *, has_norm: bool) -> None:
    torch.manual_seed(head_dim)
    heads, num_rotated = torch.randn(5, NUM_HEADS + 2 * NUM_KV_HEADS, head_dim), NUM_HEADS + NUM_KV_HEADS
    angles = Angles(torch.randn(2, 60, head_dim), torch.randint(60, (5,), dtype=torch.int32))
    norm = (torch.rand(num_rotated, head_dim), 1e-5) if has_norm else ()
    slots, width = torch.tensor([39, 0, 7, 8, 21]), stored_width(head_dim, dtype)
    memory = torch.zeros(SLOTS, 2 * NUM_KV_HEADS, width, dtype=dtype)
    wanted = heads.clone()
    rotate(wanted[:, :num_rotated], angles, *norm)
    kv_write(heads, angles, slots, memory, *norm)
    assert torch.equal(heads[:, :NUM_HEADS], wanted[:, :NUM_HEADS])
    own, is_quantised = wanted[:, NUM_HEADS:], width > head_dim
    stored = quantise(own, dtype) if is_quantised else own.to(dtype)
    raw = memory.view(torch.uint8)
    assert torch.equal(raw[slots], stored.view(torch.uint8))
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[slots] = False
    assert not raw[others].any()


def test_no_tokens() -> None:
    angles = Angles(torch.zeros(2, 4, 8), torch.zeros(0, dtype=torch.int32))
    memory = torch.zeros(16, 2, 8)
    kv_write(torch.zeros(0, 3, 8), angles, torch.zeros(0, dtype=torch.int64), memory)
    assert not memory.any()
