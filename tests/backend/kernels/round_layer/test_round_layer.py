"""Each part, one token of some sequences at a time, is what torch computes of the same weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.rms_norm import rms_norm
from backend.kernels.rotary import rotate
from backend.kernels.round_layer import (
    AttentionWeights,
    FeedForwardWeights,
    ProjectionWeights,
    attend,
    feed_forward,
    likeliest,
    project,
)
from backend.kernels.tiles import in_tiles

WIDTH, WIDE, QUERIES, KV_HEADS, SIZE, EPS = 20, 40, 6, 2, 8, 1e-5
NOTHING = np.empty(0, np.float32)
COUNTS = pytest.mark.parametrize("count", [1, 3, 5])


def weight(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, columns) / math.sqrt(columns)).to(dtype)


def gains(size: int = WIDTH) -> Tensor:
    return 1 + torch.rand(size)


@COUNTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_project(count: int, dtype: torch.dtype) -> None:
    x, norm, matrix = torch.randn(count, WIDTH), gains(), weight(37, WIDTH, dtype)
    tiles = in_tiles([matrix])
    assert (tiles.dtype == np.uint16) == (dtype is torch.bfloat16)
    with_norm = project(ProjectionWeights(norm.numpy(), np.float32(EPS), tiles), x, 37)
    torch.testing.assert_close(with_norm, rms_norm(x, norm, EPS) @ matrix.float().T, rtol=1e-5, atol=1e-5)
    without = project(ProjectionWeights(NOTHING, np.float32(0), tiles), x, 37)
    torch.testing.assert_close(without, x @ matrix.float().T, rtol=1e-5, atol=1e-5)


@COUNTS
def test_feed_forward(count: int) -> None:
    x, norm, last = torch.randn(count, WIDTH), gains(), gains()
    gate, up, down = weight(WIDE, WIDTH), weight(WIDE, WIDTH), weight(WIDTH, WIDE)
    weights = FeedForwardWeights(
        norm.numpy(), np.float32(EPS), in_tiles([torch.cat((gate, up))]), in_tiles([down]), last.numpy()
    )
    normed = rms_norm(x, norm, EPS)
    expected = rms_norm(x + (F.silu(normed @ gate.T) * (normed @ up.T)) @ down.T, last, EPS)
    torch.testing.assert_close(feed_forward(weights, x), expected, rtol=1e-5, atol=1e-5)


@COUNTS
def test_likeliest(count: int) -> None:
    x, norm, matrix = torch.randn(count, WIDTH), gains(), 3 * weight(70, WIDTH)
    tokens, likely = likeliest(ProjectionWeights(norm.numpy(), np.float32(EPS), in_tiles([matrix])), x, 70)
    expected = (rms_norm(x, norm, EPS) @ matrix.T).softmax(dim=-1).max(dim=-1)
    assert torch.equal(tokens, expected.indices)
    torch.testing.assert_close(likely, expected.values, rtol=1e-5, atol=1e-6)


def test_columns_that_fill_a_tile_are_no_tokens() -> None:
    """Where all logits are negative those would be the largest."""
    weights = ProjectionWeights(NOTHING, np.float32(0), in_tiles([-torch.ones(33, WIDTH)]))
    tokens, likely = likeliest(weights, torch.ones(1, WIDTH), 33)
    assert tokens.tolist() == [0] and likely.item() == pytest.approx(1 / 33)


@COUNTS
@pytest.mark.parametrize("mask_rows", ["none", "one", "all"])
def test_attend(count: int, mask_rows: str) -> None:
    end, columns = 11, 16
    num_heads, num_turned = QUERIES + 2 * KV_HEADS, QUERIES + KV_HEADS
    x, norm = torch.randn(count, WIDTH), gains()
    matrix, out = weight(num_heads * SIZE, WIDTH), weight(WIDTH, QUERIES * SIZE)
    memory = torch.randn(count, columns, 2 * KV_HEADS, SIZE)
    memory[:, end:] = torch.nan  # not to be looked at
    if mask_rows != "none":
        memory[:, 2:5, :KV_HEADS] = 1e33  # what lies there is anybody's
        memory[:, 2:5, KV_HEADS:] = 1e36
    mask = None
    if mask_rows != "none":
        mask = torch.zeros(count if mask_rows == "all" else 1, 1, 1, end)
        mask[:, 0, 0, 2:5] = -torch.inf
        mask[0, 0, 0, 7] = -torch.inf
    angle = torch.rand(count, num_turned, SIZE)
    cos, signed_sin = angle.cos(), angle.sin()
    weights = AttentionWeights(
        norm=norm.numpy(),
        eps=np.float32(EPS),
        matrix=in_tiles([matrix]),
        out=in_tiles([out]),
        num_heads=num_heads,
        num_queries=QUERIES,
        floor=np.float32(SIZE * EPS),
    )
    expected_memory = memory.clone()
    expected = attended(x, norm, matrix, out, (cos, signed_sin), expected_memory, mask)
    found = attend(weights, x, (cos, signed_sin), memory, end, mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(memory, expected_memory, equal_nan=True, rtol=1e-5, atol=1e-5)


def attended(
    x: Tensor, norm: Tensor, matrix: Tensor, out: Tensor,
    angles: tuple[Tensor, Tensor], memory: Tensor, mask: Tensor | None,
) -> Tensor:  # fmt: skip
    """By torch, with 11 columns; keys and values are written to the last."""
    heads = (rms_norm(x, norm, EPS) @ matrix.T).view(len(x), -1, SIZE)
    turned = heads[:, : QUERIES + KV_HEADS]
    turned = turned / (turned.square().sum(dim=-1, keepdim=True) + SIZE * EPS).sqrt()
    rotated = torch.empty_like(turned)
    rotate(turned, *angles, out=rotated)
    memory[:, 10, :KV_HEADS] = rotated[:, QUERIES:]
    memory[:, 10, KV_HEADS:] = heads[:, QUERIES + KV_HEADS :]
    keys, values = memory[:, :11].transpose(1, 2).chunk(2, dim=1)
    queries = rotated[:, :QUERIES].unsqueeze(2)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
    return mixed.reshape(len(x), -1) @ out.T
