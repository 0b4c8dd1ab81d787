"""Rotation equals multiplication by a complex number of length one."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.rotary import rotate


@pytest.mark.parametrize("in_place", [False, True])
def test_rotate(in_place: bool) -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(2))
    angles = torch.rand(3, 4)
    cos = torch.cat((angles.cos(), angles.cos()), -1)[:, None]
    signed_sin = torch.cat((-angles.sin(), angles.sin()), -1)[:, None]
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(3, 4), angles)[:, None]
    out = x if in_place else torch.full_like(x, float("nan"))
    rotate(x, cos, signed_sin, out=out)
    torch.testing.assert_close(out, torch.cat((pairs.real, pairs.imag), -1))
