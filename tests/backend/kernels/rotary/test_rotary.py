"""Rotation equals multiplication by a complex number of length one, after a norm or none."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.rms_norm import reference as rms_norm
from backend.kernels.rotary import Angles, reference, rotate


def angles(tokens: int, size: int) -> tuple[torch.Tensor, Angles]:
    """Random angles [tokens, size / 2], and where rotation finds them: in the opposite order."""
    found = torch.rand(tokens, size // 2, generator=torch.Generator().manual_seed(size))
    table = torch.stack(
        (torch.cat((found.cos(), found.cos()), -1), torch.cat((-found.sin(), found.sin()), -1))
    )
    return found, Angles(
        table.flip(1).contiguous(), torch.arange(tokens, dtype=torch.int32).flip(0).contiguous()
    )


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(("heads", "size"), [(2, 8), (3, 34), (1, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotate(tokens: int, heads: int, size: int, dtype: torch.dtype) -> None:
    wide = torch.randn(tokens, heads + 2, size, generator=torch.Generator().manual_seed(2), dtype=dtype)
    x, before = wide[:, :heads], wide.clone()
    found, turn = angles(tokens, size)
    half = size // 2
    turns = torch.polar(torch.ones_like(found), found)[:, None].to(torch.complex128)
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
    rotate(x, turn._replace(table=turn.table.to(dtype)))
    torch.testing.assert_close(x.double(), torch.cat((pairs.real, pairs.imag), -1), rtol=1e-5, atol=1e-5)
    assert torch.equal(wide[:, heads:], before[:, heads:])


@pytest.mark.parametrize("threads", [1, 3])
def test_heads_are_normalised_before(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.rotary.num_threads", lambda _: threads)
    x, weight = torch.randn(50, 3, 16), torch.randn(3, 16)
    _, turn = angles(50, 16)
    expected = rms_norm.rms_norm(x, weight, 1e-5)
    reference.rotate(expected, *turn.gather(), None, 0.0)
    together = x.clone()
    rotate(together, turn, weight, 1e-5)
    torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-5)
    for row in (0, 17, 49):
        alone = x[row : row + 1].clone()
        rotate(alone, turn._replace(positions=turn.positions[row : row + 1]), weight, 1e-5)
        assert torch.equal(alone[0], together[row])
    other = x.clone()
    reference.rotate(other, *turn.gather(), weight, 1e-5)
    torch.testing.assert_close(other, expected, rtol=1e-5, atol=1e-5)
